"""Formulas, compared by what they are equal to."""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules import mathematics
from reward_models.rules.tasks import TASKS, task

math_verify = pytest.importorskip("math_verify")


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
        ("0" * 999 + "5", 5, 1),
        ("0" * 1000 + "5", 5, 0),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", 1),
        ("[0, 5)", "[0, 5)", 1),
        ("[0, 5]", "[0, 5)", 0),
        ("x^{2n}", "(x^n)^2", 1),
        (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}", 0),
        ("2e-12", "1e-12", 0),
        ("0.00000002", "0.00000001", 0),
        ("3.2e-19", "1.6e-19", 0),
        (r"10^{-21}\pi", r"10^{-20}\pi", 0),
        (r"1.6\times 10^{-19}", "1.6e-19", 1),
        ("0.333333333", "1/3", 1),  # off by 1e-9 of 1/3
        ("0.33333333", "1/3", 0),
        ("3.1415926536", r"\pi", 1),
        ("0.1000001", "0.1", 0),
        ("two", 2, 1),
        ("**Twenty-one**.", 21, 1),
        ("ninety nine", 99, 1),
        ("one hundred", 100, 1),
        (r"\text{minus two}", -2, 1),
        ("2", "two", 1),
        ("two or three", 2, 0),
        ("The answer is twenty-one.", 21, 1),
        ("**Twenty-one** apples", 21, 1),
        ("It is minus five", -5, 1),
        ("twenty percent", "20%", 1),
        ("ninety nine dollars", "$99", 1),
        ("twenty thousand", 20000, 1),
        ("two hundred", 200, 1),
        ("two hundred", 2, 0),
        ("a hundred apples", 100, 1),
        ("a hundred and one", 100, 0),
        ("one hundred twenty", 100, 0),
        ("one hundred and five", 5, 0),
        ("twenty-first", 20, 0),
        ("fifty-fifty", 50, 0),
        ("two thirds", 2, 0),
        ("not twenty-one", 21, 0),
        ("at least five", 5, 0),
        ("one cat and two dogs", 2, 0),
        ("two cats and three dogs", 3, 0),
        ("twenty one or two", 21, 0),
        ("2", "2m", 0),
        ("2m", "2m", 1),
        ("m2", "2m", 1),
        ("2", "2 m", 1),  # apart from the number, a unit
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
    start = time.process_time()
    assert value(answer, 5) == 0
    assert time.process_time() - start < 4  # less than any alarm


@pytest.mark.parametrize("text", ["2^{3^4}", "2^ { 3 ^4", "12345!", "1234 !", "5!!", "(5!)!", "0" * 1000 + "5", ""])
def test_towers_of_numbers_are_not_read(text):
    assert mathematics.read(text) == []


@pytest.mark.parametrize("text", ["2^{34}", "123!", "5!", "0" * 999 + "5"])
def test_other_numbers_are_read(text):
    assert mathematics.read(text) != []


def test_digits_are_bounded_part_by_part():
    import sympy

    bound, x = mathematics._digits, sympy.Symbol("x")
    raw = {"evaluate": False}
    for value, digits in [
        (sympy.Integer(0), 0), (sympy.Integer(1), 0), (sympy.Integer(-1000), 3), (sympy.Rational(1, 1000), 3),
        (sympy.Float(1000.0), 3), (sympy.Float(-0.001), 3), (sympy.Float(0), 0),
        (x, 0), ("text", 0), (x + 1000, 3), (sympy.Mul(10, 1000, x, **raw), 4),
        (sympy.Matrix([[1, 1000], [10, 1]]), 3), (sympy.Matrix(0, 0, []), 0),
        (sympy.Pow(100, 3, **raw), 6), (sympy.Pow(2, 100, **raw), 100), (sympy.Pow(10, x, **raw), 1),
        (sympy.factorial(5, **raw), 5), (sympy.factorial(1000, **raw), 3000),
        (sympy.factorial(1001, **raw), math.inf), (sympy.binomial(10, 1000, **raw), 10),
    ]:  # fmt: skip
        assert bound(value) == pytest.approx(digits), value
    assert bound(sympy.Pow(10, sympy.Pow(10, 14, **raw), **raw)) == pytest.approx(1e14)
    assert bound(sympy.Pow(10, sympy.Pow(10, 15, **raw), **raw)) == math.inf


@pytest.mark.parametrize(("text", "right"), [("10^{1000}", True), ("10^{1001}", False)])
def test_a_thousand_digits_are_compared(text, right, monkeypatch):
    monkeypatch.setattr(math_verify, "verify", lambda *both, timeout_seconds: True)
    assert value(text, text) == right


def test_parsing_has_ten_seconds_and_comparing_five_and_no_other_alarm_is_set(monkeypatch):
    given: list = []
    monkeypatch.setattr(mathematics, "_alarm", lambda seconds: given.append(seconds) or contextlib.nullcontext())
    monkeypatch.setattr(
        math_verify, "parse", lambda text, parsing_timeout, **other: given.append(parsing_timeout) or [0]
    )
    monkeypatch.setattr(math_verify, "verify", lambda *both, timeout_seconds: given.append(timeout_seconds) or True)
    logging.getLogger("math_verify").setLevel(logging.INFO)
    assert value("1", 2) == 1
    assert given == [10, None, 10, None, 5, None]
    assert logging.getLogger("math_verify").level == logging.ERROR  # it complains of parse without an alarm


def busy(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_an_alarm_ends_what_keeps_the_processor_busy():
    handler = signal.getsignal(signal.SIGPROF)
    with mathematics._alarm(0.05):
        with contextlib.suppress(math_verify.errors.TimeoutException):
            busy(60)
        busy(60)  # it rings again
        raise AssertionError
    assert signal.getsignal(signal.SIGPROF) == handler and signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_what_takes_too_long_is_wrong_or_unreadable(monkeypatch):
    alarm = mathematics._alarm
    monkeypatch.setattr(mathematics, "_alarm", lambda seconds: alarm(seconds / 100))
    with monkeypatch.context() as slow:
        slow.setattr(math_verify, "verify", lambda *both, **other: busy(60) or True)
        assert value("1", 1) == 0
    monkeypatch.setattr(math_verify, "parse", lambda *text, **other: busy(60) or [1])
    assert mathematics.read("1") == []


def test_no_alarm_ends_what_waits_or_runs_in_another_thread():
    ended = []

    def work() -> None:
        with mathematics._alarm(0.05):
            busy(0.3)
            ended.append("worked")

    with mathematics._alarm(0.05):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        ended.append("waited")
    assert ended == ["worked", "waited"]


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
        ("5x3", "5x2", 2 / 3),  # digits, but no number
        ("", "red cat", 0),
        ("", "B", 0),
    ],
)
def test_mixed_questions_are_compared_as_their_gold_answer_allows(answer, gold, expected):
    assert TASKS["vlm_r1"](answer, Prompt("what?", "7", answer=gold), Text(answer)) == pytest.approx(expected)


def test_a_gold_answer_that_is_nothing_is_an_error():
    with pytest.raises(ValueError, match="'7'.*answer.*None"):
        value("5", None)
