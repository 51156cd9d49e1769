"""What the family of text-to-audio models answers, and captions as projects publish them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import soundfile
import torch

from mmgrpo.config.settings import config_class
from mmgrpo.evaluation import Shown
from mmgrpo.family import family
from mmgrpo.types import Audio, Media, Prompt, Turn
from pipelines.speech.captions import load_captions

SOUNDS = family("stable_audio")


def config(**changes):
    made = config_class(SOUNDS.sections)()
    for name, value in changes.items():
        setattr(made.model, name, value)
    return made


def test_captions_of_audiocaps_and_musiccaps_are_prompts_as_they_are_published(tmp_path):
    rows = '58146,r1nicOVtvkQ,130,"A woman talks, water pours"\n58147,r1nicOVtvkQ,130,Rain\n'
    (tmp_path / "train.csv").write_text("\ufeffaudiocap_id,youtube_id,start_time,caption\n" + rows)
    prompts, skipped = SOUNDS.read(config(), str(tmp_path / "train.csv"))
    assert [(prompt.text, prompt.id) for prompt in prompts] == [
        ("A woman talks, water pours", "58146"),
        ("Rain", "58147"),
    ]
    assert prompts[0].meta["youtube_id"] == "r1nicOVtvkQ" and skipped == []
    (tmp_path / "music.csv").write_text('ytid,start_s,end_s,caption,seconds\n-0Gj8-vB1q4,30,40,"A low\nballad",8.5\n')
    [prompt] = load_captions(tmp_path / "music.csv")
    assert (prompt.text, prompt.id, prompt.meta["seconds"]) == ("A low\nballad", "-0Gj8-vB1q4", 8.5)
    (tmp_path / "windows.csv").write_bytes(b'ytid,caption\r\nx,"A low\r\nballad"\r\n')
    assert [prompt.text for prompt in load_captions(tmp_path / "windows.csv")] == ["A low\r\nballad"]


def test_captions_may_be_objects_or_lines_and_have_a_duration(tmp_path):
    rows = [
        {"caption": "Rain", "seconds": 2},
        {"text": "A bell", "caption": "unused"},
        {"ytid": "x", "caption": "Wind"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    prompts = load_captions(tmp_path / "a.jsonl")
    assert [(prompt.text, prompt.id) for prompt in prompts] == [
        ("Rain", "a.jsonl:1"),
        ("A bell", "a.jsonl:2"),
        ("Wind", "x"),
    ]
    assert prompts[0].meta == {"seconds": 2}
    (tmp_path / "a.txt").write_text("Rain\nA bell\n")
    assert [prompt.text for prompt in load_captions(tmp_path / "a.txt")] == ["Rain", "A bell"]


def test_columns_are_named_and_a_missing_file_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"words": "Rain", "caption": "unused"}\n')
    [prompt] = load_captions(tmp_path / "a.jsonl", {"text": "words"})
    assert prompt.text == "Rain"
    with pytest.raises(FileNotFoundError, match="none.jsonl"):
        load_captions(tmp_path / "none.jsonl")
    (tmp_path / "a.csv").write_text("audiocap_id,ytid,caption,seconds\n,,Rain,\n,x,Wind,1\n7,y,Hail,\n")
    rain, wind, hail = load_captions(str(tmp_path / "a.csv"))
    assert [one.id for one in (rain, wind, hail)] == ["a.csv:2", "x", "7"]  # the first id that is there
    assert wind.meta["seconds"] == 1.0 and rain.meta["seconds"] == hail.meta["seconds"] == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "youtube_id,text\nx,Rain\n",
            r"a\.csv.*\['youtube_id', 'text'\].*caption",
        ),
        ("a.csv", "ytid,caption\nx\n", r"a\.csv:2"),
        ("a.csv", "ytid,caption\nx,Rain,loud\n", r"a\.csv:2"),
        ("a.csv", "ytid,caption,seconds\nx,Rain,long\n", r"a\.csv:2.*seconds.*'long'"),
        ("a.csv", "ytid,caption\nx,Rain\nx,Wind\n", r"a\.csv:3.*'x'.*a\.csv:2"),
        ("a.csv", "ytid,caption\n", "captions"),
        ("a.csv", 'ytid,caption\nx,"Rain\n', r"a\.csv.*line 1"),
        ("a.jsonl", '{"caption": 3}\n', r"a\.jsonl:1"),
        ("a.jsonl", "no object\n", r"a\.jsonl:1"),
    ],
)
def test_a_row_that_is_no_caption_is_an_error_that_names_it(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        load_captions(tmp_path / name)


def test_the_embedded_captions_are_read_and_share_none():
    chosen = config()
    train, heldout = (SOUNDS.read(chosen, path)[0] for path in (chosen.data.train, chosen.data.heldout))
    assert len(train) == 24 and len(heldout) == 8 and not {p.text for p in train} & {p.text for p in heldout}


def test_media_are_refused_and_what_the_model_does_not_take_is_skipped():
    clip = Media("audio", Audio(torch.zeros(1, 9), 8))
    with pytest.raises(ValueError, match="1 media"):
        SOUNDS.readable(config(), [Prompt("rain", "0", turns=(Turn("user", (clip, "rain")),))], "a file")

    class Model:
        @staticmethod
        def check(prompt):
            if len(prompt.text) > 4:
                raise ValueError("too long")

    policy = type("Policy", (), {"model": Model})
    prompts = [Prompt("rain", str(number)) for number in range(20)] + [Prompt("a bell", "long")]
    usable, skipped = SOUNDS.accept(config(), policy, prompts)
    assert usable == prompts[:20] and [(one.id, one.reason) for one in skipped] == [("long", "too long")]


def test_a_round_is_captions_times_sounds_with_guidance_counted_twice():
    chosen = config()
    chosen = replace(chosen, sampling=replace(chosen.sampling, steps=10))
    with_guidance, without = (
        SOUNDS.arithmetic(chosen),
        SOUNDS.arithmetic(replace(chosen, model=config(guidance=1.0).model)),
    )
    assert with_guidance.lines[0] == "4 prompts x 8 samples = 32 samples, 10 denoising steps"
    assert with_guidance.totals["evaluations to sample"] == 2 * without.totals["evaluations to sample"] == 640
    assert SOUNDS.decisions(chosen) == "gaussian" and SOUNDS.summary(chosen, None) == {}


def test_sounds_are_written_as_wav_files_beside_a_page_that_plays_them(tmp_path):
    sound = Audio(torch.stack([torch.sin(torch.arange(800) * 0.3) / 2, torch.zeros(800)]), 8_000)
    shown = Shown([Prompt("Rain", "a")], [sound], [{"clap": 0.1}], [{}])
    page = SOUNDS.write_page(tmp_path / "drawn", {"before": shown, "": shown}, 1, 4)
    assert page.name == "completions.html" and page.read_text().count("<audio") == 2 and "Rain" in page.read_text()
    for title in ("before", "after"):
        samples, rate = soundfile.read(tmp_path / "drawn" / title / "000.wav")
        assert rate == 8_000 and torch.allclose(torch.from_numpy(samples.T).float(), sound.samples, atol=1e-4)
