"""The embedded clips: what they are, how they are split, and how they are made."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from mmgrpo.config.plugins import locate
from mmgrpo.data.prompts import load_prompts
from mmgrpo.types import Audio
from pipelines.readable import filter_readable
from pipelines.speech.audio import read_audio
from scripts.pretrain import actor_speech as actors
from scripts.pretrain import sky_speech as sky
from scripts.pretrain import speech_data as script

pytest.importorskip("soundfile")
pytest.importorskip("soxr")

SPEECH = Path(locate("embedded:speech"))
SPLITS = ("train", "tune", "heldout", "natural", "telephone_train", "telephone", "actors", "sky")
PROMPTS = {split: load_prompts(SPEECH / f"{split}.jsonl") for split in SPLITS}


def test_every_clip_can_be_heard_and_belongs_to_one_row():
    prompts = [prompt for split in SPLITS for prompt in PROMPTS[split]]
    kept, skipped = filter_readable(prompts, lambda media: read_audio(media, max_seconds=10))
    assert (len(kept), skipped) == (711, [])
    files = [prompt.media[0].source for prompt in prompts]
    folders = ("clips", "natural", "telephone*", "actors", "sky")
    there = [file for folder in folders for file in SPEECH.glob(f"{folder}/*.[of]*")]
    assert sorted(files) == sorted(map(str, there))
    assert sum(file.stat().st_size for file in there) < 6.5e6
    assert {(prompt.text, prompt.task) for prompt in prompts} == {("", "transcribe")}
    assert read_audio(PROMPTS["natural"][0].media[0]).rate == 16_000


def test_splits_share_neither_sentences_nor_voices():
    sentences = {split: {prompt.answer for prompt in PROMPTS[split]} for split in SPLITS}
    voices = {split: {prompt.meta["voice"] for prompt in PROMPTS[split]} for split in SPLITS}
    # Two announcements are there twice.
    assert [len(sentences[split]) for split in SPLITS] == [192, 112, 80, 12, 95, 58, 80, 80]
    for one, other in itertools.combinations(SPLITS, 2):
        assert not sentences[one] & sentences[other]
        assert not voices[one] & voices[other] or (one, other) == ("telephone_train", "telephone")  # one person


def test_the_rows_are_those_that_the_script_makes():
    files = [SPEECH / f"sentences{kind}.txt" for kind in ("", "_compounds", "_heldout")]
    lines = [file.read_text().splitlines() for file in files]
    for split, parts in script.split_sentences(*lines, seed=0).items():
        assert [prompt.answer for prompt in PROMPTS[split]] == list(itertools.chain(*parts))
        prompts = iter(PROMPTS[split])
        for part, voices in zip(parts, script.VOICES[split], strict=True):
            metas = [prompt.meta for prompt in itertools.islice(prompts, len(part))]
            assert {meta["voice"] for meta in metas} == set(voices)
            for voice in voices:
                levels = [meta["snr"] for meta in metas if meta["voice"] == voice]
                assert max(map(levels.count, set(levels))) - min(map(levels.count, set(levels))) <= 1


@pytest.mark.parametrize(("split", "characters"), [("actors", actors.CHARACTERS), ("sky", sky.CHARACTERS.values())])
def test_clips_of_actors_are_eight_of_each_of_ten_characters(split, characters):
    voices = [prompt.meta["voice"] for prompt in PROMPTS[split]]
    assert {voice: voices.count(voice) for voice in voices} == {voice.lower(): 8 for voice in characters}
    assert (len(characters), actors.CLIPS) == (10, 8)


@pytest.mark.parametrize("kind", ["white", "pink"])
def test_noise_is_as_loud_as_is_said_and_of_its_colour(kind):
    tone = torch.sin(torch.arange(32_000) / 16_000 * 2 * torch.pi * 500)
    clip = script.add_noise(Audio(tone[None], 16_000), 10.0, kind, np.random.default_rng(0))
    assert np.abs(clip).max() == pytest.approx(0.9)
    scale = np.dot(clip, tone) / np.dot(tone, tone)  # the noise is all but orthogonal to the tone
    noise = clip - scale * tone.numpy()
    assert 10 * np.log10(np.mean((scale * tone.numpy()) ** 2) / np.mean(noise**2)) == pytest.approx(10, abs=0.1)
    power = np.abs(np.fft.rfft(noise)) ** 2
    low, high = power[200:400].mean(), power[6400:12800].mean()  # 100-200 Hz and 3200-6400 Hz: 32 times
    assert low / high == pytest.approx({"white": 1, "pink": 32}[kind], rel=0.3)


def test_opus_bytes_are_the_same_each_time_and_sound_alike(tmp_path):
    pytest.importorskip("av")
    tone = 0.5 * np.sin(np.arange(16_000) / 16_000 * 2 * np.pi * 500).astype(np.float32)
    content = script.opus(tone)
    assert content == script.opus(tone) and len(content) < 5_000
    (tmp_path / "a.opus").write_bytes(content)
    (tmp_path / "a.jsonl").write_text('{"text": "", "audio": "a.opus", "answer": "beep"}\n')
    heard = read_audio(load_prompts(tmp_path / "a.jsonl")[0].media[0])
    spectrum = torch.fft.rfft(heard.samples[0]).abs()
    assert float(spectrum.argmax()) * heard.rate / heard.samples.shape[1] == pytest.approx(500, abs=2)


def test_too_few_or_equal_sentences_are_refused():
    with pytest.raises(SystemExit, match="3.*sentences.*5"):
        script.split_sentences(["a", "b", "c"], ["d"], ["e"], 0)
    many = [str(number) for number in range(200)]
    for files in ((["a"] * 200, [], []), (many, ["7"], []), (many, [], ["7"])):
        with pytest.raises(SystemExit, match=f"of {sum(map(len, files))} in"):
            script.split_sentences(*files, 0)


@pytest.mark.skipif(not shutil.which("espeak-ng"), reason="espeak-ng is not installed")
def test_the_same_arguments_write_the_same_clips(tmp_path):
    pytest.importorskip("av")
    for folder in ("a", "b"):
        script.write_split(tmp_path / folder, "tune", [["Hello there.", "How are you?"], []], (10.0,), 3)
    names = ["tune.jsonl", "clips/tune-000.opus", "clips/tune-001.opus"]
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in names)
    rows = [json.loads(line) for line in (tmp_path / "a" / "tune.jsonl").read_text().splitlines()]
    assert [row["meta"]["voice"] for row in rows] == list(script.VOICES["tune"][0])
    other = tmp_path / "c"
    script.write_split(other, "tune", [["Hello there."], []], (10.0,), 4)
    assert (other / names[1]).read_bytes() != (tmp_path / "a" / names[1]).read_bytes()
