"""Completions as they are kept in a run folder, and as the report shows them."""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.evaluation import Shown
from mmgrpo.report.audio_player import Sound
from mmgrpo.report.cards import sections
from mmgrpo.report.completions import completions_html, strip, thumbnail, write_completions, write_sounds
from mmgrpo.report.html import write_report
from mmgrpo.report.media import (
    MediaFolder,
    image_with_boxes,
    words,
)
from mmgrpo.types import Audio, Image, Media, Prompt, Text, Turn

PICTURE = Pil.new("RGB", (400, 200), "blue")


def shown(texts, prompts=None, **rewards):
    prompts = prompts or [Prompt(f"question {i}", id=f"q{i}", answer="yes") for i in range(len(texts))]
    return Shown(prompts, [Text(text, 3) for text in texts], [dict(rewards) for _ in texts])


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_row_holds_what_was_asked_answered_and_earned(tmp_path):
    prompt = Prompt(
        "where?", id="a", answer=[1, 2], task="box_iou", turns=(Turn("user", (Media("image", "x"), "where?")),)
    )
    write_completions(
        tmp_path / "before", shown(["there"], [prompt], task=0.25, format=math.nan), [[thumbnail(PICTURE)]]
    )
    assert rows(tmp_path / "before.jsonl") == [
        {
            "id": "a",
            "task": "box_iou",
            "prompt": "[image] where?",
            "meta": {},
            "media": ["before/000-0.jpg"],
            "aligned": [],
            "boxes": {},
            "completion": "there",
            "tokens": 3,
            "truncated": False,
            "answer": [1, 2],
            "rewards": {"task": 0.25, "format": None},
        }
    ]
    # 400 x 200 fits into 160 x 160 as 160 x 80.
    assert Pil.open(tmp_path / "before" / "000-0.jpg").size == (160, 80)


def test_a_conversation_of_several_turns_says_who_speaks():
    turns = (Turn("system", ("be short",)), Turn("user", ("look: ", Media("video", "x"), "what?")))
    assert words(Prompt("what?", turns=turns)) == "system: be short\nuser: look: [video] what?"
    assert words(Prompt("only text")) == "only text"


def test_a_strip_shows_the_first_and_the_last_frame_and_few_between():
    frames = [Pil.new("RGB", (16, 8), (level, 0, 0)) for level in range(0, 250, 10)]  # 25 frames
    sheet = strip(frames)
    # Six frames of 16 px and five gaps of 2 px; places round(i * 24 / 5) = 0, 5, 10, 14, 19, 24.
    assert sheet.size == (6 * 16 + 5 * 2, 8)
    assert [sheet.getpixel((18 * i, 0))[0] for i in range(6)] == [0, 50, 100, 140, 190, 240]
    assert strip(frames[:1]).size == (16, 8)
    with pytest.raises(ValueError, match="frames"):
        strip([])


def test_a_transparent_picture_stands_on_white():
    assert thumbnail(Pil.new("RGBA", (4, 4), (0, 0, 0, 0))).getpixel((0, 0)) == (255, 255, 255)


def test_boxes_are_drawn_where_they_are_also_when_turned_round():
    picture = Pil.new("RGB", (100, 50), "black")
    drawn = image_with_boxes(picture, {"gold": [(0.5, 0.2, 0.1, 0.8)], "said": [(0.6, 0.2, 0.9, 0.8)]})
    green, red = (0x1D, 0x9A, 0x5C), (0xD0, 0x49, 0x2F)
    # The gold box is x 10 to 50, y 10 to 40; the other x 60 to 90.
    assert drawn.getpixel((10, 25)) == green == drawn.getpixel((50, 25))
    assert drawn.getpixel((75, 10)) == red
    assert drawn.getpixel((30, 25)) == (0, 0, 0) == picture.getpixel((10, 25))


def test_before_and_after_stand_side_by_side_reward_by_reward(tmp_path):
    write_completions(tmp_path / "before", shown(["no", "no"], task=0.0), [[], []])
    write_completions(tmp_path / "step-000002", shown(["hm", "hm"], task=0.5), [[], []])
    write_completions(tmp_path / "after", shown(["yes", "yes"], task=1.0), [[], []])
    html = completions_html(tmp_path)
    assert html.count("<article>") == 2 and "hm" not in html
    card = html.split("<article>")[1]
    assert card.index("question 0") < card.index("before · 3 tokens") < card.index("after · 3 tokens")
    assert "<li>task <b>0.000</b></li>" in card and "<li>task <b>1.000</b></li>" in card
    assert "reference: yes" in card and "<img" not in html


