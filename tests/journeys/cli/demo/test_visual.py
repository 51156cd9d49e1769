"""The tab Visual: prompts, cards, the change of rewards, the best of n, and what its events answer."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from PIL import Image as Pil

from mmgrpo.cli.demo import visual
from mmgrpo.cli.demo.compare import Comparison, Side, status_of
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened
from mmgrpo.cli.demo.visual import Drawn, Sample, command, prompt_of, rewards_table
from mmgrpo.types import Image, Media, Prompt, Text, Turn
from tests.journeys.cli.demo.fakes import NAN, drawn, painters, pair


def comparison(before: Any, after: Any = None, *, scored: int = 2, weight: float = 1.0, **changes: Any) -> Drawn:
    """Samples with the values of the reward r."""
    columns = {BEFORE: before} | ({AFTER: after} if after is not None else {})
    sides = {
        name: Side([Text("x")] * len(column), [{"r": value} for value in column] if place < scored else [])
        for place, (name, column) in enumerate(columns.items())
    }
    made = Comparison("a", Prompt("a <prompt>"), 7, len(before), [*columns], "model", sides, {"r": weight})
    samples = {name: [Sample(Pil.new("RGB", (8, 8)))] * len(column) for name, column in columns.items()}
    return Drawn(replace(made, **changes), samples)


# ---- prompts

FRAME = Turn("user", (Media("image", "a.png"), "a"))


def test_a_text_is_the_held_out_prompt_or_what_its_words_say():
    known = Prompt("a cat", "7", answer="cat")
    assert prompt_of(pair(prompts=[Prompt("b"), known]), " a cat ") is known
    assert prompt_of(pair(), "a cat") == Prompt("a cat", "demo")
    assert prompt_of(pair(rewards=["scene_all"]), "a red circle").answer["things"] == [[1, "red", "circle"]]
    moving = "a red circle moves up fast"
    assert prompt_of(pair(rewards=["scene_all", "film_all"]), moving) == Prompt(moving, "demo")
    for rewards in (["film_all"], ["jpeg_compressibility", "film_all"]):
        assert prompt_of(pair(rewards=rewards), moving).answer == [[1, "red", "circle", "up", "fast"]]
    assert prompt_of(pair(rewards=["jpeg_compressibility"]), "a red circle").answer is None
    own = Prompt("a", turns=(FRAME,))
    assert prompt_of(pair("wan_i2v", prompts=[own]), "a") is own


@pytest.mark.parametrize(
    ("family", "text", "image", "words"),
    [
        ("sd3", " ", "", "the prompt is empty"),
        ("sd3", "x" * 2001, "", "2,001 characters.*2,000"),
        ("sd3", "a", "a.png", "'sd3'"),
        ("wan_i2v", "a", "", "'wan_i2v'"),
    ],
)
def test_what_cannot_be_drawn_is_said(family: str, text: str, image: str, words: str):
    with pytest.raises(ValueError, match=words):
        prompt_of(pair(family), text, image)


def test_an_upload_is_the_image_of_the_prompt_where_a_family_takes_one(tmp_path):
    Pil.new("RGB", (8, 4), "red").save(tmp_path / "a.png")
    for name in ("wan_i2v", "flux_kontext"):
        made = prompt_of(pair(name), "go", str(tmp_path / "a.png"))
        (upload,) = made.media
        assert isinstance(upload.source, Image) and upload.source.pixels[:, 0, 0].tolist() == [1, 0, 0]
        assert made.turns[0].parts[1] == made.text == "go"
    assert not prompt_of(pair("flux_kontext"), "a wall").media


@pytest.mark.parametrize(
    ("trained", "options"), [("model", " --before"), ("50", " --weights 50 --before"), ("", " --weights untrained")]
)
def test_the_command_draws_the_same_samples(trained: str, options: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = comparison((1.0, 2.0), trained=trained, prompt=Prompt("it's"))
    assert command(pair(), made) == ""
    for run, name in ((tmp_path / "runs" / "a b", "'runs/a b'"), (Path("/else/where"), "/else/where")):
        words = """--seed 7 --prompts 'it'"'"'s' 'it'"'"'s'"""
        assert command(pair(run=run), made) == f"mmgrpo sample --run {name}{options} {words}"


# ---- samples and their rewards


@pytest.mark.parametrize(
    ("values", "count", "weight", "found"),
    [
        ((1.0, 3.0, 2.0), 3, 1, (1, 3.0)),
        ((1.0, 3.0, 2.0), 1, 0, (0, 1.0)),
        ((1.0, 3.0, 0.0), 3, -0.5, (2, 0.0)),
        ((2.0, 2.0), 2, 1, (0, 2.0)),
        ((NAN, 1.0), 2, 1, (1, 1.0)),
        ((NAN, 1.0), 1, -1, None),
    ],
)
def test_the_best_is_the_first_of_the_highest_or_of_the_lowest_where_training_lowers(values, count, weight, found):
    one = comparison(values, weight=weight)
    assert one.best(BEFORE, "r", count) == found
    text = visual.best_text(one, "r", 2)
    assert text.startswith(f"<p>r, {'lowest' if weight < 0 else 'best'} of the first 2: base <b>")


def test_the_table_of_the_chosen_samples_has_the_difference_and_the_failures():
    text = rewards_table(comparison((1.0, 2.0), (3.0, 5.0)), {BEFORE: 1, AFTER: 0})
    assert re.findall(r'<th scope="col">([^<]*)</th>', text) == ["reward", "base #2", "trained #1", "change"]
    assert "<td>2</td><td>3</td>" in text and '<span class="good">+1</span>' in text
    alone = rewards_table(comparison((1.0,), (2.0,), scored=1), {BEFORE: 0, AFTER: 0})
    assert "change" not in alone and "trained #" not in alone
    assert rewards_table(None, {}) == "" == rewards_table(comparison((1.0,)), {})
    failed = rewards_table(drawn(2), {BEFORE: 1, AFTER: 1})
    assert failed.count(">failed</span></td>") == 4 and "<li><b>missing</b> failed: not there</li>" in failed
    assert failed.count("<small>trained on</small>") == 1 and "<img src=x" not in failed


# ---- the tab


def results(opened: Opened, *inputs: Any) -> list[tuple[Any, ...]]:
    """The comparisons that the button draws, and what the tab shows of them."""
    return list(visual.draw(opened, *inputs))


def test_samples_appear_batch_by_batch_and_at_last_the_choice_of_the_best():
    steps = results(painters(), "a", "a wall", None, 3, 6)
    made = [step[0] for step in steps]
    assert [(one.drawn, one.done) for one in made] == [
        *((n, False) for n in (0, 4, 6, 6, 10, 12)),
        (12, True),
    ]
    *_, reward, _, first, winner, command = steps[-1]
    assert reward["value"] == "brightness" and first["maximum"] == 6 and "brightness, sample 1" in winner
    assert command == "" and "rewards follow" in steps[1][5] and "12 samples, seed 3" in status_of(made[-1])


def test_videos_have_players_and_a_model_alone_has_its_image():
    last = results(painters(videos=True), "a", "a wall", None, 3, 1)[-1]
    assert not last[2]["visible"] and last[3].count('src="data:video/mp4;base64,') == 2
    last = results(painters([BEFORE]), "a", "a wall", None, 3, 2)[-1]
    assert last[3].count("<img") == 1 and not last[2]["visible"] and "no trained model" in status_of(last[0])


def test_a_card_or_the_best_by_a_reward_is_shown_of_each_side():
    slider, large, table, base, trained = visual.choose(drawn(3), {"sample": 2})
    assert len(slider["value"]) == 2 and slider["visible"] and large == ""
    assert "base #3" in table and "trained #3" in table
    assert all('data-sample="2" aria-pressed="true"' in text for text in (base, trained))
    for event in (None, {}, {"sample": -1}, {"sample": "0"}, "0"):
        assert all(value == gr.skip() for value in visual.choose(drawn(2), event))
    one = comparison((1.0, 3.0), (4.0, 2.0))
    shown = '<span class="rewards"><span class="trained"><span>r</span> <b>3</b></span></span>'
    assert visual.card_rewards(one, BEFORE, 1) == shown
    answer = visual.choose_best(one, "r", 2)
    assert "base #2" in answer[2] and "trained #1" in answer[2] and answer[5].startswith("<p>r, best of the first 2")
    down = visual.choose_best(comparison((1.0, 3.0), (4.0, 2.0), weight=-1.0), "r", 2)
    assert "base #1" in down[2] and "trained #2" in down[2]
    for none, reward in ((None, "r"), (one, None), (one, "other")):
        assert len(visual.choose_best(none, reward, 1)) == 6
