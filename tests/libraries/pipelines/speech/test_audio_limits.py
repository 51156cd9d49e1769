"""Sounds at the limits of what is heard, and how files are read, by numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.data.limits import Unreadable
from mmgrpo.family import family
from mmgrpo.types import Audio, Media, Prompt, Turn
from pipelines.speech import audio
from pipelines.speech.audio import clip_samples, read_audio, resample

soundfile = pytest.importorskip("soundfile")


def samples(*values: float) -> np.ndarray:
    return np.array([values], np.float32).T


def test_silence_and_another_scale_begin_at_their_limits():
    assert audio._validate(samples(1.01e-4), 1, 2.0)[0].samples.numel() == 1
    assert audio._validate(samples(2.0, -2.0, 1.0), 1, 3.0)[0].samples.tolist() == [[1.0, -1.0, 0.5]]
    for value, reason in ((0.99e-4, "is silent"), (-2.01, "samples.*2.01")):
        with pytest.raises(Unreadable, match=reason):
            audio._validate(samples(value), 1, 2.0)


def test_a_sound_in_memory_is_as_long_as_it_may_be_and_keeps_its_channels_mean():
    stereo = Audio(torch.tensor([[0.5, 0.25], [0.0, 0.25]]), 2)
    heard = read_audio(Media("audio", stereo), max_seconds=1.0)
    assert heard.samples.tolist() == [[0.25, 0.25]] and heard.rate == 2
    with pytest.raises(Unreadable, match="1.0.*0.9"):
        read_audio(Media("audio", stereo), max_seconds=0.9)


def test_a_resampled_sound_stays_within_one():
    """A square wave overshoots at its edges, which is cut off on both sides."""
    square = torch.ones(1, 800).index_fill(1, torch.arange(200, 400), -1.0)
    heard = resample(Audio(square, 8_000), 16_000).samples
    assert (heard.max().item(), heard.min().item()) == (1.0, -1.0) and heard.shape == (1, 1600)


def clip(seconds: float, rate: int = 100, **options: Any) -> Media:
    return Media("audio", Audio(torch.full((1, round(rate * seconds)), 0.5), rate), options)


def test_a_prompts_clip_is_as_long_as_the_model_hears():
    prompt = Prompt("", "p")
    assert clip_samples(prompt, clip(2.0), 100, 2.0).tolist() == [0.5] * 200
    with pytest.raises(ValueError, match="'p'.*2.0.*1.99"):
        clip_samples(prompt, clip(2.0), 100, 1.99)
    with pytest.raises(ValueError, match="29.0.*2 s"):  # heard, and too long
        clip_samples(prompt, clip(29.0), 100, 2.0)
    with pytest.raises(Unreadable, match="'p'.*31.0.*30"):
        clip_samples(prompt, clip(31.0), 100, 2.0)
    assert len(clip_samples(prompt, clip(31.0), 100, 31.0)) == 3100
    for seconds in (29.0, 31.0):
        with pytest.raises(ValueError, match=r"raise model\.windows$"):
            clip_samples(prompt, clip(seconds), 100, 2.0, "model.windows")
    hidden = clip_samples(prompt, clip(0.1, mask="center"), 100, 2.0)
    assert hidden.tolist() == [0.0] * 10


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (b"RIFF" + (12).to_bytes(4, "little") + bytes(12), 0),
        (b"RIFF" + (15).to_bytes(4, "little") + bytes(12), 3),
        (b"RIFF" + (5).to_bytes(4, "little") + bytes(12), 0),
        (b"RIFX" + (15).to_bytes(4, "big") + bytes(12), 3),
        (b"FORM" + (15).to_bytes(4, "big") + bytes(12), 3),
        (b"fLaC" + (15).to_bytes(4, "big") + bytes(12), 0),
        (b"RIFF" + (0x7F000000 - 9).to_bytes(4, "little"), 0x7F000000 - 9),  # of 8 + 0x7EFFFFF7 bytes there are 8
        (b"RIFF" + (0x7F000000 - 8).to_bytes(4, "little"), 0),  # what a pipe declares
    ],
)
def test_bytes_that_a_header_declares_and_the_file_lacks_are_counted(content, missing, tmp_path):
    (tmp_path / "a").write_bytes(content)
    assert audio._missing_bytes(str(tmp_path / "a")) == audio._missing_bytes(BytesIO(content)) == missing


@pytest.mark.parametrize(
    ("head", "by_soundfile"),
    [(b"\xff\xe0", True), (b"\xff\xfb", True), (b"\xff\xdf", False), (b"\xfe\xfb", False), (b"fLaC", True)],
)
def test_soundfile_reads_what_begins_as_its_formats_and_av_the_rest(head, by_soundfile, tmp_path, monkeypatch):
    (tmp_path / "a.raw").write_bytes(head + bytes(20))
    asked = []
    monkeypatch.setattr(soundfile, "SoundFile", lambda file: asked.append(file))
    with pytest.raises(Unreadable, match="soundfile"):
        read_audio(Media("audio", str(tmp_path / "a.raw")))
    assert bool(asked) == by_soundfile


def test_av_counts_the_samples_that_it_decodes_and_returns_the_last_ones(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    tone = (np.sin(np.arange(4_000) * 0.1) * 0.5).astype(np.float32)
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("flac", rate=8_000, layout="mono")
        for start in range(0, 4_000, 1_000):
            frame = av.AudioFrame.from_ndarray(
                (tone[None, start : start + 1_000] * 32767).astype(np.int16), "s16", "mono"
            )
            frame.sample_rate, frame.pts = 8_000, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    seen = []
    monkeypatch.setattr(audio, "_check_header", lambda *given: seen.append(given))
    found, rate = audio._decode_by_av(str(tmp_path / "a.mkv"), 9.0)
    assert rate == 8_000 and found.shape == (4_000, 1) and np.abs(found[:, 0] - tone).max() < 1e-4
    assert all((one[0], one[1], one[3]) == (8_000, 1, 9.0) for one in seen)
    stated, *counted = (one[2] for one in seen)
    assert stated == pytest.approx(4_000, abs=10)  # the container's duration
    assert counted[0] > 0 and counted == sorted(counted) and counted[-1] == 4_000 and len(set(counted)) == len(counted)


# --- parts, and what tools round --------------------------------------------------------------------------------------


def test_a_millisecond_more_than_the_model_hears_is_rounding_and_is_left_out():
    prompt = Prompt("", "p")
    for seconds, taken in ((30.0, 3000), (30.001, 3000), (30.004, 3000)):
        sound = Media("audio", Audio(torch.full((1, round(seconds * 1000)), 0.5), 1000))
        assert len(read_audio(sound).samples[0]) == round(seconds * 1000)
        assert len(clip_samples(prompt, sound, 1000, 30.0)) == 10 * taken
    for seconds, written in ((30.006, "30.01"), (30.04, "30.04"), (31.0, "31.0")):
        sound = Media("audio", Audio(torch.full((1, round(seconds * 1000)), 0.5), 1000))
        with pytest.raises(Unreadable, match=f"{written}.*30"):
            read_audio(sound)


RAMP = torch.linspace(0.1, 0.9, 8_000)[None]
"""One second at 8 kHz."""


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> dict[str, Any]:
    """The same second in memory, in a file of soundfile and in one of av."""
    folder = tmp_path_factory.mktemp("ramp")
    soundfile.write(folder / "a.wav", RAMP[0].numpy(), 8_000, subtype="FLOAT")
    sources: dict[str, Any] = {"memory": Audio(RAMP, 8_000), "soundfile": str(folder / "a.wav")}
    av = pytest.importorskip("av")
    with av.open(str(folder / "a.mkv"), "w") as container:
        stream = container.add_stream("pcm_f32le", rate=8_000, layout="mono")
        for start in range(0, 8_000, 1_000):
            frame = av.AudioFrame.from_ndarray(RAMP[:, start : start + 1_000].numpy(), "flt", "mono")
            frame.sample_rate, frame.pts = 8_000, start
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return sources | {"av": str(folder / "a.mkv")}


@pytest.mark.parametrize("kind", ["memory", "soundfile", "av"])
@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({}, 0, 8_000),
        ({"start": 0.25}, 2_000, 8_000),
        ({"end": 0.5}, 0, 4_000),
        ({"start": 0.25, "end": 0.5}, 2_000, 4_000),
        ({"start": 0.5, "end": 1.004}, 4_000, 8_000),  # an end that is rounded up
        ({"start": 0, "end": 1}, 0, 8_000),
    ],
)
def test_a_part_of_a_recording_is_read_from_its_start_to_its_end(kind, options, first, last, recordings):
    read = read_audio(Media("audio", recordings[kind], options), max_seconds=1.0)
    torch.testing.assert_close(read.samples, RAMP[:, first:last], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["memory", "soundfile", "av"])
def test_the_limit_is_that_of_the_part_and_a_part_behind_the_end_is_refused(kind, recordings):
    medium = lambda **options: Media("audio", recordings[kind], options)  # noqa: E731
    assert read_audio(medium(start=0.5), max_seconds=0.5).samples.shape == (1, 4_000)
    for options in ({"start": 0.4}, {"end": 0.6}, {}):
        with pytest.raises(Unreadable, match=r"(0\.6|1\.0).*0.5"):
            read_audio(medium(**options), max_seconds=0.5)
    for options in ({"start": 1.0}, {"start": 0.5, "end": 1.2}, {"end": 1.1}):
        with pytest.raises(Unreadable, match=r"1\.0+"):
            read_audio(medium(**options), max_seconds=2.0)


@pytest.mark.parametrize(
    ("name", "model", "most", "setting"),
    [
        ("whisper", {}, 30, "model.windows"),
        ("whisper", {"windows": 3}, 90, "model.windows"),
        ("whisper", {"seconds": 10.0}, 10, "model.seconds"),
        ("qwen_audio", {"windows": 2}, 60, "model.windows"),
        ("ctc", {"seconds": 10.0}, 10, "model.seconds"),
        ("ctc", {}, 30, ""),
        ("audio_text", {}, 30, "model.seconds"),
        ("audio_text", {"seconds": 1800.0}, 1800, ""),
        ("flow_speech", {}, 20, "model.seconds"),
    ],
)
def test_a_recording_that_is_too_long_names_the_setting_that_admits_it(name, model, most, setting):
    chosen = family(name)
    config = config_class(chosen.sections)()
    config = replace(config, model=replace(config.model, **model), data=replace(config.data, skip_limit=0.5))
    prompts = [Prompt("", str(n), turns=(Turn("user", (clip(n, rate=8),)),)) for n in (most, most + 1)]
    read, [skipped] = chosen.readable(config, prompts, "rows")
    assert [prompt.id for prompt in read] == [str(most)]
    assert f"got {most + 1}.0 s of sound, expected at most {most} s" in skipped.reason
    assert skipped.reason.endswith(f"raise {setting}" if setting else "give 'start' and 'end'")


@pytest.mark.parametrize(
    ("answers", "language", "warned"),
    [
        (["der Löffel", "ein Hund", "schöne Grüße"], "", "2 of 3 rows.*'0'.*model.language"),
        (["der Löffel", "ein Hund", "schöne Grüße"], "de", ""),
        (["a café", *["a spoon"] * 10], "", ""),
        (["a café", *["a spoon"] * 8], "", "1 of 9 rows.*'0'.*model.language"),
        (["勺子", "a spoon"], "", "1 rows.*'0'.*model.language"),
    ],
)
def test_transcripts_in_another_language_than_the_models_are_warned_of(answers, language, warned, capsys):
    config = config_class(family("whisper").sections)()
    sound = Media("audio", Audio(torch.full((1, 800), 0.5), 8_000))
    meta = {"language": language} if language else {}
    prompts = [Prompt("", str(n), one, "", meta, (Turn("user", (sound,)),)) for n, one in enumerate(answers)]
    family("whisper").readable(config, prompts, "rows")
    printed = capsys.readouterr().out
    assert (
        bool(re.search(f"warning: the answers of {warned}", printed, re.DOTALL)) if warned else "warning" not in printed
    )
