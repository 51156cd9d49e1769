"""Tasks, looked up row by row."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from mmgrpo.rewards import scorer, scorers
from mmgrpo.scoring import score_outputs
from mmgrpo.scoring.manifest import obstacle
from mmgrpo.types import Image, Prompt, Text
from reward_models import REWARDS
from reward_models.rules import single
from reward_models.rules.tasks import MAXIMA, TASKS, one_task, reads_places, states_answers
from reward_models.rules.written import answer_forms

for package in ("math_verify", "pycocotools", "apted", "rapidfuzz"):
    pytest.importorskip(package)

BOX = [10, 20, 30, 40]
THINGS = [{"bbox_2d": BOX, "label": "cat"}]
TABLE = "<table><tr><td>a</td></tr></table>"
LATEX = r"\begin{tabular}{l|c} \hline red & cat \\ \hline \end{tabular}"
HOLD = {"x": 0.5, "y": 0.5, "width": 0.2, "height": 0.1}
PATH = {"1": BOX, "2": BOX}
REGION = {"box": BOX, "positive_points": [[20, 30]] * 3, "negative_points": [[1, 2]] * 3}
CLICK = {"action": "click", "box": BOX}
POINT = json.dumps({"action": "click", "point": [20, 30]})

TESTS = [{"call": "f", "arguments": [3], "expected": 9}]
ROW = {
    "size": [100, 100],
    "duration": 20,
    "schema": {"type": "object", "required": ["a"]},
    "checked": "Born in 1815, in Rome.",
    "script": "CREATE TABLE t (a); INSERT INTO t VALUES (1)",
}
"""Further keys that tasks read."""

HERE = [name for name in TASKS if not obstacle(cast(Any, REWARDS[name].read_manifest()))]
"""Tasks whose packages are installed."""

GOLD: dict[str, tuple] = {
    "exact": ("red", "Red"),
    "classification": ("red cat", "Red_Cat"),
    "classification_visual_rft": ("red cat", "Red_Cat"),
    "choice": ("B", "(B)"),
    "choices": ("A,C", "C, A"),
    "yes_no": ("yes", "Yes."),
    "numeric": (3, "3"),
    "numeric_video_r1": ("3.14", "3.14"),
    "regression": (3, "3"),
    "relative_accuracy": (3, "3"),
    "count_fuzzy": (3, "3"),
    "jaccard": ("a;b", "b;a"),
    "edit": ("red cat", "red cat"),
    "edit_ratio": ("red cat", "red cat"),
    "ocr_wer": ("red cat", "red cat"),
    "rouge": ("red cat", "Red cat"),
    "math": ("1/2", "0.5"),
    "teds": (TABLE, TABLE),
    "box_iou": (BOX, str(BOX)),
    "box_giou": (BOX, str(BOX)),
    "box_gui_g1": (BOX, str(BOX)),
    "point_in_box": (BOX, "(20, 30)"),
    "ui_r1": (CLICK, POINT),
    "gui_r1": (CLICK, POINT),
    "mobile_r1": (CLICK, POINT),
    "detection_visual_rft": ([BOX], json.dumps([{"Position": BOX, "Confidence": 1.0}])),
    "detection_ap": (THINGS, json.dumps(THINGS)),
    "detection_ap50": (THINGS, json.dumps(THINGS)),
    "detection_od_length": (THINGS, json.dumps(THINGS)),
    "detection_weighted": (THINGS, json.dumps(THINGS)),
    "temporal_iou": ([2, 8], "2 to 8"),
    "temporal_time_r1": ([2, 8], "2 to 8"),
    "temporal_multi": ([[2, 8]], "[(2, 8)]"),
    "tracking_iou": ([BOX, BOX], str([BOX, BOX])),
    "tracking_frames": (PATH, json.dumps(PATH)),
    "spatio_temporal": ({"time": [2, 8], "boxes": PATH}, json.dumps({"time": [2, 8], "boxes": PATH})),
    "segmentation_points": (REGION, json.dumps(REGION)),
    "ranking": ("B > A > C", "b > a > c"),
    "vlm_r1": ("red cat", "red cat"),
    "rouge_l": ("red cat", "Red cat"),
    "latex_structure": (LATEX, LATEX),
    "latex_picture": (LATEX, LATEX),
    "json_schema": (None, '{"a": 1}'),
    "json_fields": ({"a": 1, "b": 2}, '{"b": 2, "a": 1}'),
    "span_f1": (["in Rome"], '["in Rome"]'),
    "code": (TESTS, "def f(x): return x * x"),
    "code_share": (TESTS, "def f(x): return x * x"),
    "sql": ("SELECT a FROM t", "SELECT a FROM t"),
    "sql_partial": ("SELECT a FROM t", "SELECT a FROM t"),
    "maze": ("<|up|><|left|>", "<|up|> <|left|>"),
    "ton": ({"action": "click", "position": [0.2, 0.3]}, '{"action": "click", "position": [0.2, 0.3]}'),
    "affordance": (HOLD, json.dumps(HOLD)),
    "trajectory": ([[0.1, 0.2], [0.5, 0.5]], "[[0.1, 0.2], [0.5, 0.5]]"),
}
"""A gold answer of each task, and a perfect answer to it."""

HOSTILE = [
    "",
    " ",
    "\0",
    "a" * 30_000,
    "[" * 30_000,
    "9" * 30_000,
    "{}",
    "null",
    "[]",
    "[null]",
    "NaN",
    "🐈",
    "[1e999, 2]",
]


def row(name: str, **meta) -> Prompt:
    return Prompt("a question", "7", answer=GOLD[name][0], task=name, meta={**ROW, **meta})


@pytest.mark.parametrize("name", HERE)
def test_a_perfect_answer_gets_the_most_and_an_empty_one_nothing(name):
    best, completion = MAXIMA.get(name, 1.0), f"<think>hm</think><answer>{GOLD[name][1]}</answer>"
    values = scorer("task").fn(
        [row(name)] * 4, [Text(completion), Text(""), Text("<answer></answer>"), Text("<answer> </answer>")]
    )
    assert values == [pytest.approx(best), 0, 0, 0]
    assert scorer(name).fn([row(name)] * 2, [Text(completion), Text("")]) == [pytest.approx(best), 0]
    assert scorer(f"{name}(tags=False)").fn([row(name)], [Text(GOLD[name][1])]) == [pytest.approx(best)]


APART = ("code", "code_share", "sql", "sql_partial")
"""Tasks that start a process for each answer."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in APART else name for name in HERE]
)
def test_no_answer_is_worth_more_than_the_most_nor_stops_the_run(name):
    outputs = [Text(f"<answer>{answer}</answer>") for answer in HOSTILE] + [Text(other) for _, other in GOLD.values()]
    values = cast(Any, scorer("task(tags=False)").fn([row(name)] * len(outputs), outputs))
    assert all(0 <= value <= MAXIMA.get(name, 1.0) + 1e-12 for value in values)
    assert all(
        value < 0.25 for value in cast(Any, scorer("task").fn([row(name)] * len(HOSTILE), outputs[: len(HOSTILE)]))
    )


