"""What several samples agree on, and how evaluation reports it."""

from __future__ import annotations

import math

import pytest

from mmgrpo.cli.measures import describe
from mmgrpo.types import Prompt
from reward_models.rules.votes import agreement_of, answer, majority_at, normal, winner


def test_answers_are_compared_without_case_spaces_and_full_stop_and_numbers_by_value():
    assert normal(" A  red\nCircle. ") == "a red circle"
    assert normal("2.0") == normal("2") == normal("+2") != normal("20")
    assert normal("2") == "2.0" and normal("0") == normal("-0.0") == "0.0"
    assert normal("nan") == "nan" and normal("Infinity") == "infinity" and normal("1,2") != normal("12")


def test_the_answer_is_what_stands_in_the_tags_and_all_where_there_are_none():
    assert answer("<think>x</think><answer>Red</answer>") == answer("<think>y</think><answer>red.</answer>")
    assert answer("red") == answer("<answer>Red</answer>") == "red" != answer("<answer>")
    assert answer("<answer>2.0</answer>") == answer("2")


def test_the_most_frequent_answer_wins_and_of_equals_the_first():
    assert winner(list("abbc")) == 1
    assert winner(list("caac")) == 0
    assert winner(["e"]) == 0
    assert agreement_of(list("abbc")) == 0.5


def test_a_majority_scores_what_its_answer_scores():
    answers, values = list("788999"), [0.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    # k = 6: 9 is said three times, 0.5. k = 3: 8 (1.0) and 9 (0.5). k = 2: 7 before 8 (0), 8 before 9 (1), 9 (0.5).
    assert majority_at(answers, values, 6) == 0.5
    assert majority_at(answers, values, 3) == pytest.approx(0.75)
    assert majority_at(answers, values, 2) == pytest.approx(0.5)
    # k = 4: one set of four, two samples are left over; 8 wins.
    assert majority_at(answers, values, 4) == 1.0
    # k = 1 is the mean.
    assert majority_at(answers, values, 1) == pytest.approx(sum(values) / 6)
    assert math.isnan(majority_at(["1", "1"], [math.nan, 1.0], 2))
    # every set has its own values: of "aab" the first a, of "cbb" the first b
    assert majority_at(list("aabcbb"), [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 3) == pytest.approx((0.1 + 0.5) / 2)
    with pytest.raises(ValueError, match="there are only 6"):
        majority_at(answers, values, 7)


def test_majorities_are_reported_of_rewards_between_0_and_1_only():
    table = {"right": [[1.0, 0.0, 1.0]], "length": [[12.0, 40.0, 9.0]]}
    result = describe(table, [["<answer>4</answer>", "5", "4."]], [Prompt("q")], 1.0)
    # Three samples: k = 2 takes the first two (a tie, the first), k = 3 all of them; the first answer is right.
    assert result["majority_at"] == {"right": {"2": 1.0, "3": 1.0}}
    assert result["agreement"] == pytest.approx(2 / 3)
    assert list(result["rewards"]) == ["right", "length"]
    assert "majority_at" not in describe({"right": [[1.0, 0.0]]}, [], [Prompt("q")], 1.0)
