"""Sounds from files and memory: rates, channels, formats, and what cannot be heard."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.data.limits import Unreadable
from mmgrpo.family import family
from mmgrpo.types import Audio, Media, Prompt, Turn
from pipelines.speech.audio import read_audio, resample
from pipelines.speech.families import check_sounds

soundfile = pytest.importorskip("soundfile")
pytest.importorskip("soxr")


def tone(rate=16_000, seconds=0.5, hertz=440.0, peak=0.5):
    return (peak * np.sin(2 * np.pi * hertz * np.arange(int(rate * seconds)) / rate)).astype(np.float32)


def written(path, samples, rate=16_000, **options):
    soundfile.write(path, samples, rate, **options)
    return Media("audio", str(path))


def pitch(audio):
    """The strongest frequency in Hz."""
    spectrum = torch.fft.rfft(audio.samples[0] * torch.hann_window(audio.samples.shape[1]))
    return float(spectrum.abs().argmax()) * audio.rate / audio.samples.shape[1]


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 44_100])
@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_what_was_written_is_heard_at_every_rate(tmp_path, rate, kind):
    audio = read_audio(written(tmp_path / f"a.{kind}", tone(rate), rate))
    assert audio.rate == rate and audio.samples.dtype == torch.float32
    assert torch.allclose(audio.samples[0], torch.from_numpy(tone(rate)), rtol=0, atol=1 / 32768)
    heard = resample(audio, 16_000)
    assert (heard.rate, heard.samples.shape) == (16_000, (1, 8_000))
    assert abs(pitch(heard) - 440) < 2  # a bin is 2 Hz wide
    middle = slice(400, -400)
    assert np.abs(heard.samples[0].numpy()[middle] - tone()[middle]).max() < 1e-3


@pytest.mark.parametrize("kind", ["mp3", "ogg", "opus"])
def test_lossy_formats_keep_pitch_and_length(tmp_path, kind):
    options = {"opus": {"format": "OGG", "subtype": "OPUS"}}.get(kind, {})
    heard = resample(read_audio(written(tmp_path / f"a.{kind}", tone(24_000), 24_000, **options)), 16_000)
    assert abs(pitch(heard) - 440) < 4
    assert 0.5 <= heard.samples.shape[1] / 16_000 < 0.6  # frames are filled up


def test_what_lies_above_half_the_new_rate_is_taken_out(tmp_path):
    high = Audio(torch.from_numpy(tone(44_100, hertz=12_000))[None], 44_100)
    assert float(resample(high, 16_000).samples[:, 400:-400].abs().max()) < 1e-3  # it would sound as 4 kHz
    assert resample(high, 44_100) is high


def test_channels_are_averaged(tmp_path):
    both = np.stack([tone(), 0.5 * tone()], 1)
    audio = read_audio(written(tmp_path / "a.wav", both, subtype="FLOAT"))
    assert torch.allclose(audio.samples, torch.from_numpy(0.75 * tone())[None], atol=1e-7)
    cancelling = written(tmp_path / "b.wav", np.stack([tone(), -tone()], 1))  # but for the last of 16 bits
    with pytest.raises(Unreadable, match=r"b\.wav.*1\.5e-05"):
        read_audio(cancelling)


def test_formats_that_soundfile_does_not_know_are_read_by_av(tmp_path):
    av = pytest.importorskip("av")
    path = tmp_path / "a.m4a"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16_000, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.stack([tone()] * 2), format="fltp", layout="stereo")
        frame.sample_rate = 16_000
        for piece in (frame, None):
            for packet in stream.encode(piece):
                container.mux(packet)
    audio = read_audio(Media("audio", str(path)))
    assert audio.rate == 16_000 and audio.samples.shape[0] == 1 and abs(pitch(audio) - 440) < 4
    assert float(audio.samples.abs().max()) == pytest.approx(0.5, abs=0.05)
    with pytest.raises(Unreadable, match=r"a\.m4a.*0\.[56].*0\.3"):
        read_audio(Media("audio", str(path)), max_seconds=0.3)


def test_whole_numbers_of_a_codec_become_fractions_of_one(tmp_path):
    av = pytest.importorskip("av")
    samples = (tone() * 32767).astype(np.int16)[None]
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 16_000
        for piece in (frame, None):
            for packet in stream.encode(piece):
                container.mux(packet)
    read = read_audio(Media("audio", str(tmp_path / "a.mkv"))).samples.numpy()
    assert np.abs(read - samples / 32768).max() < 1e-7


def test_overshoot_is_scaled_and_named_and_another_scale_is_refused(tmp_path):
    peak = float(np.abs(tone()).max())
    with pytest.warns(UserWarning, match=r"a\.wav.*1\.5"):
        loud = read_audio(written(tmp_path / "a.wav", 1.5 / peak * tone(), subtype="FLOAT")).samples[0].numpy()
    assert loud == pytest.approx(tone() / peak, abs=1e-6)  # the shape of the wave, at peak 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slight = read_audio(written(tmp_path / "c.wav", 1.05 / peak * tone(), subtype="FLOAT"))
    assert float(slight.samples.abs().max()) == pytest.approx(1, abs=1e-6)
    with pytest.raises(Unreadable, match=r"b\.wav.*samples.*1\.638e\+04"):
        read_audio(written(tmp_path / "b.wav", 32768 * tone(), subtype="FLOAT"))


def nan(samples):
    samples[100:103] = math.nan
    return samples


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (np.zeros(8_000, np.float32), "silent.*0"),
        (1e-5 * tone(), "is silent"),
        (np.zeros(0, np.float32), "samples"),
        (nan(tone()), "3.*NaN"),
        (tone(seconds=31), r"got 31\.0 s of sound, expected at most 30 s"),
    ],
)
def test_what_cannot_be_heard_is_refused_with_the_reason(tmp_path, samples, reason):
    with pytest.raises(Unreadable, match=rf"a\.wav: .*{reason}"):
        read_audio(written(tmp_path / "a.wav", samples, subtype="FLOAT"))
    with pytest.raises(Unreadable, match=f"memory.*{reason}"):
        read_audio(Media("audio", Audio(torch.from_numpy(samples)[None], 16_000)))


def test_the_longest_clip_is_a_choice(tmp_path):
    clip = written(tmp_path / "a.wav", tone(seconds=2))
    assert read_audio(clip, max_seconds=2).samples.shape == (1, 32_000)
    with pytest.raises(Unreadable, match=r"2\.0.*1\.9"):
        read_audio(clip, max_seconds=1.9)


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_a_file_that_is_cut_short_is_refused(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    clip = written(path, np.random.default_rng(0).uniform(-0.5, 0.5, 16_000).astype(np.float32))
    read_audio(clip)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(Unreadable, match=rf"a\.{kind}"):
        read_audio(clip)


def test_a_size_that_a_pipe_could_not_know_is_no_promise(tmp_path):
    path = tmp_path / "a.wav"
    clip = written(path, tone())
    content = bytearray(path.read_bytes())
    content[4:8], content[40:44] = (0x7FFFF024).to_bytes(4, "little"), (0x7FFFF000).to_bytes(4, "little")
    path.write_bytes(content)
    assert read_audio(clip).samples.shape == (1, 8_000)


def test_what_is_no_sound_is_refused_by_name(tmp_path):
    (tmp_path / "a.wav").write_text("hello")
    with pytest.raises(Unreadable, match=r"a\.wav"):
        read_audio(Media("audio", str(tmp_path / "a.wav")))
    with pytest.raises(Unreadable, match=r"none\.wav"):
        read_audio(Media("audio", str(tmp_path / "none.wav")))
    with pytest.raises(Unreadable, match="tuple.*Audio"):
        read_audio(Media("audio", ("a.wav", "b.wav")))


def hearing(**model):
    sections = family("whisper").sections
    config = config_class(sections)(data=sections.data(skip_limit=1.0))
    return replace(config, model=replace(config.model, **model))


def asks(name, *media):
    return Prompt("what?", name, turns=(Turn("user", (*media, "what?")),))


def test_prompts_that_cannot_be_heard_are_listed_with_the_first_reason(tmp_path, monkeypatch):
    good = written(tmp_path / "good.wav", tone())
    silent = written(tmp_path / "silent.wav", np.zeros(800, np.float32))
    lost = Media("audio", str(tmp_path / "lost.wav"))
    picture = Media("image", "nowhere.png")
    memory = Media("audio", Audio(torch.zeros(1, 10), 16_000))
    prompts = [asks("1", good), asks("2", silent, lost), asks("3", good, lost), asks("4", picture), Prompt("5", "5")]
    opened = []
    real = soundfile.SoundFile
    monkeypatch.setattr(soundfile, "SoundFile", lambda file: opened.append(file) or real(file))
    kept, skipped = check_sounds(hearing(), [*prompts, asks("6", memory)], "clips.jsonl")
    assert [prompt.id for prompt in kept] == ["1", "4", "5"]
    assert [(row.id, row.file.split("/")[-1]) for row in skipped] == [
        ("2", "silent.wav"),
        ("3", "lost.wav"),
        ("6", "Audio"),
    ]
    assert "is silent" in skipped[0].reason and "no such file" in skipped[1].reason
    assert sorted(opened) == [good.source, silent.source]  # each once
    with pytest.raises(ValueError, match=r"clips\.jsonl.*1.*0\.1"):
        check_sounds(hearing(seconds=0.1), prompts[:1], "clips.jsonl")
