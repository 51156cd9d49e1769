"""What the tab Visual shows: cards, tables, the best of n, and the events of its buttons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import visual
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened
from mmgrpo.cli.demo.visual_cards import best_text, cards, escaped, rewards_table, status
from mmgrpo.cli.demo.visual_samples import Comparison
from tests.journeys.cli.demo.painting import EVIL, drawn, painters

# ---- mark-up


def hostile() -> Comparison:
    """Samples whose names and reasons are mark-up."""
    last = drawn(2)
    sides = {s: [replace(one, values={EVIL: 1.0}) for one in samples] for s, samples in last.sides.items()}
    return replace(last, sides=sides, weights={EVIL: 1.0}, failures={EVIL: EVIL}, trained="12")


def test_no_text_becomes_mark_up_or_a_template():
    assert not set(escaped(EVIL)) & set("<>{}$\"'")
    made = hostile()
    pieces = [cards(made, AFTER, 0), rewards_table(made, {BEFORE: 0, AFTER: 1}), best_text(made, EVIL, 2)]
    for piece in (*pieces, visual.how_to(EVIL), status(None, EVIL)):
        assert "onerror" in piece and "<img src=x" not in piece
        assert not set(piece) & set("{}$")


# ---- the tab


def results(opened: Opened, *inputs: Any) -> list[tuple[Any, ...]]:
    """All that the event of a button yields."""
    return list(visual.run(opened, *inputs))


@pytest.mark.parametrize("name", ["b", "../../etc/passwd", "", "embedded: visual/demo"])
def test_models_that_are_not_open_are_refused(name):
    with pytest.raises(gr.Error, match="not open"):
        results(painters(), name, "a wall", None, 3, 2)
    with pytest.raises(gr.Error, match="not open"):
        visual.offer(painters(), name)


def test_errors_are_one_line_without_mark_up():
    opened = painters()
    with pytest.raises(gr.Error) as error:
        results(opened, "a", f"unreadable\n {EVIL}", None, 3, 2)
    text = str(error.value)
    assert "read" in text and "<img" not in text and "\n" not in text
    with pytest.raises(gr.Error, match="the prompt is empty"):
        results(opened, "a", None, None, 3, 2)
    assert not opened.lock.locked()


def test_a_card_shows_the_samples_of_its_noise_of_both_models():
    last = drawn(3)
    slider, alone, *_, table, base, trained = visual.choose(last, {"sample": 2})
    assert len(slider["value"]) == 2 and slider["visible"] and not alone["visible"]
    assert "base #3" in table and "trained #3" in table
    assert all('data-sample="2" aria-pressed="true"' in text for text in (base, trained))


@pytest.mark.parametrize("event", [None, {}, {"sample": -1}, {"sample": "0"}, {"sample": [0]}, "0"])
def test_an_event_that_names_no_sample_changes_nothing(event):
    assert all(value == gr.skip() for value in visual.choose(drawn(2), event))
    assert all(value == gr.skip() for value in visual.choose(None, {"sample": 0}))


def test_without_models_the_tab_says_what_to_do():
    with gr.Blocks(analytics_enabled=False) as page:
        visual.tab(Opened({}, {}, Path("votes.jsonl")))
    (text,) = [part["props"]["value"] for part in page.config["components"] if part["type"] == "markdown"]
    assert "mmgrpo train" in text and not page.config.get("dependencies", [])
