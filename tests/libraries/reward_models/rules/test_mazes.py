"""Ways through a maze."""

from __future__ import annotations

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.rules.mazes import read_moves
from reward_models.rules.tasks import TASKS

WAY = "<|up|><|up|><|left|><|down|>"
PROMPT = Prompt("a maze", "7", answer=WAY, task="maze")


def values(reward: str, *answers: str, prompt: Prompt = PROMPT) -> list[float]:
    return scorer(reward).fn([prompt] * len(answers), [Text(answer) for answer in answers])


def test_moves_are_read_and_nothing_else():
    assert read_moves(" <|up|>\n<|left|> ") == ["up", "left"]
    assert [read_moves(text) for text in ("", " ", "up", "<|up|>.", "<|upup|>", "<|up|>" * 10_000)] == [None] * 6


def test_a_way_has_at_most_20_000_characters():
    assert read_moves("<|up|>" * 3333 + "  ") == ["up"] * 3333 and read_moves("<|up|>" * 3333 + "   ") is None


def test_a_way_is_right_as_a_whole_or_not_at_all():
    assert [TASKS["maze"](way, PROMPT, Text(way)) for way in (WAY, WAY.replace("><", "> <"))] == [1, 1]
    for wrong in (WAY[:-8], WAY + "<|up|>", WAY + "!", ""):
        assert TASKS["maze"](wrong, PROMPT, Text(wrong)) == 0


def test_each_move_of_a_right_way_is_worth_a_fifth():
    thought = "<think>\n<|right|>, no: up\n</think>\n"
    assert values("maze_steps(tags='after_thought')", thought + WAY, thought + "<|up|>", WAY) == pytest.approx(
        [0.8, 0, 0]
    )
    assert values("maze_steps", f"<answer>{WAY}</answer>", WAY) == pytest.approx([0.8, 0])
    assert values("maze_steps(step=0.5)", f"<answer>{WAY}</answer>") == [2]
    assert values("maze(tags='after_thought')", thought + WAY, thought + "<|up|>") == [1, 0]


def test_moves_alone_have_the_form_of_an_answer_right_or_wrong():
    assert values("maze_moves", "</think><|up|>", "</think> <|left|> <|up|>\n", "</think>go <|up|>", "<|up|>") == [
        1,
        1,
        0,
        0,
    ]


def test_the_three_parts_of_alphamaze_have_the_sum_of_the_paper():
    parts = ("maze_steps(tags='after_thought')", "maze_moves(weight=0.5)", "format(style='think', weight=0.25)")
    right, wrong = (f"<think>hm</think>{way}" for way in (WAY, "<|up|>"))
    totals = [sum(scorer(part).weight * values(part, text)[0] for part in parts) for text in (right, wrong, WAY)]
    assert totals == pytest.approx([0.8 + 0.5 + 0.25, 0.5 + 0.25, 0])


@pytest.mark.parametrize("gold", ["", "up", ["<|up|>"], "<|forward|>", 3])
def test_a_gold_way_that_is_none_is_an_error(gold):
    with pytest.raises(ValueError, match="'7'"):
        TASKS["maze"](WAY, Prompt("a maze", "7", answer=gold), Text(WAY))
