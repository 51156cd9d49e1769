"""What several samples agree on, and how the evaluation script tells it."""

from __future__ import annotations

import math

import pytest
from evaluate import ANSWER, describe
from majority import agreement, answer_number, majority_at, normal, winner

from mmgrpo.types import Prompt, Text


def numbers(*texts: str) -> list[float]:
    return answer_number([Prompt("q")] * len(texts), [Text(text) for text in texts])


def test_answers_are_compared_without_case_spaces_and_full_stop_and_numbers_by_value():
    assert normal(" A  red\nCircle. ") == "a red circle"
    assert normal("2.0") == normal("2") == normal("+2") != normal("20")
    assert normal("0") == normal("-0.0") and normal("nan") == "nan" and normal("1,2") != normal("12")


def test_the_answer_is_what_stands_in_the_tags_and_all_where_there_are_none():
    a, b, c, d = numbers(
        "<think>x</think><answer>Red</answer>", "<think>y</think><answer>red.</answer>", "red", "<answer>"
    )
    assert a == b == c != d
    assert all(value == int(value) < 2**24 for value in (a, d))


def test_the_most_frequent_answer_wins_and_of_equals_the_first():
    assert winner([1, 2, 2, 3]) == 1
    assert winner([3, 1, 1, 3]) == 0
    assert winner([5]) == 0
    assert agreement([1, 2, 2, 3]) == 0.5


def test_a_majority_scores_what_its_answer_scores():
    answers, values = [7, 8, 8, 9, 9, 9], [0.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    # k = 6: 9 is said three times, 0.5. k = 3: 8 (1.0) and 9 (0.5). k = 2: 7 before 8 (0), 8 before 9 (1), 9 (0.5).
    assert majority_at(answers, values, 6) == 0.5
    assert majority_at(answers, values, 3) == pytest.approx(0.75)
    assert majority_at(answers, values, 2) == pytest.approx(0.5)
    # k = 4: one set of four, two samples are left over; 8 wins.
    assert majority_at(answers, values, 4) == 1.0
    # k = 1 is the mean.
    assert majority_at(answers, values, 1) == pytest.approx(sum(values) / 6)
    assert math.isnan(majority_at([1, 1], [math.nan, 1.0], 2))
    with pytest.raises(ValueError, match="there are only 6"):
        majority_at(answers, values, 7)


def test_majorities_are_told_of_rewards_between_0_and_1_only():
    table = {"right": [[1.0, 0.0, 1.0]], "length": [[12.0, 40.0, 9.0]], ANSWER: [[4.0, 5.0, 4.0]]}
    told = describe(table, [Prompt("q")], 1.0)
    # Three samples: k = 2 takes the first two (a tie, the first), k = 3 all of them; the first answer is right.
    assert told["majority_at"] == {"right": {"2": 1.0, "3": 1.0}}
    assert told["agreement"] == pytest.approx(2 / 3)
    assert list(told["rewards"]) == ["right", "length"]
    assert "majority_at" not in describe({"right": [[1.0, 0.0]]}, [Prompt("q")], 1.0)
