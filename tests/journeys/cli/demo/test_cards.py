"""Cards, tables and curves of the tab Visual, and the samples that they are of: numbers that one can check by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pil

from mmgrpo.cli.demo import visual, visual_samples
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.visual_cards import (
    best_text,
    change,
    curve,
    escaped,
    rewards_table,
)
from mmgrpo.cli.demo.visual_samples import Comparison, Sample, best, command, prompt_of, score, shown
from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Media, Prompt, Text, Turn, Video
from tests.journeys.cli.demo.told import pair

NAN = math.nan


def samples(*values: float, name: str = "r", clip: bytes = b"") -> list[Sample]:
    return [Sample(Pil.new("RGB", (8, 8)), clip, {name: value}) for value in values]


def comparison(before: Any, after: Any = None, *, scored: Any = None, **changes: Any) -> Comparison:
    """Samples with the values of the reward r, by which is trained."""
    sides = {BEFORE: samples(*before)} | ({AFTER: samples(*after)} if after is not None else {})
    made = Comparison("p", "a <prompt>", 7, len(before), (BEFORE, AFTER)[: 1 + (after is not None)], sides)
    made = replace(made, scored=tuple(sides) if scored is None else scored, weights={"r": 1.0}, trained="model")
    return replace(made, **changes)


# ---- samples


@pytest.mark.parametrize(
    ("values", "count", "lowest", "found"),
    [
        ((1.0, 3.0, 2.0), 3, False, (1, 3.0)),
        ((1.0, 3.0, 2.0), 1, False, (0, 1.0)),
        ((1.0, 3.0, 0.0), 3, True, (2, 0.0)),
        ((2.0, 2.0), 2, False, (0, 2.0)),
        ((2.0, 2.0), 2, True, (0, 2.0)),
        ((NAN, 1.0), 2, False, (1, 1.0)),
        ((NAN, 1.0), 1, True, None),
        ((), 3, False, None),
    ],
)
def test_the_best_is_the_first_of_the_highest_or_the_lowest(values, count: int, lowest: bool, found):
    assert best(samples(*values), "r", count, lowest) == found
    assert best(samples(1.0, 5.0, 2.0), "r", 3) == (1, 5.0) and best(samples(1.0), "other", 1) is None


def painter(rewards: tuple[str, ...] = (), heldout: tuple[Prompt, ...] = (), family: str = "sd3") -> Pair:
    one = pair("p", family, list(rewards))
    one.__dict__["_heldout"] = list(heldout)
    return one


FRAME = Turn("user", (Media("image", "a.png"), "a"))


def test_a_text_is_the_held_out_prompt_or_what_its_words_say():
    known = Prompt("a cat", "7", answer="cat")
    assert prompt_of(painter(heldout=(Prompt("b"), known)), " a cat ") is known
    assert prompt_of(painter(), "a cat") == Prompt("a cat", "demo")
    assert prompt_of(painter(("scene_all", "film_all")), "a red circle").answer is not None
    assert prompt_of(painter(("scene_all", "film_all")), "no scene at all") == Prompt("no scene at all", "demo")
    film = "a red circle moves up fast"
    assert prompt_of(painter(("scene_all", "film_all")), film) == Prompt(film, "demo")
    assert prompt_of(painter(("film_all",)), film).answer == [[1, "red", "circle", "up", "fast"]]
    assert prompt_of(painter(("jpeg_compressibility",)), "a red circle") == Prompt("a red circle", "demo")
    own = Prompt("a", turns=(FRAME,))
    assert prompt_of(painter(heldout=(own,), family="wan_i2v"), "a") is own
    assert len(prompt_of(painter(), "x" * 2000).text) == 2000


@pytest.mark.parametrize(
    ("family", "text", "picture", "words"),
    [
        ("sd3", " ", "", "the prompt is empty"),
        ("sd3", "x" * 2001, "", "2,001 characters.*2,000"),
        ("sd3", "a", "a.png", "'sd3'"),
        ("wan_i2v", "a", "", "'wan_i2v'"),
    ],
)
def test_what_cannot_be_drawn_is_said(family: str, text: str, picture: str, words: str):
    with pytest.raises(ValueError, match=words):
        prompt_of(painter(family=family), text, picture)


def test_words_of_films_are_no_answer_where_no_reward_is_of_films():
    film = "a red circle moves up fast"
    assert prompt_of(painter(("jpeg_compressibility", "brightness")), film) == Prompt(film, "demo")
    assert prompt_of(painter(("jpeg_compressibility", "film_all")), film).answer is not None


def test_an_upload_is_the_picture_of_the_prompt(tmp_path):
    Pil.new("RGB", (8, 4), "red").save(tmp_path / "a.png")
    made = prompt_of(painter(family="wan_i2v"), "go", str(tmp_path / "a.png"))
    (upload,) = made.media
    assert isinstance(upload.source, Image)
    assert made.text == "go" and upload.source.pixels.shape == (3, 4, 8) and made.turns[0].parts[1] == "go"


@pytest.mark.parametrize(("count", "seed"), [(0, 0), (17, 0), (1, -1), (1, 2**32)])
def test_counts_and_seeds_have_limits(count: int, seed: int):
    with pytest.raises(ValueError, match=r"samples.*\d+.*1.*16|seed.*0.*4294967295"):
        next(visual_samples.draw_sides(Opened({}, {}, Path("v")), "p", Prompt("a"), seed, count))
    for good in ((1, 0), (16, 2**32 - 1)):
        with pytest.raises(KeyError):  # it goes on to the models
            next(visual_samples.draw_sides(Opened({}, {}, Path("v")), "p", Prompt("a"), good[1], good[0]))


def test_rewards_that_fail_have_reasons_and_others_their_values():
    def broken(prompts, outputs):
        raise RuntimeError("no\nluck")

    several = [
        Scorer("good", lambda prompts, outputs: [0.5, math.inf][: len(outputs)]),
        Scorer("broken", broken),
        Scorer("later", lambda prompts, outputs: [1.0] * len(outputs)),
    ]
    columns, failures = score(several, Prompt("a"), [Text("x"), Text("y")])
    assert columns["good"][0] == 0.5 and math.isnan(columns["good"][1]) and columns["later"] == [1.0, 1.0]
    assert all(map(math.isnan, columns["broken"])) and [*failures] == ["broken"] and "no luck" in failures["broken"]


def test_small_pictures_are_enlarged_by_a_whole_factor():
    assert shown(Image(torch.zeros(3, 32, 16))).picture.size == (224, 448)
    assert shown(Image(torch.zeros(3, 150, 150))).picture.size == (300, 300)
    assert shown(Image(torch.zeros(3, 449, 449))).picture.size == (449, 449)
    film = shown(Video(torch.ones(3, 3, 32, 32), 8.0))
    assert film.picture.size == (448, 448) and film.clip[4:8] == b"ftyp" and film.picture.getextrema()[0] == (255, 255)
    with pytest.raises(TypeError, match="Text"):
        shown(Text("a"))


@pytest.mark.parametrize(
    ("trained", "options"),
    [("model", " --before"), ("50", " --weights 50 --before"), ("", " --weights untrained")],
)
def test_the_command_that_draws_the_same(trained: str, options: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn = comparison((1.0, 2.0), trained=trained)
    assert command(painter(), drawn) == ""
    for run, name in ((tmp_path / "runs" / "a b", "'runs/a b'"), (Path("/else/where"), "/else/where")):
        words = "--seed 7 --prompts 'a <prompt>' 'a <prompt>'"
        assert command(replace(painter(), run=run), drawn) == f"mmgrpo sample --run {name}{options} {words}"


# ---- mark-up


def test_texts_are_no_mark_up_and_no_template():
    assert escaped("<a>{b}$&") == "&lt;a&gt;&#123;b&#125;&#36;&amp;"
    assert visual.how_to("<a>").endswith("<pre>&lt;a&gt;</pre></details>") and visual.how_to("") == ""


@pytest.mark.parametrize(
    ("difference", "weight", "text"),
    [
        (0.5, 1.0, '<span class="good">+0.5</span>'),
        (-0.5, 1.0, '<span class="bad">-0.5</span>'),
        (0.5, -2.0, '<span class="bad">+0.5</span>'),
        (-0.5, -2.0, '<span class="good">-0.5</span>'),
        (0.5, 0.0, '<span class="good">+0.5</span>'),
        (5e-7, 1.0, '<span class="good">+5e-07</span>'),
        (-4e-7, 1.0, "4e-07"),
        (0.0, 1.0, "0"),
        (NAN, 1.0, "–"),
    ],
)
def test_a_change_is_good_where_training_wants_it(difference: float, weight: float, text: str):
    assert change(difference, weight) == text


def test_the_table_of_the_chosen_samples_has_the_difference():
    one = comparison((1.0, 2.0), (3.0, 5.0), weights={"r": 1.0, "s": 0.0}, failures={"s": "<why>"})
    text = rewards_table(one, {BEFORE: 1, AFTER: 0})
    assert re.findall(r'<th scope="col">([^<]*)</th>', text) == ["reward", "base #2", "trained #1", "change"]
    assert "<td>2</td><td>3</td>" in text and '<span class="good">+1</span>' in text
    assert text.count("<small>trained on</small>") == 1 and text.count("<td>failed</td>") == 2
    assert '<ul class="note"><li>s failed: &lt;why&gt;</li></ul>' in text
    alone = rewards_table(comparison((1.0,), (2.0,), scored=(BEFORE,)), {BEFORE: 0, AFTER: 0})
    assert "change" not in alone and "trained #" not in alone and "note" not in alone
    assert rewards_table(None, {}) == rewards_table(one, {}) == ""


def test_the_curve_of_the_best_of_n_rises_from_the_lowest_to_the_highest():
    text = curve(comparison((1.0, 3.0, 2.0), (2.0, 2.0, 5.0)), "r", 2)
    points = dict(re.findall(r'<polyline class="(\w+)" points="([^"]*)"', text))
    # 20 to 280 across for n = 1 to 3; 70 for the lowest, 1, to 20 for the highest, 5.
    assert points == {
        BEFORE: "20.0,70.0 150.0,45.0 280.0,45.0",
        AFTER: "20.0,57.5 150.0,57.5 280.0,20.0",
    }
    assert 'x1="150.0" x2="150.0"' in text and "n from 1 to 3: base from 1 to 3, trained from 2 to 5" in text
    assert '<text x="280" y="88" text-anchor="end">3</text>' in text
    assert "<span class=before>base</span><span class=after>trained</span>" in text
    assert curve(comparison((1.0,), (2.0,)), "r", 1) == curve(comparison((2.0, 2.0)), "r", 1) == ""
    assert curve(comparison((NAN, NAN)), "r", 1) == "" and "base from 1 to 2" in curve(
        comparison((NAN, 1.0, 2.0)), "r", 1
    )
    assert "base from 3 to 1" in curve(comparison((3.0, 1.0), weights={"r": -1.0}), "r", 1)


@pytest.mark.parametrize(("weight", "lowest"), [(-0.5, True), (0.0, False), (0.5, False)])
def test_the_best_is_the_lowest_of_what_training_lowers(weight: float, lowest: bool):
    one = comparison((3.0, 1.0, 4.0), weights={"r": weight})
    assert best_text(one, "r", 3).startswith(
        "<p>r, lowest of the first 3: base <b>1</b> (sample 2)"
        if lowest
        else "<p>r, best of the first 3: base <b>4</b>"
    )
    assert ("base from 3 to 1" if lowest else "base from 3 to 4") in curve(one, "r", 1)
    assert f"base #{2 if lowest else 3}" in visual.choose_best(one, "r", 3)[4]


# ---- what is shown large


def test_the_best_by_a_reward_is_shown_of_each_side():
    one = comparison((1.0, 3.0), (4.0, 2.0))
    answer = visual.choose_best(one, "r", 2)
    assert "base #2" in answer[4] and "trained #1" in answer[4] and answer[7].startswith("<p>r, best of the first 2")
    down = visual.choose_best(replace(one, weights={"r": -1.0}), "r", 2)
    assert "base #1" in down[4] and "trained #2" in down[4]
    unscored = visual.choose_best(comparison((NAN, NAN), (1.0, 2.0)), "r", 2)
    assert "base #1" in unscored[4] and "trained #2" in unscored[4]
    for drawn, reward in ((None, "r"), (one, None), (one, "other")):
        assert len(visual.choose_best(drawn, reward, 1)) == 8
