"""Paths through a clip, points on a thing, steps of reasoning."""

from __future__ import annotations

import json
import math

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.scoring import score_outputs
from mmgrpo.types import Prompt, Text
from reward_models.rules.paths import closeness, mean_over_common, mean_over_gold
from reward_models.rules.steps import is_complete, key_step_fraction
from reward_models.rules.tasks import TASKS

A, HALF = (0, 0, 10, 10), (5, 0, 15, 10)  # IoU 50 / 150


def value(task: str, answer, gold, **meta) -> float:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return TASKS[task](text, Prompt("follow it", "7", answer=gold, meta=meta), Text(text))


def test_missing_frames_count_over_gold_and_not_over_common():
    gold, prediction = {1: A, 2: A}, {2: HALF, 3: A}
    assert mean_over_gold(prediction, gold) == pytest.approx(1 / 3 / 2)
    assert mean_over_common(prediction, gold) == pytest.approx(1 / 3)
    assert mean_over_common({3: A}, gold) == 0
    assert mean_over_common({1: A, 2: HALF}, gold) == pytest.approx((1 + 1 / 3) / 2)


def test_paths_are_compared_frame_by_frame():
    gold = {"1": A, "2.5": A}
    assert value("tracking_frames", {"1": A, "2.5": HALF}, gold) == pytest.approx((1 + 1 / 3) / 2)
    assert value("tracking_frames", {"1.0": A}, gold) == 0.5
    assert value("tracking_frames", {"1": [1000, 0, 0, 0]}, gold) == 0
    assert value("tracking_frames", {"first": A}, gold) == 0
    assert value("tracking_frames", {"1": A, "2.5": [0, 0, 0, 0]}, gold) == value("tracking_frames", [A], gold) == 0
    both = {"coordinates": "relative_1000", "size": [10, 10]}
    assert value("tracking_frames", {"1": [0, 0, 1000, 1000], "2.5": [0, 0, 1000, 1000]}, gold, **both) == 1


def test_time_and_place_are_worth_one_half_each():
    gold = {"time": [4, 10], "boxes": {"4": A, "5": A}}
    assert value("spatio_temporal", {"time": [2, 8], "boxes": {"5": HALF}}, gold) == pytest.approx(0.25 + 1 / 6)
    assert value("spatio_temporal", {"time": [8, 2], "boxes": {"5": A}}, gold) == 0
    assert value("spatio_temporal", {"time": [4, 10]}, gold) == 0
    assert value("spatio_temporal", [[4, 10]], gold) == value("spatio_temporal", {"boxes": gold["boxes"]}, gold) == 0


def test_points_are_close_under_the_best_assignment():
    gold = [(0.0, 0.0), (100.0, 0.0), (0.0, 100.0)]
    assert closeness(gold[::-1], gold) == 1
    # every point 50 pixels off: exp(-1/2)
    assert closeness([(x + 30, y + 40) for x, y in gold], gold) == pytest.approx(math.exp(-0.5))
    assert closeness(gold[:2], gold) == 0
    assert closeness([(1e200, -1e200), *gold[1:]], gold) == 0


def test_a_region_is_its_box_and_its_points():
    gold = {"box": A, "positive_points": [[5, 5]] * 3, "negative_points": [[50, 50]] * 3}
    assert value("segmentation_points", gold | {"box": HALF}, gold) == pytest.approx(0.5 / 3 + 0.5)
    off = gold | {"positive_points": [[5, 55]] * 3}
    assert value("segmentation_points", off, gold) == pytest.approx(0.75 + 0.25 * math.exp(-0.5))
    assert value("segmentation_points", gold | {"positive_points": [[5, 5]] * 9}, gold) == 0
    assert value("segmentation_points", {"box": A}, gold) == value("segmentation_points", [A], gold) == 0
    away = gold | {"negative_points": [[50, 100]] * 3}
    assert value("segmentation_points", away, gold) == pytest.approx(0.75 + 0.25 * math.exp(-0.5))
    for key in gold:
        assert value("segmentation_points", {k: v for k, v in gold.items() if k != key}, gold) == 0
    for points, read in (([[5, 5]] * 6, 1), ([[5, 5]] * 7, 0), ([[5, 5], [5]], 0), (5, 0)):
        more = gold | {"positive_points": points}
        if read:
            assert value("segmentation_points", more, more) == 1
        else:
            assert value("segmentation_points", more, gold) == 0
    small = {"box": [0, 0, 0.5, 0.25], "positive_points": [[0.25, 0.125]] * 3, "negative_points": [[2.5, 1.25]] * 3}
    assert value("segmentation_points", small, gold, coordinates="relative_1", size=[40, 20]) == pytest.approx(1)


@pytest.mark.parametrize(
    ("task", "gold"),
    [
        ("tracking_frames", {}),
        ("tracking_frames", [A]),
        ("tracking_frames", {"1": [0, 0, 0, 0]}),
        ("spatio_temporal", {"time": [10, 4], "boxes": {"4": A}}),
        ("spatio_temporal", {"time": [4, 10], "boxes": {}}),
        ("spatio_temporal", [[4, 10], {"4": A}]),
        ("segmentation_points", {"box": A}),
    ],
)
def test_a_gold_answer_that_cannot_be_used_is_an_error_that_names_the_prompt(task, gold):
    with pytest.raises(ValueError, match="'7'.*answer"):
        value(task, "{}", gold)


