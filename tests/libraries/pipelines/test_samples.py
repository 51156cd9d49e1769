"""Sounds and transcripts as files that reports read."""

from __future__ import annotations

import json
import os
import tarfile
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from mmgrpo.data.limits import Unreadable
from mmgrpo.data.prompts import load_prompts
from mmgrpo.evaluation import Shown, annotate
from mmgrpo.family import family
from mmgrpo.report.audio_player import Sound
from mmgrpo.report.completions import completions_html
from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Call, Image, Media, Prompt, Text, Turn, Video
from pipelines import samples
from pipelines.samples import write_completions_page, write_speech, write_texts, write_waves
from pipelines.speech.audio import SMALL, small_sound, sound_of

HUM = Audio((torch.sin(torch.arange(16_000) * 0.05) / 2)[None], 16_000)


def clip(file, answer="the cat sat"):
    return Prompt("", id="a", answer=answer, turns=(Turn("user", (Media("audio", str(file)),)),))


def test_images_that_tools_returned_stand_beside_the_completion_that_they_were_given_to(tmp_path):
    seen, other = (Media("image", Image(torch.full((3, 8, 8), level))) for level in (0.2, 0.7))
    prompt = Prompt("what?", "a", turns=(Turn("user", (seen, "what?")),))
    turns = (Turn("assistant", ("look",)), Turn("tool", ("here", other, other)))
    called = Text("red", 1, turns=turns, calls=(Call("look", {}, "here", images=(other, other)),))
    for title, output in (("before", Text("blue", 1)), ("after", called)):
        write_texts(tmp_path / "samples" / title, Shown([prompt], [output], [{"task": 1.0}]))
    row = json.loads((tmp_path / "samples" / "after.jsonl").read_text())
    assert len(row["media"]) == 1 and len(row["returned"]) == 2
    assert all((tmp_path / "samples" / name).is_file() for name in (*row["media"], *row["returned"]))
    assert row["completion"] == "assistant: look\ntool: here[image][image]\nassistant: red"
    assert "returned" not in json.loads((tmp_path / "samples" / "before.jsonl").read_text())
    assert completions_html(tmp_path / "samples").count("<img") == 3


def test_a_small_file_is_kept_and_a_large_one_is_written_anew(tmp_path):
    small, large = tmp_path / "small.FLAC", tmp_path / "large.wav"
    soundfile.write(small, HUM.samples[0, :800].numpy(), 16_000, format="FLAC")
    assert sound_of(Media("audio", str(small))) == Sound(small.read_bytes(), ".flac")
    soundfile.write(large, HUM.samples[0].repeat(3).numpy(), 16_000)
    written = sound_of(Media("audio", str(large)))
    assert large.stat().st_size > SMALL > 4 * len(written.content) and written.suffix == ".ogg"
    samples, rate = soundfile.read(BytesIO(written.content))
    assert rate == 16_000 and len(samples) == 48_000 and np.abs(samples).max() == pytest.approx(0.5, abs=0.05)


def test_nothing_but_a_sound_is_copied(tmp_path):
    (tmp_path / "a.wav").write_text("a secret")
    os.mkfifo(tmp_path / "b.wav")
    for name in ("a.wav", "b.wav"):
        with pytest.raises(Unreadable, match=name):
            sound_of(Media("audio", str(tmp_path / name)))


@pytest.mark.parametrize("rate", [5_000, 16_000, 22_050, 96_000])
def test_sounds_of_any_rate_and_number_of_channels_become_small(rate):
    samples, found = soundfile.read(BytesIO(small_sound(Audio(HUM.samples.repeat(2, 3), rate)).content))
    assert found == rate and samples.shape == (48_000, 2)


def test_the_page_plays_the_clip_and_aligns_both_transcripts(tmp_path):
    soundfile.write(tmp_path / "a.flac", HUM.samples[0, :800].numpy(), 16_000)
    prompt = clip(tmp_path / "a.flac", answer="The cat sat.")
    reward = scorer("one_minus_wer")
    for title, text in (("before", "the bat sat"), ("after", "The cat sat")):
        outputs = [Text(text, 3)]
        notes = annotate([reward], [prompt], outputs)
        write_texts(tmp_path / "samples" / title, Shown([prompt], outputs, [{"one_minus_wer": 1.0}], notes))
    html = completions_html(tmp_path / "samples")
    assert html.count("<audio") == 1 and html.index("<audio") < html.index("before · 3 tokens")
    assert "1 error in 3 words: 1 substitution" in html and "0 errors in 3 words" in html
    assert "[audio]" not in html and "reference: The cat sat." in html
    (row,) = map(json.loads, (tmp_path / "samples" / "before.jsonl").read_text().splitlines())
    assert row["aligned"] == [["equal", "the", "the"], ["replace", "cat", "bat"], ["equal", "sat", "sat"]]


