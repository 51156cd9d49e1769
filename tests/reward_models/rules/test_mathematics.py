"""Formulas, compared by what they are equal to."""

from __future__ import annotations

import math
import threading
import time

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.tasks import TASKS, task

pytest.importorskip("math_verify")


def value(answer: str, gold) -> float:
    return TASKS["math"](answer, Prompt("how much?", "7", answer=gold), Text(answer))


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("3/4", "0.75", 1),
        (r"\frac{3}{4}", "3/4", 1),
        (r"$\frac{6}{8}$", r"\frac{3}{4}", 1),
        ("x = 5", "$5$", 1),
        ("(x+1)^2", "x^2 + 2x + 1", 1),
        (r"\sqrt{8}", r"2\sqrt{2}", 1),
        ("{1, 2}", r"\{2, 1\}", 1),
        ("1,000", 1000, 1),
        (r"so it is \boxed{5}, not $6$", 5, 1),
        ("the answer is 5", 5, 1),
        ("between 4 and 5", 5, 0),  # no number is picked out of prose
        ("$4$ or $5$", 5, 0),
        (r"\boxed{4} \boxed{5}", 5, 0),
        ("6", 5, 0),
        ("", 5, 0),
        ("$$", 5, 0),
        ("cat", 5, 0),
        (r"\frac{", 5, 0),
        ("5" * 2000, 5, 0),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", 1),
        ("[0, 5)", "[0, 5)", 1),
        ("[0, 5]", "[0, 5)", 0),
        ("x^{2n}", "(x^n)^2", 1),
    ],
)
def test_answers_are_right_if_they_are_equal(answer, gold, expected):
    assert value(answer, gold) == expected


@pytest.mark.parametrize("gold", ["a bird in the hand", "???"])
def test_a_gold_answer_that_is_no_mathematics_is_no_verdict(gold):
    assert math.isnan(value("5", gold))


def test_a_number_in_the_thought_is_not_the_answer():
    prompt = Prompt("how much?", "7", answer=5, task="math")
    completions = ["<think>$5$</think><answer>6</answer>", "<think>$6$</think><answer>5</answer>", "$5$", r"\boxed{5}"]
    assert task([prompt] * 4, [Text(text) for text in completions]) == [0, 1, 0, 0]
    assert task([prompt] * 4, [Text(text) for text in completions], tags=False)[3] == 1


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9^{9}}}",
        "(9^{999})^{999}",
        "99999!",
        "(10!)!",
        "2^{10^{10}}",
        "[9^{9^{9}}, 1)",
        r"\begin{pmatrix} 9^{99999} \\ 1 \end{pmatrix}",
        r"\sum_{k=1}^{1000000000} k^{k}",
        r"\binom{10^9}{10^8}",
    ],
)
def test_numbers_too_large_to_work_out_are_wrong_at_once(answer):
    start = time.perf_counter()
    assert value(answer, 5) == 0
    assert time.perf_counter() - start < 4  # less than any alarm


def test_large_and_small_numbers_within_reason_are_compared():
    assert value("$2^{100}$", 2**100) == 1
    assert value("10^{-6}", "0.000001") == 1
    assert value("5!", 120) == 1


def test_other_threads_than_the_main_one_can_judge():
    seen: list[float] = []

    def judge() -> None:
        seen.extend([value("3/4", "0.75"), value("1", "0.75")])

    thread = threading.Thread(target=judge)
    thread.start()
    thread.join()
    assert seen == [1, 0]


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("1/2", "0.5", 1),
        ("3 apples", "3", 1),
        ("4 apples", "3", 0),
        ("B. red", "B", 1),
        ("C", "B", 0),
        ("red cat", "red cat", 1),
        ("red hat", "red cat", 6 / 7),  # one letter out, one in: 2 of 14
        ("flat 3b", "flat 3b", 1),
        ("", "red cat", 0),
        ("", "B", 0),
    ],
)
def test_mixed_questions_are_compared_as_their_gold_answer_allows(answer, gold, expected):
    assert TASKS["vlm_r1"](answer, Prompt("what?", "7", answer=gold), Text(answer)) == pytest.approx(expected)


def test_a_gold_answer_that_is_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"prompt '7' .*got answer None, expected a non-empty text"):
        value("5", None)
