"""What the tab Visual shows: cards, tables, the best of n, and the events of its buttons."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from mmgrpo.cli.demo import visual
from mmgrpo.cli.demo.opened import AFTER, BEFORE, Opened
from mmgrpo.cli.demo.visual_cards import best_text, cards, curve, escaped, rewards_table, status, title
from mmgrpo.cli.demo.visual_samples import Comparison, draw_sides
from mmgrpo.types import Prompt
from tests.cli.demo.painting import EVIL, drawn, painters

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


def test_cards_are_buttons_of_which_one_is_pressed_with_rewards_under_them():
    last = drawn(3)
    text = cards(last, AFTER, 1)
    assert text.count('<button type="button" class="card"') == 3
    assert 'data-sample="1" aria-pressed="true"' in text and text.count('aria-pressed="true"') == 1
    assert text.count('alt="sample ') == 3 and "data:image/webp;base64," in text
    assert text.count(">failed</span>") == 6 and 'title="not there"' in text  # two rewards of three samples
    assert "<b>–</b>" in text and "<b>0.24</b>" in text
    assert cards(last, "nobody", 0) == cards(None, AFTER, 0) == ""
    first = next(draw_sides(painters(), "a", Prompt("a wall"), 3, 6))
    assert "2 more to draw" in cards(first, BEFORE, 0) and "rewards follow" in cards(first, BEFORE, 0)


def test_clips_play_in_their_cards():
    text = cards(drawn(1, painters(clips=True)), AFTER, 0)
    assert "data:video/mp4;base64," in text and "<video" in text and "<img" not in text


def test_the_table_says_whether_a_change_is_what_training_wants():
    last = drawn(2)
    table = rewards_table(last, {BEFORE: 1, AFTER: 1})
    assert "<td>0.14</td><td>0.24</td>" in table and '<span class="good">+0.1</span>' in table
    darker = replace(last, weights={"brightness": -1.0})
    assert '<span class="bad">+0.1</span>' in rewards_table(darker, {BEFORE: 1, AFTER: 1})
    assert table.count("trained on") == 1 and "broken failed:" in table
    assert "change" not in rewards_table(last, {BEFORE: 1}) and rewards_table(None, {BEFORE: 1}) == ""


def test_the_best_of_n_is_told_and_drawn():
    last = drawn(3)
    words = "best of the first 3: base <b>0.15</b> (sample 3), trained <b>0.25</b> (sample 3)"
    assert words in best_text(last, "brightness", 3)
    lowest = replace(last, weights={"brightness": -1.0})
    assert "lowest of the first 3: base <b>0.14</b> (sample 2)" in best_text(lowest, "brightness", 3)
    assert "sample 1 alone: base <b>none</b> could be scored" in best_text(last, "brightness", 1)
    drawing = curve(last, "brightness", 2)
    # n = 2 and 3 of 1 to 3; 0.14 and 0.15 of 0.14 to 0.25.
    assert '<polyline class="before" points="150.0,70.0 280.0,65.5"/>' in drawing
    assert "base from 0.14 to 0.15, trained from 0.24 to 0.25" in drawing
    assert curve(last, "broken", 2) == curve(drawn(1), "brightness", 1) == "" and best_text(last, "nobody", 1) == ""


def test_a_run_that_goes_on_is_named_by_its_step():
    last = drawn(1)
    assert title(AFTER, replace(last, trained="1200")) == "trained, step 1,200" and title(AFTER, last) == "trained"


# ---- the tab


def results(opened: Opened, *inputs: Any) -> list[tuple[Any, ...]]:
    """All that the event of a button yields."""
    return list(visual.run(opened, *inputs))


def test_every_result_of_a_run_has_all_outputs():
    steps = results(painters(), "a", "a wall", None, 3, 5)
    assert {len(step) for step in steps} == {14} and len(steps) == 1 + 6
    assert "Loading the model" in steps[0][1] and "10 samples, seed 3, noise 1 to 5" in steps[-1][1]
    reward, first = steps[-1][9], steps[-1][11]
    assert reward["value"] == "brightness"
    assert reward["choices"] == ["brightness", "broken", "missing"]
    assert first["maximum"] == 5


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


def test_a_place_beyond_the_samples_shows_none():
    slider, *_ = visual.choose(drawn(2), {"sample": 99})
    assert slider["value"] is None


def test_the_best_samples_of_both_models_are_shown_though_their_noise_differs():
    last = drawn(3)
    values = zip(last.sides[AFTER], (9.0, 1.0, 2.0), strict=True)
    after = [replace(one, values={"brightness": value}) for one, value in values]
    *_, base, trained, words = visual.choose_best(replace(last, sides={**last.sides, AFTER: after}), "brightness", 3)
    assert 'data-sample="2" aria-pressed="true"' in base and 'data-sample="0" aria-pressed="true"' in trained
    assert "trained <b>9</b> (sample 1)" in words
    assert all(value == gr.skip() for value in visual.choose_best(last, "nobody", 2))


def test_a_clip_is_a_file_in_the_cache_of_gradio_and_a_picture_none(tmp_path, monkeypatch):
    from gradio.utils import get_upload_folder

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    *_, last = draw_sides(painters(clips=True), "a", Prompt("a"), 1, 1)
    slider, alone, before, after, *_ = visual.view(last, {BEFORE: 0, AFTER: 0})
    assert not slider["visible"] and not alone["visible"] and before["visible"] and after["visible"]
    assert Path(after["value"]).is_relative_to(Path(get_upload_folder()).resolve())
    assert Path(after["value"]).read_bytes() == last.sides[AFTER][0].clip
    assert visual.film(drawn(1).sides[AFTER][0])["value"] is None


def test_the_base_alone_is_no_slider():
    slider, alone, *_ = visual.view(drawn(1, painters([BEFORE])), {BEFORE: 0})
    assert not slider["visible"] and alone["visible"] and alone["value"] is not None


def test_the_tab_has_labels_ids_and_private_events():
    with gr.Blocks(analytics_enabled=False) as page:
        visual.tab(painters())
    parts = {part["props"].get("elem_id"): part["props"] for part in page.config["components"]}
    for name in ("model", "example", "prompt", "picture", "count", "seed", "slider", "alone", "reward", "best"):
        assert parts[f"visual-{name}"]["label"], name
    assert {"visual-generate", "visual-again", "visual-cancel", "visual-before", "visual-after"} <= set(parts)
    events = page.config.get("dependencies", [])
    assert events and all(event["api_visibility"] == "private" for event in events)
    (cancel,) = [event for event in events if event["cancels"]]
    button = {part["id"]: part["props"].get("elem_id") for part in page.config["components"]}
    triggers = {event["id"]: [button.get(target) for target, _ in event["targets"]] for event in events}
    assert [triggers[one] for one in cancel["cancels"][:2]] == [["visual-generate"], ["visual-prompt"]]
    drawing = [event for event in events if event["id"] in cancel["cancels"]]
    assert {event["trigger_mode"] for event in drawing} == {"multiple"}
    (following,) = [event for event in drawing if event["id"] == cancel["cancels"][2]]
    assert triggers[following["trigger_after"]] == ["visual-again"]


def test_held_out_prompts_are_offered_once_each_and_the_first_is_filled_in():
    opened = painters(pictures="optional")
    opened.pairs["a"].__dict__["_heldout"] = [Prompt("b"), Prompt("a"), Prompt("b", "again")]
    choices = [("b", "b"), ("a", "a")]
    assert visual.start(opened, "a") == (choices, "b", True)
    offered, last, text, picture = visual.offer(opened, "a")
    assert (offered["choices"], offered["value"], last, text) == (choices, None, None, "b")
    assert (picture["value"], picture["visible"]) == (None, True)
    with gr.Blocks(analytics_enabled=False) as page:
        visual.tab(opened)
    found = {str(getattr(one, "elem_id", "")): one for one in page.blocks.values()}
    assert (found["visual-example"].choices, found["visual-prompt"].value) == (choices, "b")
    assert found["visual-picture"].visible
    opened.pairs["a"].__dict__["_heldout"] = []
    assert visual.start(opened, "a")[:2] == ([], "") and visual.start(painters(), "a")[2] is False


def test_a_run_tells_how_far_it_is():
    told: list[Any] = []

    class Bar(gr.Progress):
        def __call__(self, progress: Any, *rest: Any, **words: Any) -> None:
            told.append(progress)

    list(visual.run(painters(), "a", "a wall", None, None, 2, Bar()))
    assert told == [(2, 4), (2, 4), (4, 4), (4, 4)]
    first, *_, last = results(painters(), "a", "a wall", None, None, 2)
    assert all(part == gr.skip() for part in first[2:]) and "seed 0, noise 1 to 2" in last[1]
    assert 'data-sample="0" aria-pressed="true"' in last[7] and 'data-sample="0" aria-pressed="true"' in last[8]


def test_what_is_drawn_before_the_rewards_offers_no_choice_of_the_best():
    _, *steps = results(painters(), "a", "a wall", None, 3, 2)
    assert [all(part == gr.skip() for part in step[9:]) for step in steps] == [True, True, True, False]


def test_where_nothing_was_drawn_the_page_says_so_before_the_error():
    steps = visual.run(painters(), "a", "unreadable", None, 3, 2)
    next(steps)
    drawn_, said, *others = next(steps)
    assert said == status(None, "Nothing was drawn.") and len(others) == 12
    assert all(part == gr.skip() for part in (drawn_, *others))
    with pytest.raises(gr.Error, match="read") as error:
        next(steps)
    assert not error.value.print_exception


def test_one_sample_leaves_nothing_to_choose_the_best_of():
    opened = painters()
    best_by, last_by, first, words, how = visual.finished(opened, drawn(1, opened))
    assert (best_by["value"], last_by) == ("brightness", "brightness") and "sample 1 alone" in words and how == ""
    assert (first["maximum"], first["value"], first["interactive"]) == (2, 1, False)
    first = visual.finished(opened, drawn(2, opened))[2]
    assert (first["maximum"], first["value"], first["interactive"]) == (2, 1, True)
    nothing = replace(drawn(2, opened), weights={})
    assert visual.finished(opened, nothing)[1] is None and visual.finished(opened, nothing)[3] == ""
    telling = replace(drawn(3, opened), weights={"broken": 1.0, "brightness": 1.0})
    assert visual.finished(opened, telling)[1] == "brightness"


def test_without_models_the_tab_says_what_to_do():
    with gr.Blocks(analytics_enabled=False) as page:
        visual.tab(Opened({}, {}, Path("votes.jsonl")))
    (text,) = [part["props"]["value"] for part in page.config["components"] if part["type"] == "markdown"]
    assert "mmgrpo train" in text and not page.config.get("dependencies", [])