STEPS = """### Image Description: a shop
### Rationales: add
### Step 1: There are three Apples.
### Step 2: Two more make five.
### The final answer is: 5"""


def test_key_steps_are_found_in_the_steps_only():
    prompt = Prompt(
        "how many?", "7", meta={"key_steps": [["three apples", "3 apples"], ["five", "5"], ["shop"], ["six"]]}
    )
    # "shop" stands in the description, "5" would have stood in the final answer too
    assert scorer("key_steps").fn([prompt] * 3, [Text(STEPS), Text(""), Text("three apples make five")]) == [0.5, 0, 0]
    for wrong in (None, [], [[]], [["a", ""]], "five", ["five"], [["a"], []], [["a"], {"b": 1}], [["a", 3]], 5):
        with pytest.raises(RuntimeError, match=r"'7'.*meta\.key_steps"):
            score_outputs([scorer("key_steps")], [Prompt("how many?", "7", meta={"key_steps": wrong})], [Text(STEPS)])


def test_key_steps_count_only_where_there_is_a_final_answer():
    prompt = Prompt("how many?", "7", meta={"key_steps": [["three apples"], ["six"]]})
    unanswered = STEPS.replace("### The final answer is: 5", "")
    empty = STEPS.replace("is: 5", "is:")
    # one of two key steps; 0 without an answer (R1-VL, equation of StepRAR)
    assert scorer("key_steps").fn([prompt] * 3, [Text(STEPS), Text(unanswered), Text(empty)]) == [0.5, 0, 0]


@pytest.mark.parametrize(
    ("kind", "gold", "right", "wrong"),
    [
        ("choice", "B", "B", "A"),
        ("choice", "B", "B. two", "C. three"),
        ("numeric", 5, "5", "6"),
        ("numeric", 5, "5 apples.", "5 or 6 apples"),
        ("exact", "red", "Red.", "blue"),
        ("exact", "red", "\n red", "\n### red"),
    ],
)
def test_the_final_answer_of_the_format_of_r1_vl_is_judged_by_the_task_of_the_row(kind, gold, right, wrong):
    prompt = Prompt("which?", "7", answer=gold, task=kind)
    outputs = [Text(STEPS.replace("is: 5", f"is: {answer}")) for answer in (right, wrong, "")]
    assert scorer("task(tags='final_answer')").fn([prompt] * 3, outputs) == [1, 0, 0]
    assert scorer(f"{kind}(tags='final_answer')").fn([prompt] * 3, outputs) == [1, 0, 0]
    row = Prompt("which?", "7", answer=gold, task=kind, meta={"tags": "final_answer"})
    assert scorer("task").fn([row] * 3, outputs) == [1, 0, 0]
    # the answer is what follows the heading: tags are not read, and a repeated heading is read at its last place
    assert scorer("task").fn([prompt], outputs[:1]) == [0]
    assert scorer("task(tags='final_answer')").fn([prompt], [Text(f"<answer>{right}</answer>")]) == [0]
    twice = Text(f"### The final answer is: {wrong}\n### The final answer is: {right}")
    assert scorer("task(tags='final_answer')").fn([prompt], [twice]) == [1]


def test_a_key_step_is_any_of_its_phrases_in_a_numbered_step():
    text = "### Step 1: A and b\n### Other: c\n### Step 2: d"
    assert key_step_fraction(text, [["x", "a AND B"], ["c"], ["d", "e"]]) == pytest.approx(2 / 3)
    assert key_step_fraction("a", [["a"]]) == 0


@pytest.mark.parametrize(
    "part", ["### Image Description:", "### Rationales:", "### Step 1:", "### The final answer is:"]
)
def test_no_part_of_a_completion_may_be_missing(part):
    assert is_complete(STEPS) and not is_complete(STEPS.replace(part, ""))
    assert not is_complete(STEPS.replace("### Step 1:", "### Step 0:\n### Step 1:"))


def test_step_accuracy_is_the_answer_and_a_tenth_of_the_key_steps():
    prompt = Prompt("how many?", "7", answer=5, task="numeric", meta={"key_steps": [["three apples"], ["six"]]})
    rewards = [scorer(name) for name in ("task(tags='final_answer')", "key_steps(weight=0.1)", "step_order")]
    verdict = score_outputs(rewards, [prompt] * 2, [Text(STEPS), Text(STEPS.replace("is: 5", "is: 6"))])
    weights = [reward.weight for reward in rewards]
    # 1 + 0.1 * 1/2 + 1, and without the right answer 0 + 0.05 + 1
    totals = [sum(w * v for w, v in zip(weights, row)) for row in verdict.values.tolist()]
    assert totals == pytest.approx([2.05, 1.05])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STEPS, 1),
        (STEPS.replace("Step 2", "Step 3"), 0),
        (STEPS.replace("### Rationales: add\n", ""), 0),
        (STEPS + "\n### Step 3: or six", 0),
        (STEPS.replace("### Step 2: Two more make five.\n", ""), 1),
        ("", 0),
    ],
)
def test_steps_are_in_order_and_the_answer_is_last(text, expected):
    assert scorer("step_order").fn([Prompt("how many?", "7")], [Text(text)]) == [expected]
