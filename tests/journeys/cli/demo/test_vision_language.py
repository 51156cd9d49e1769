"""The tab Vision-language: questions about images and videos, answers with their reasoning, boxes and rewards."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

from mmgrpo.cli.demo.compare import EXAMPLES, OWN, Examples
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened
from mmgrpo.cli.demo.vision_language import ask, prompt_of, split, system_of, tab
from mmgrpo.scoring import Scorer
from mmgrpo.types import Image, Prompt, Text, Turn
from tests.journeys.cli.demo.fakes import answering, broken, page, pair


@pytest.fixture
def image(tmp_path):
    file = tmp_path / "shapes.png"
    Pil.fromarray(np.full((40, 80, 3), 255, np.uint8)).save(file)
    return str(file)


@pytest.fixture
def heldout(tmp_path, image):
    rows = [{"text": f"how many {i}?<image>", "image": image, "answer": str(i), "task": "numeric"} for i in range(30)]
    (tmp_path / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "heldout.jsonl")


def asked(found: Opened, key=OWN, file=None, question="what?", answer="", task="", count=2, temperature=1.0, seed=3):
    """The last page of a question."""
    examples = Examples(found)
    fields = (key, file, question, answer, task, "absolute", count, temperature, seed)
    *_, (made, shown) = ask(found, examples, "a", *fields)
    assert made.done and made.doing == ""
    return shown


def sides(before: str, after: str, rewards=(), **seen):
    return answering(pair("qwen_vl", rewards), lambda i: Text(before, **seen), lambda i: Text(after, **seen))


@pytest.mark.parametrize(
    ("completion", "reasoning", "rest"),
    [
        ("<think>a < b</think> <answer>2</answer>", "a < b", "<answer>2</answer>"),
        ("<think>maybe <answer>1</answer></think>2", "maybe <answer>1</answer>", "2"),
        ("I count\ntwo. <answer>2</answer>", "I count\ntwo.", "<answer>2</answer>"),
        ("<answer>2</answer>", "", "<answer>2</answer>"),
        ("two", "", "two"),
        ("<think>without an end", "", "<think>without an end"),
    ],
)
def test_reasoning_is_the_thought_or_what_precedes_the_answer(completion, reasoning, rest):
    assert split(completion) == (reasoning, rest)


def test_answers_of_both_sides_appear_batch_by_batch():
    found, (base, trained) = sides("x", "y")
    steps = ask(found, Examples(found), "a", OWN, None, "what?", "", "", "absolute", 6, 0.5, 7)
    next(steps)
    assert not base.asked and not found.lock.locked()
    pages = [shown for _, shown in steps]
    assert [one[1:] for one in base.asked] == [(0, 4, 7, 0.5), (1, 2, 7, 0.5)] and base.asked == trained.asked
    assert (pages[0].count("<article>"), pages[-1].count("<article>")) == (4, 12)
    asked(found, count=9, temperature=0.0)
    assert base.asked[-1][2] == 1  # all are equal


def test_rewards_stand_under_each_answer_and_their_mean_above():
    one = pair("qwen_vl", ["task"])
    found, _ = answering(one, lambda i: Text(f"<answer>{i}</answer>"), lambda i: Text("<answer>1</answer>"))
    base, trained = asked(found, answer="1", task="numeric").split("<h3>Trained</h3>")
    assert [text.split("<")[0] for text in base.split("<b>")[2:]] == ["0.500", "0.000", "1.000"]
    assert trained.count("<b>1.000</b>") == 3 and "failed" not in base + trained


def test_rewards_that_fail_are_said_with_their_reasons():
    found, _ = sides("x", "y")
    rewards = [Scorer("partial", lambda prompts, outputs: [0.25, *[float("inf")] * 2]), Scorer("broken", broken)]
    found.rewards["a"] = rewards, {"absent": "not installed"}
    base = asked(found, count=3).split("<h3>Trained</h3>")[0]
    # The mean has two failed rewards, the answers two, three and three.
    assert base.count(">failed</span>") == 2 + 2 + 3 + 3 and base.count("partial <b>0.250</b>") == 2
    reasons = base.split('<ul class="note">')[1]
    assert all(f"<b>{name}</b> failed: " in reasons for name in ("absent", "broken", "partial"))
    assert "not installed" in reasons and "inf for 2 of 3" in reasons and "&lt;img" in reasons


def test_boxes_in_an_answer_are_drawn_into_an_upload(image):
    found, _ = sides("it is at [8, 10, 40, 20]", "in the middle", seen=((40, 80),))
    base, trained = asked(found, file=image, count=1).split("<h3>Trained</h3>")
    assert ("<img" in base, "<img" in trained) == (True, False)
    assert "; boxes: <b style=" in base.split("</p>")[0]


def test_examples_are_asked_as_they_are_or_as_the_visitor_changed_them(heldout):
    found, (base, _) = answering(
        pair("qwen_vl", prompts=None, heldout=heldout), lambda i: Text("x"), lambda i: Text("y")
    )
    examples = Examples(found)
    own = examples.of("a")
    assert [prompt.answer for prompt in own.values()][:2] + [list(own.values())[-1].answer] == ["0", "1", "29"]
    assert len(own) == EXAMPLES
    list(ask(found, examples, "a", "0", None, "how many 0?", "0", "numeric", "absolute", 1, 0.0, 0))
    assert base.asked[0][0] == own["0"]
    list(ask(found, examples, "a", "0", None, "how few?", "5", "numeric", "absolute", 1, 0.0, 0))
    other = base.asked[1][0]
    assert (other.text, other.answer, other.media) == ("how few?", 5, own["0"].media)
    assert other.turns[-1].parts[-1] == "how few?"


def test_an_upload_is_asked_with_the_system_turn_of_the_pair(image):
    system = Turn("system", ("Think first.",))
    prompt = prompt_of(None, image, "  where? ", "[1, 2]", "box_iou", "resized", (system,))
    assert (prompt.text, prompt.answer, prompt.task, prompt.turns[0]) == ("where?", [1, 2], "box_iou", system)
    assert prompt.meta == {"coordinates": "resized", "size": [40, 80]}
    assert isinstance(prompt.media[0].source, Image)
    example = Prompt("old", turns=(system, Turn("user", (prompt.media[0], "old"))))
    assert prompt_of(example, None, "new", "", "", "resized").turns[0] == system
    for prompts, turns in (([], ()), ([example, Prompt("r")], (system,))):
        found, _ = answering(pair("qwen_vl", prompts=prompts))
        assert system_of(Examples(found), "a") == turns


@pytest.mark.parametrize(
    ("name", "key", "changes", "expected"),
    [
        ("../../etc", OWN, {}, "model: got '../../etc'"),
        ("a", "../../etc/passwd", {}, "example: got '../../etc/passwd'"),
        ("a", OWN, {"question": "  "}, "question: got no text"),
        ("a", OWN, {"question": "x" * 4001}, "question: got 4,001 characters"),
        ("a", OWN, {"answer": "x" * 4001}, "reference answer: got 4,001"),
        ("a", OWN, {"count": 17}, "got 17"),
        ("a", OWN, {"count": 0, "temperature": 0.0}, "got 0"),
        ("a", OWN, {"temperature": 2.5}, "temperature: got 2.5"),
        ("a", OWN, {"seed": -1}, "seed: got -1"),
    ],
)
def test_what_the_page_does_not_offer_is_refused_before_a_model_is_loaded(name, key, changes, expected):
    found, _ = answering(pair("qwen_vl"))
    fields = {"question": "what?", "answer": "", "task": "", "coordinates": "absolute"}
    fields |= {"count": 1, "temperature": 1.0, "seed": 0} | changes
    with pytest.raises(ValueError) as error:
        next(ask(found, Examples(found), name, key, None, *fields.values()))  # type: ignore[arg-type]
    assert expected in str(error.value)


def test_a_run_that_was_not_trained_has_one_side():
    one = pair("qwen_vl", weights="")
    assert one.sides == (BEFORE,)
    found, _ = answering(one, lambda i: Text("x"))
    assert not found.holds("a", AFTER) and "Trained" not in asked(found)


def test_the_tab_offers_examples_and_shows_uploads(heldout, image, tmp_path):
    found, _ = answering(pair("qwen_vl", prompts=None, heldout=heldout))
    functions = page(tab, found)["functions"]
    example, first, question, answer, task, file, preview = functions["choose_pair"]("a")
    assert (first, question, answer, task, file) == ("0", "how many 0?", "0", "numeric", None)
    assert example.choices[0] == ("my own question", OWN) and example.choices[1][0].startswith("1. how many 0?")
    assert "<img" in preview and "<img" in functions["upload"](image)[-1]
    assert functions["upload"](None) == [OWN, OWN, "", "", ""]
    (broken := tmp_path / "a.png").write_text("no image")
    assert 'role="alert"' in functions["upload"](str(broken))[-1]
    shown = page(tab, Opened({}, {}, Path("votes.jsonl")))
    assert not shown["events"] and "mmgrpo train" in shown["texts"]
