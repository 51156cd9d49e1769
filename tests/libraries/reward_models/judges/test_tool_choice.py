"""Choices among tools, by what a frozen model answers with them and without (VisTA)."""

from __future__ import annotations

import math

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.scoring.fitting import row_objection
from mmgrpo.types import Prompt, Text
from reward_models.judges import tool_choice

TOOLS = {"table": "red | 3", "captioner": "a chart"}


class Frozen:
    """It answers ``right`` where its question has the table, else ``alone``."""

    def __init__(self, right: str, alone: str) -> None:
        self.right, self.alone = right, alone
        self.asked: list[str] = []

    def answers(self, questions, tokens):
        self.asked += [one.parts[-1] for one in questions]
        return [f"<answer>{self.right if 'red | 3' in str(one.parts) else self.alone}</answer>" for one in questions]


def row(answer: str = "3", **meta) -> Prompt:
    return Prompt("How many?", "row 7", answer=answer, meta={"tool_outputs": TOOLS} | meta)


@pytest.mark.parametrize(
    ("with_table", "alone", "values"),
    [("3", "3", [1, 1]), ("3", "4", [1, 0]), ("4", "3", [-0.5, 1]), ("4", "4", [0, 0])],
)
def test_a_choice_is_worth_what_the_frozen_model_gains_by_it(monkeypatch, with_table, alone, values):
    """The second sample chooses nothing that the row has: its model answers twice alike."""
    model = Frozen(with_table, alone)
    monkeypatch.setattr(tool_choice, "judge_named", lambda text, device: model)
    outputs = [Text("<think>a table</think><answer>table, captioner</answer>"), Text("<answer>ruler</answer>")]
    assert tool_choice.tool_choice([row(), row()], outputs, "") == values
    first, second = model.asked[:2]
    assert first.startswith("table: red | 3\ncaptioner: a chart\nHow many?") and second.startswith("How many?")


@pytest.mark.filterwarnings("ignore:judge")
def test_a_model_without_an_answer_gives_no_score(monkeypatch):
    monkeypatch.setattr(tool_choice, "judge_named", lambda text, device: Frozen("", "3"))
    (value,) = tool_choice.tool_choice([row()], [Text("<answer>table</answer>")], "")
    assert math.isnan(value)


@pytest.mark.parametrize("said", [None, {}, {"table": 3}, ["table"]])
def test_rows_without_what_tools_say_are_refused(said):
    one = scorer("tool_choice(judge=\"vlm(model='m')\")")
    assert not row_objection(one, row())
    assert "tool_outputs" in str(row_objection(one, row(tool_outputs=said)))