def test_a_killed_run_shows_what_it_said_last(tmp_path):
    write_completions(tmp_path / "before", shown(["no"]), [[]])
    write_completions(tmp_path / "step-000002", shown(["hm"]), [[]])
    assert "step-000002 · 3 tokens" in completions_html(tmp_path)
    (tmp_path / "step-000002.jsonl").unlink()
    assert completions_html(tmp_path).count("3 tokens") == 1
    assert completions_html(tmp_path / "none").strip() == ""


def test_the_report_of_a_run_holds_its_completions_and_needs_no_other_file(tmp_path):
    write_completions(tmp_path / "samples" / "before", shown(["no"]), [[thumbnail(PICTURE)]])
    boxes = [{"gold": [(0.0, 0.0, 1.0, 1.0)], "said": []}]
    write_completions(tmp_path / "samples" / "after", shown(["yes"]), [[thumbnail(PICTURE)]], boxes)
    (tmp_path / "summary.json").write_text(
        json.dumps(
            {
                "eval": {
                    "before": {},
                    "after": {"task": {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 9}},
                    "difference": {},
                },
                "blind": {"task": {"mean": 0.25, "low": 0.2, "high": 0.3, "n": 9}},
            }
        )
    )
    html = write_report(tmp_path).read_text()
    sources = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', html)
    assert len(sources) == html.count("<img") == 2
    pictures = [np.asarray(Pil.open(BytesIO(b64decode(source)))) for source in sources]
    assert [picture.shape for picture in pictures] == [(80, 160, 3)] * 2
    assert (pictures[0] != pictures[1]).any()  # the box
    assert ">blind, after</th>" in html and "<span>0.250</span> <small>0.200 to 0.300</small>" in html
    assert len(html) < 30_000


def test_a_missing_thumbnail_is_named(tmp_path):
    write_completions(tmp_path / "after", shown(["yes"]), [[PICTURE]])
    (tmp_path / "after" / "000-0.jpg").unlink()
    assert "(after/000-0.jpg is missing)" in completions_html(tmp_path)


def test_pictures_are_no_completions(tmp_path):
    with pytest.raises(TypeError, match="Image"):
        write_completions(tmp_path / "a", Shown([Prompt("x")], [Image(torch.zeros(3, 2, 2))], [{}]), [[]])


def test_sounds_and_transcripts_are_written_where_there_are_some(tmp_path):
    sound = Audio(torch.zeros(1, 800), 1600)
    heard = Shown([Prompt("say it", id="a")], [sound], [{}])
    write_sounds(tmp_path / "bare", heard, [Sound(b"x", ".wav")])
    write_sounds(
        tmp_path / "all", heard, [Sound(b"x", ".wav")], [[PICTURE]], [[("equal", "it", "it")]], transcripts=["it"]
    )
    (bare,), (whole,) = rows(tmp_path / "bare.jsonl"), rows(tmp_path / "all.jsonl")
    assert (bare["media"], bare["aligned"], bare["completion"], bare["seconds"]) == ([], [], "", 0.5)
    assert (whole["media"], whole["aligned"]) == (["all/000-0.jpg"], [["equal", "it", "it"]])
    assert (whole["completion"], whole["sound"]) == ("it", "all/000-said.wav")
    write_completions(tmp_path / "text", shown(["it"]), [[]], aligned=[[("equal", "it", "it")]])
    assert rows(tmp_path / "text.jsonl")[0]["aligned"] == [["equal", "it", "it"]]


def test_a_card_has_the_sides_that_there_are_and_says_what_cannot_be_seen(tmp_path):
    first = Prompt("one", id="a", task="t", answer={"wo": "dr\u00fcben"}, meta={"voice": "x"})
    heard = Prompt("two", id="b", task="t", meta={"voice": "x"})
    write_completions(tmp_path / "before", shown(["1"], [first]), [[]])
    write_completions(tmp_path / "after", shown(["2"], [heard]), [[Sound(b"x", ".wav")]])
    (section,) = sections(MediaFolder(tmp_path))
    one, two = section.cards
    assert [[side.title for side in card.sides] for card in (one, two)] == [["before"], ["after"]]
    assert one.reference == '{"wo": "dr\u00fcben"}' and two.reference is None
    assert (one.facts, two.facts) == (["t"], ["t", "voice x"])
    assert (section.total, section.aligned, section.box_colours) == (2, False, {})