def test_speech_is_played_with_what_a_recognizer_understood(tmp_path):
    note = {"aligned": [("replace", "cat", "bat")], "heard": "bat"}
    write_speech(tmp_path / "after", Shown([Prompt("cat", "a")], [HUM], [{"neg_wer": -1.0}], [note]))
    html = completions_html(tmp_path)
    assert html.count('src="data:audio/ogg;base64,') == 1 and "1 error in 1 word" in html and "bat" in html


def test_samples_of_a_prompt_are_numbered_on_their_page_and_an_earlier_page_leaves_nothing(tmp_path):
    shown = Shown([Prompt("q", "a")] * 2, [Text("x"), Text("y")], [{}, {}])
    opened = write_completions_page(tmp_path, {"before": shown, "": shown}, 2, write_texts)
    assert opened == tmp_path / "completions.html" and "before · " in opened.read_text()
    rows = [json.loads(line) for line in (tmp_path / "after.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["a (1)", "a (2)"]
    opened = write_completions_page(tmp_path, {"": shown}, 2, write_texts)
    assert "before · " not in opened.read_text()
    assert not (tmp_path / "before.jsonl").exists()


def test_a_page_of_hostile_prompts_and_completions_is_inert(tmp_path):
    """``mmgrpo sample`` writes it from prompts of a file, and from whatever a model completes them with."""
    bad = "\"'><script>alert(1)</script><img src=x onerror=alert(1)> half \ud83d\x00"
    prompt = Prompt(bad, bad, answer={bad: [bad]}, task=bad, meta={bad: bad})
    shown = Shown([prompt] * 2, [Text(bad), Text(bad)], [{bad: 0.5}] * 2)
    html = write_completions_page(tmp_path, {"before": shown, "": shown}, 2, write_texts).read_text()
    assert "<script" not in html and "<img" not in html and html.count("&lt;script&gt;alert(1)") >= 12


@pytest.mark.parametrize("name", ["qwen_vl", "whisper", "flow_speech"])
def test_media_of_a_page_are_small_pictures_strips_and_sounds(name):
    shown = family(name).displayed()
    picture = shown(Media("image", Image(torch.zeros(3, 40, 20))))
    assert picture.size == (20, 40) and picture.getpixel((0, 0)) == (0, 0, 0)
    strip = shown(Media("video", Video(torch.zeros(20, 3, 40, 20), 4.0)))
    assert strip.width > 2 * 20 and strip.height == 40
    assert shown(HUM).suffix == ".ogg" and shown(Media("audio", HUM)).suffix == ".ogg"


def test_a_sound_inside_a_data_file_is_written_anew(tmp_path):
    """Its place has the suffix of a sound and is no file."""
    content = BytesIO()
    soundfile.write(content, HUM.samples[0, :800].numpy(), 16_000, format="WAV")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for file, data in (("0.json", b'{"text": "a"}'), ("0.wav", content.getvalue())):
            entry = tarfile.TarInfo(file)
            entry.size = len(data)
            archive.addfile(entry, BytesIO(data))
    [prompt] = load_prompts(tmp_path / "a.tar")
    [medium] = prompt.media
    assert medium.source.endswith(".wav") and sound_of(medium).suffix == ".ogg"


def test_sounds_are_written_as_waves_and_nothing_else_is(tmp_path):
    shown = Shown([Prompt("a", "a")] * 2, [Text("x"), HUM], [{}, {}])
    folder = tmp_path / "run" / "waves"
    for _ in range(2):  # a later call writes them again
        write_waves(folder, shown)
    assert [file.name for file in folder.iterdir()] == ["001.wav"]
    samples, rate = soundfile.read(folder / "001.wav")
    assert soundfile.info(folder / "001.wav").subtype == "PCM_16"
    assert rate == 16_000 and len(samples) == 16_000


def test_annotations_are_written_beside_their_completions_and_sounds(tmp_path, monkeypatch):
    written: dict[str, Any] = {}
    for name in ("write_completions", "write_sounds"):
        monkeypatch.setattr(samples, name, lambda stem, shown, media, name=name, **notes: written.update({name: notes}))
    notes = [{"boxes": {"cat": [[0, 0, 2, 3]]}, "heard": "a cat", "aligned": [["a", "a"]]}, {}]
    samples.write_texts(tmp_path / "a", Shown([Prompt("a")] * 2, [Text("x")] * 2, [{}, {}], notes))
    samples.write_speech(tmp_path / "a", Shown([Prompt("a")] * 2, [HUM] * 2, [{}, {}], notes))
    aligned = [[["a", "a"]], []]
    boxes = [{"cat": [[0, 0, 2, 3]]}, {}]
    assert written["write_completions"] == {"boxes": boxes, "aligned": aligned, "returned": [[], []]}
    assert written["write_sounds"] == {"transcripts": ["a cat", ""], "aligned": aligned}
