"""The tab Rewards: what can be named, read and computed, what attacks do, and that nothing else happens."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
import numpy as np
import pytest

from mmgrpo.cli import score as score_command
from mmgrpo.cli.demo import rewards, rewards_media
from mmgrpo.cli.demo import rewards_scoring as scoring
from mmgrpo.cli.demo.models import Opened
from mmgrpo.rewards import entries
from mmgrpo.types import Prompt, Text
from tests.journeys.cli.demo.uploads import HOSTILE, PICTURE


@pytest.fixture
def picture(tmp_path) -> str:
    """A picture as a file."""
    file = tmp_path / "a.png"
    file.write_bytes(rewards_media.png(rewards_media.to_pil(PICTURE)))
    return str(file)


@pytest.fixture
def opened(tmp_path) -> Opened:
    return Opened({}, {}, tmp_path / "votes.jsonl")


@pytest.fixture
def wired(opened):
    """The functions behind the controls, by the name of the function."""
    with gr.Blocks() as page:
        rewards.tab(opened)
    return page


def function(page, name):
    (found,) = [one for one in page.fns.values() if one.name == name]
    return found


def score(name, output, answer="", prompt="how many?"):
    return scoring.score_one(name, scoring.prompt_of(prompt, answer, ""), output, "cpu")


def test_values_are_those_of_the_command(picture, capsys):
    score_command.main(["--reward", "jpeg_compressibility", "--json", "--device", "cpu", picture])
    value = float(capsys.readouterr().out.split('"jpeg_compressibility": ')[1].split("}")[0])
    assert np.float32(score("jpeg_compressibility", rewards_media.read_upload(picture, "")).value) == value
    assert score("exact", Text("<answer>3</answer>"), "3").value == 1
    assert score("exact", Text("<answer>4</answer>"), "3").value == 0


def test_errors_are_one_line_without_mark_up():
    with pytest.raises(gr.Error) as caught, rewards.told():
        raise ValueError(f"first\nsecond {HOSTILE}")
    assert str(caught.value.message) == "first second &lt;img src=x onerror=alert(1)&gt;"


def test_values_come_one_by_one_and_others_can_come_between(wired, opened, picture):
    """Whoever cancels between two rewards waits for one; the lock is free whenever the page is updated."""
    names = ["jpeg_compressibility", "jpeg_incompressibility", "geneval"]
    steps = function(wired, "score").fn(picture, "", "a", "", "", names, progress=lambda *place, **words: None)
    tables = []
    for _, table in steps:
        assert opened.lock.acquire(blocking=False)
        opened.lock.release()
        tables.append(table)
    assert [table.count("<tr>") - 1 for table in tables] == [1, 2, 3] and "needs detector" in tables[-1]


def test_what_a_visitor_writes_is_what_rewards_read(wired, monkeypatch):
    read = []
    monkeypatch.setattr(
        scoring, "score_one", lambda name, prompt, *given: read.append(prompt) or scoring.Score(name, 1.0)
    )
    still = {"progress": lambda *place, **words: None}
    list(function(wired, "score").fn(None, "text", "how many?", "3", "count", ["exact"], **still))
    list(
        function(wired, "attack").fn(None, "text", "how many?", "3", "count", ["exact"], "padding", 1.0, None, **still)
    )
    assert read == [Prompt("how many?", "upload", 3, "count")] * 3
    read.clear()
    list(function(wired, "score").fn(None, "text", None, None, None, ["exact"], **still))
    list(function(wired, "attack").fn(None, "text", "a", None, None, ["exact"], scoring.SWAP, 1.0, "b", **still))
    assert read == [Prompt("", "upload"), Prompt("a", "upload"), Prompt("b", "upload")]
    with pytest.raises(gr.Error, match="got no other prompt"):
        list(function(wired, "attack").fn(None, "text", "a", "", "", ["exact"], scoring.SWAP, 1.0, None, **still))


def test_an_attack_shows_both_and_a_verdict(wired, picture):
    given = (picture, None, None, None, None, ["jpeg_compressibility"], "blur", 1.0, None)
    *_, (sides, table) = function(wired, "attack").fn(*given, progress=lambda *place, **words: None)
    assert sides.count("data:image/png") == 2 and "attacked: Gaussian blur" in sides
    assert "jpeg_compressibility rose under blur" in table
    assert list(function(wired, "again").fn(None, None, *given[2:])) == [(gr.skip(), gr.skip())]
    *_, live = function(wired, "again").fn(*given)
    assert live == (sides, table)


def test_the_example_is_scored_as_it_should(wired):
    file, _, asked, answer, names = function(wired, "take").fn()
    assert Path(file).is_file() and scoring.known(names) == names
    made = scoring.score_one(
        "scene_score", scoring.prompt_of(asked, answer, ""), rewards_media.read_upload(file, ""), "cpu"
    )
    assert made == scoring.Score("scene_score", 1.0)


def test_without_an_upload_the_page_says_what_to_do(wired):
    with pytest.raises(gr.Error, match="Upload"):
        next(function(wired, "score").fn(None, None, "", "", "", ["exact"]))
    shown, choices, attacks = function(wired, "look").fn(None, None)
    assert rewards.NOTHING in shown and len(choices["choices"]) == len(entries()) and attacks["value"] == "blur"
    assert function(wired, "look").fn(None, "hello")[2]["choices"] == ["padding", "prompt_swap"]


def test_an_attack_shows_values_as_they_come_and_at_last_the_verdict(wired, picture):
    places = []
    names = ["jpeg_compressibility", "jpeg_incompressibility"]
    given = (picture, None, None, None, None, names, "blur", 1.0, None)
    steps = list(function(wired, "attack").fn(*given, progress=lambda *place, **words: places.append(place)))
    tables = [table for _, table in steps]
    assert tables[0] == "<p class='mm-note'>scoring …</p>" and len({sides for sides, _ in steps}) == 1
    assert [table.count("<tr>") - 1 for table in tables[1:]] == [1, 2, 1, 2]
    assert ["<strong>" in table for table in tables] == [False, False, False, False, True]
    assert places == [((0, 2),), ((1, 2),)] * 2


def test_what_the_chosen_rewards_measure_is_told(wired):
    assert function(wired, "about").fn(["exact", "format"]) == scoring.manifest_html(["exact", "format"])
    assert function(wired, "about").fn([]) == ""
    with pytest.raises(gr.Error, match="reward of the list"):
        function(wired, "about").fn(["os:system"])


def test_what_was_uploaded_is_shown_with_the_rewards_and_attacks_of_its_kind(wired, picture, monkeypatch):
    monkeypatch.setattr(scoring, "in_cache", lambda name: False)  # another test may be downloading
    shown, choices, attacks = function(wired, "look").fn(picture, None)
    assert "<figcaption>your upload</figcaption>" in shown and shown.startswith("<div class='mm-sides'>")
    assert choices["choices"] == scoring.choices("Image") != scoring.choices()
    assert attacks["choices"] == ["blur", "noise", "jpeg", "texture", "prompt_swap"] and attacks["value"] == "blur"
    with pytest.raises(gr.Error, match="20,001 characters") as caught:
        function(wired, "look").fn(None, "x" * 20_001)
    assert not caught.value.print_exception
    with pytest.raises(gr.Error, match="Upload a file") as caught:
        rewards.upload(None, None)
    assert not caught.value.print_exception
