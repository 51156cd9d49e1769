"""Criteria of a rubric from the row, or written by the judge, and what a judge says of an output besides its value."""

from __future__ import annotations

import math

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.judges import pointwise, question
from reward_models.judges.pointwise import criteria_of, judge_rubric, rubric_remarks

FACTUAL, PROCESS, STYLE = "the result is 4", "the sum is written down", "is brief"
ROW = [
    {"criterion": FACTUAL, "weight": 3, "kind": "factual"},
    {"description": PROCESS, "points": 2},
    STYLE,
]
ANSWERS = {
    "good": "C1: 1\nC2: 1\nC3: 1",
    "half": "C1: 1\nC2: 0\nC3: 0",
    "odd": "C1: 1\nC2: 1",
    "bad": "C1: 0\nC2: 0\nC3: 0",
}


class Rubrics:
    """A judge that knows its answers by the output, and writes two constraints for any task."""

    def __init__(self):
        self.asked = []

    def answers(self, questions, tokens):
        self.asked += [question.parts for question in questions]
        return [self._answer("\n".join(question.parts)) for question in questions]

    def _answer(self, text):
        if text.startswith("Task:"):
            return "no idea" if "unclear" in text else "- has a rhyme\n- names a sea\n"
        if "has a rhyme" in text:
            return "C1: 1\nC2: 0.5"
        return next(answer for word, answer in ANSWERS.items() if f"Output:\n{word}" in text)


@pytest.fixture
def judge(monkeypatch):
    made = Rubrics()
    monkeypatch.setattr(question, "_warned", set())
    monkeypatch.setattr(pointwise, "judge_named", lambda text, device: made)
    return made


def prompt(criteria=ROW, text="2+2?", name="p"):
    return Prompt(text, name, meta={"criteria": criteria})


def test_criteria_and_weights_are_those_of_the_row(judge):
    """RGR-GRPO, arXiv:2511.12344: sum of the weights of the criteria that are met, over the sum of all."""
    texts = [Text("good"), Text("half"), Text("bad")]
    assert judge_rubric([prompt()] * 3, texts, judge="", low=0, high=1) == pytest.approx([1, 3 / 6, 0])
    assert f"C2. {PROCESS}" in judge.asked[0][-1] and "C3: <number>" in judge.asked[0][-1]
    turned = prompt([STYLE, *ROW[:2]][1:] + [STYLE])  # in another order the numbers are the same
    assert judge_rubric([turned], [Text("half")], judge="", low=0, high=1) == pytest.approx([0.5])
    other = prompt({FACTUAL: 1, PROCESS: 1, STYLE: 2})
    mixed = judge_rubric([prompt(), other], [Text("half")] * 2, judge="", low=0, high=1)
    assert mixed == pytest.approx([0.5, 0.25])


def test_an_answer_without_all_numbers_is_a_failure(judge):
    with pytest.warns(UserWarning, match="1 of 2"):
        values = judge_rubric([prompt()] * 2, [Text("good"), Text("odd")], judge="", low=0, high=1)
    assert values[0] == 1 and math.isnan(values[1])


def test_the_judge_writes_the_constraints_of_an_instruction(judge):
    """ACE-RL, arXiv:2509.04903: marks of 1, .5 and 0, whose mean is the reward; one list for all samples."""
    poem = Prompt("Write a poem.", "q")
    values = judge_rubric([poem] * 2, [Text("a"), Text("b")], judge="", criteria="written", low=0, high=1)
    assert values == pytest.approx([0.75, 0.75])
    assert sum(parts[0].startswith("Task:") for parts in judge.asked) == 1
    with pytest.warns(UserWarning):
        values = judge_rubric([Prompt("unclear", "u")], [Text("a")], judge="", criteria="written", low=0, high=1)
    assert math.isnan(values[0])


def test_the_criteria_that_an_output_fails_are_said(judge):
    remarks = rubric_remarks(judge="", low=0, high=1, device="cpu")
    with pytest.warns(UserWarning):
        said = remarks([prompt()] * 3, [Text("good"), Text("half"), Text("odd")])
    assert said == [{"failed": ""}, {"failed": f"- {PROCESS}\n- {STYLE}"}, {}]
    made = scorer("judge_rubric(judge=\"vlm(model='m')\", low=0, high=1)")
    assert made.remarks is not None and made.remarks([prompt()], [Text("half")]) == [said[1]]
    with pytest.raises(ValueError, match="'p'.*criteria"):
        made.check_row(prompt(None))


@pytest.mark.parametrize(
    "criteria", [None, [], "brief", ["a", "a"], [{"weight": 1}], {"a": 0}, {"a": -1}, [1], {"a": True}]
)
def test_criteria_of_a_row_are_texts_with_positive_weights(criteria):
    with pytest.raises(ValueError, match="'p'.*criteria"):
        criteria_of(prompt(criteria))