@pytest.mark.parametrize("name", HERE)
def test_a_gold_answer_of_another_kind_is_an_error_or_no_verdict(name):
    prompt = Prompt("a question", "7", answer=3.5 if name == "json_fields" else {"no": "answer"}, task=name)
    with pytest.raises(ValueError, match="'7'"):
        scorer("task").fn([prompt], [Text("<answer>3</answer>")])


def test_every_row_is_judged_by_its_own_task():
    names = [name for name in GOLD if name in HERE]
    prompts = [row(name) for name in names]
    outputs = [Text(f"<answer>{GOLD[name][1]}</answer>") for name in names]
    expected = [MAXIMA.get(name, 1.0) for name in names]
    assert scorer("task").fn(prompts, outputs) == pytest.approx(expected)
    assert scorer("task").fn(prompts[::-1], outputs[::-1]) == pytest.approx(expected[::-1])
    assert set(GOLD) == set(TASKS)


def test_names_of_tasks_are_names_of_rewards():
    assert {name for name, entry in REWARDS.items() if entry.function.startswith(f"{single.__name__}:")} == set(TASKS)
    assert all(function.__doc__ for function in TASKS.values())
    assert scorer("box_iou").fn.func.__doc__ == TASKS["box_iou"].__doc__
    verdict = score_outputs(scorers(["exact", "task(weight=0)"]), [row("numeric")], [Text("<answer>3</answer>")])
    assert verdict.values.tolist() == [[1, 1]]


def test_a_row_may_take_the_whole_completion_as_its_answer():
    prompts = [row("exact"), row("exact", tags=False)]
    assert scorer("task").fn(prompts, [Text("red")] * 2) == [0, 1]
    assert scorer("task(tags=False)").fn([row("exact"), row("exact", tags=True)], [Text("red")] * 2) == [1, 0]
    with pytest.raises(ValueError, match=r"'7'.*meta\.tags.*'no'"):
        scorer("task").fn([row("exact", tags="no")], [Text("red")])
    with pytest.raises(ValueError, match="tags.*'no'.*True"):
        scorer("task(tags='no')").fn([row("exact")], [Text("red")])


@pytest.mark.parametrize(
    ("place", "right"),
    [
        ("class", "<think><class>blue</class></think> <class> Red </class>"),
        ("action", "<think></think><action>red</action>"),
        ("output", "<think>hm</think><output>red</output>"),
        ("after_thought", "<think>hm</think> red\n"),
        ("final_answer", "### The final answer is: red"),
    ],
)
def test_an_answer_stands_where_the_paper_has_it(place, right):
    texts = [Text(right), Text(right.replace("red", "blue").replace("Red", "blue")), Text("red"), Text("")]
    assert scorer(f"task(tags='{place}')").fn([row("exact")] * 4, texts) == [1, 0, 0, 0]
    assert scorer("task").fn([row("exact", tags=place)], texts[:1]) == [1]


def test_a_tag_inside_the_thought_holds_no_answer():
    texts = [Text("<think><class>red</class></think>"), Text("<class>red</class><class>blue</class>")]
    assert scorer("exact(tags='class')").fn([row("exact")] * 2, texts) == [0, 0]


def test_an_unknown_task_is_an_error_that_names_the_prompt_and_the_nearest():
    with pytest.raises(ValueError, match="'7'.*box_iuo.*box_iou"):
        scorer("task").fn([Prompt("a question", "7", task="box_iuo")], [Text("")])
    with pytest.raises(ValueError, match="'7'"):
        scorer("task").fn([Prompt("a question", "7")], [Text("")])


def test_what_is_no_text_is_an_error():
    for name in ("task", "box_iou"):
        with pytest.raises(TypeError, match=f"'{name}'.*Image.*Text"):
            scorer(name).fn([row("box_iou")], [Image(torch.zeros(3, 2, 2))])


def test_prompts_and_outputs_must_be_as_many():
    with pytest.raises(ValueError):
        scorer("task").fn([row("exact")] * 2, [Text("red")])


def test_gold_answers_state_right_ones_or_tests_of_them():
    assert [states_answers(name) for name in ("exact", "maze", "box_iou", "temporal_iou", "code", "sql", "none")] == [
        True, True, True, True, False, False, False,
    ]  # fmt: skip
    assert [reads_places(name) for name in ("box_iou", "ui_r1", "tracking_iou", "exact", "trajectory", "none")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("coordinates", ["absolute", "resized", "relative_1000", "relative_1"])
@pytest.mark.parametrize("name", [name for name in HERE if states_answers(name)])
def test_a_gold_answer_is_written_as_its_task_reads_it(name, coordinates):
    shown = Text("", seen=((100, 100),))
    prompt = row(name, coordinates=coordinates, size=[100, 50])  # seen at another ratio
    values = [TASKS[name](text, prompt, replace(shown, text=text)) for text in answer_forms(prompt, shown)]
    assert max(values) == pytest.approx(MAXIMA.get(name, 1.0))


@pytest.mark.parametrize(
    ("answer", "meta", "form"),
    [
        ("Half of 48 is 24.\n48 + 24 = 72\n#### 72", {}, "72"),
        (1, {"options": ["cat", "dog"]}, "B"),
        ("1", {"choices": {"A": "cat", "B": "dog"}}, "B"),
        ("dog", {"options": ["cat", "dog"]}, "B"),
        (True, {"options": ["cat", "dog"]}, "True"),
    ],
)
def test_the_forms_of_a_gold_answer(answer, meta, form):
    forms = answer_forms(Prompt("q", answer=answer, meta=meta), Text(""))
    assert form in forms and all("####" not in one for one in forms)
    assert ("B" in forms) == (form == "B")


def test_one_task_reads_answers_in_their_tags():
    texts = [Text("<answer>red</answer>"), Text("red")]
    assert one_task("exact", [row("exact")] * 2, texts) == single.exact([row("exact")] * 2, texts) == [1, 0]
    assert one_task("exact", [row("exact")] * 2, texts, tags=False) == [0, 1]


def test_a_verdict_that_cannot_be_given_is_not_a_number():
    prompt = Prompt("a proverb", "7", answer="a bird in the hand", task="math")
    values: Any = scorer("task").fn([prompt, row("numeric")], [Text("<answer>3</answer>")] * 2)
    assert math.isnan(values[0])
    assert values[1] == 1
