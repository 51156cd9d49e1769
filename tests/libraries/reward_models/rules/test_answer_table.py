"""Pairs of gold answer and answer, right and wrong, in the ways in which people and models write numbers.

Every verifier of answers reads numbers in one way (``quantity``): what it does not read is worth 0, and never paid as
another number. The same pairs are tried with math-verify's own defaults by ``python -m
tests.libraries.reward_models.rules.test_answer_table``, which prints where the two differ.
"""

from __future__ import annotations

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.quantities import quantity
from reward_models.rules.tasks import TASKS

RIGHT: dict[str | int | float, list[str]] = {
    10: [
        *("10", "10.", "10,", "10;", "10 .", " 10 ", "10.0", "10.00", "+10", "１０", "ten (10)", "10 (ten)", "1e1"),
        *("**10**", "*10*", "__10__", "_10_", "`10`", "***10***", "<b>10</b>", "**10.**", "“10”", "'10'", '"10"'),
        *("$10", "\\$10", "$10.00", "€10", "10 €", "£10", "US$10", "10 dollars", "10 USD", "USD 10", "¥10", "Rs. 10"),
        *("10%", "10 %", "10\\%", "10 percent", "10°", "10 degrees", "10^\\circ", "10^{\\circ}", "10 °C", "10 ℃"),
        *("10 cm", "10cm", "10 cm.", "10 m^2", "10 m²", "10 m/s", "10 km/h", "10 apples", "10 apples.", "10-inch"),
        *("$10$", "$10$.", "\\(10\\)", "\\[10\\]", "$$10$$", "\\boxed{10}", "\\boxed{10}.", "\\boxed{\\text{10}}"),
        *("\\text{10}", "\\mathbf{10}", "$10$ cm", "10\\text{ cm}", "10\\,\\text{cm}", "\\boxed{10\\text{ cm}}"),
        *("\\frac{20}{2}", "\\frac{20}{2}.", "\\dfrac{20}{2}", "20/2", "$\\frac{20}{2}$", "The answer is 10."),
        *("The answer is **10**.", "the answer is $10$", "Answer: 10", "**Answer:** 10", "x = 10", "= 10", "about 10"),
        *("approximately 10", "~10", "≈ 10", "10th", "10 years old", "10, I think", "(10)", "It is exactly 10", "#10"),
    ],
    -5: [
        *("-5", "−5", "－5", "–5", "- 5", "− 5", "minus 5", "negative 5", "-5.", "**-5**", "-5°C", "−5 %", "x = -5"),
        *(
            "x=−5",
            "the answer is -5",
            "The answer is: - 5",
            "-$5",
            "$-5$",
            "\\boxed{-5}",
            "-\\$5",
            "-5.0",
            "-\\frac{10}{2}",
        ),
        "minus 5 degrees",
    ],
    1234: ["1,234", "1234", "1 234", "1\u202f234", "1\u2009234", "1{,}234", "1\\,234", "1'234", "$1,234", "1,234.0"],
    100000: [
        "100,000",
        "1,00,000",
        "100 000",
        "100k",
        "100K",
        "100 thousand",
        "1 lakh",
        "1 × 10^5",
        "1x10^5",
        "1e5",
        "10万",
    ],
    5000: ["5k", "5K", "5 k", "5 thousand", "5,000", "$5k", "5×10³", "5 \\times 10^{3}"],
    5000000: [
        *(
            "5 million",
            "5 Million",
            "5M",
            "5 mn",
            "$5 million",
            "$5m",
            "5 million dollars",
            "5 million people",
            "5·10⁶",
        ),
        *("5,000,000", "5e6", "\\boxed{5 \\text{ million}}", "$5$ million", "the answer is 5 million", "5 million."),
    ],
    "2500000000": ["2.5 billion", "2.5B", "$2.5bn", "2.5 bn", "2.5 × 10⁹"],
    "1/2": [
        "0.5",
        "1/2",
        "1/2.",
        "½",
        "\\frac12",
        "\\frac{1}{2}",
        "$\\frac{1}{2}$",
        ".5",
        "2/4",
        "50%",
        "1 / 2",
        "**1/2**",
    ],
    "-1/2": ["-1/2", "−½", "-0.5", "-\\frac{1}{2}", "\\frac{-1}{2}", "− 1/2"],
    "2.5": ["2½", "2 1/2", "2\\frac{1}{2}", "5/2", "2.5", "2.50", "2.5 kg"],
    "10 %": ["10 %", "10%", "10", "10 percent", "10\\%"],
    "$5": ["$5", "5", "\\$5", "5 dollars", "5.00", "$5.00."],
    "10.": ["10", "10.", "10.0"],
    "60°": ["60", "60°", "60 degrees", "60^\\circ"],
    "2 hours": ["2", "2 hours", "2 h", "120 minutes", "2 hours."],
    "12 cm": ["12", "12 cm", "12cm", "0.12 m", "12 centimeters", "120 mm"],
    "12.7 cm": ["5 in", "5 in.", "5 inches"],
    "3rd": ["3rd", "3", "3."],
    "\\boxed{7}": ["7", "\\boxed{7}", "$7$"],
    "5 million": ["5 million", "5,000,000", "5M"],
}
"""Gold answers that are numbers, and answers that are right."""

WRONG: dict[str | int | float, list[str]] = {
    5: [
        *("−5", "－5", "–5", "- 5", "minus 5", "negative 5", "x-5", "x - 5", "x−5", "7 minus 5", "±5", "+/-5"),
        *(
            "5k",
            "5 million",
            "5M",
            "5 thousand",
            "5 billion",
            "5 hundred",
            "5 dozen",
            "5万",
            "5 millones",
            "5 Millionen",
        ),
        *(
            "5 mrd",
            "$5m",
            "\\boxed{5 \\text{ million}}",
            "$5$ million",
            "the answer is 5 million",
            "5 tenths",
            "5 and a half",
        ),
        *("5½", "5 1/2", "1/5", "5²", "5^2", "5!", "√5", "\\sqrt{5}", "5π", "5\\pi", "5x", "5i", "2^5", "5/2", "5/0"),
        *(
            "5.5",
            "5,5",
            "5.0.1",
            "50",
            "0.5",
            ".5",
            "15",
            "5e2",
            "5×10^2",
            "A5",
            "m5",
            "5b",
            "3D5",
            "0x5",
            "5:30",
            "5-10",
        ),
        *(
            "5–10",
            "5 to 10",
            "between 4 and 5",
            "4 or 5",
            "5 or 6",
            "5 or six",
            "five or 6",
            "5, 6",
            "5 and 6",
            "$4$ or $5$",
        ),
        *(
            "\\boxed{4} \\boxed{5}",
            "at least 5",
            "at most 5",
            "more than 5",
            "less than 5",
            ">5",
            "< 5",
            "≥5",
            "over 5",
            "5+",
        ),
        *(
            "5 or more",
            "up to 5",
            "nearly 5",
            "not 5",
            "it isn't 5",
            "it is not $5$",
            "I cannot say 5",
            "5 is wrong",
            "x ≠ 5",
        ),
        *(
            "half of 5",
            "twice 5",
            "5 squared",
            "square root of 5",
            "5 plus",
            "5 minus",
            "5 below zero",
            "~~5~~",
            "负5",
            "零下5",
        ),
        *("", "five", "V", "inf", "nan", "???", "\\boxed{}", "5 out of 10", "6'5\"", "2005", "5 percent of 6", "log 5"),
    ],
    -5: ["5", "5.", "+5", "x-5", "−−5", "-5 million", "-5k", "minus 5 or 6", "-5.5", "−50", "not -5"],
    1234: ["1,23", "1.234", "1,2345", "12,34", "1, 234", "234", "1", "12 34"],
    5000000: ["5", "5 thousand", "5k", "5 billion", "5 mil or so", "0.5 million", "5,000", "-5 million"],
    10: [
        "10 or 11",
        "10.5",
        "10:00",
        "10-11",
        "10x",
        "100",
        "1 0",
        "10^2",
        "x10",
        "−10",
        "10/2",
        "10.1.1",
        "10 thousand",
    ],
    "12 cm": ["12 m", "12 kg", "0.12 cm", "12 km", "-12 cm"],
    "2 hours": ["2 minutes", "2 days", "2 kg"],
    "$5": ["5 €", "5 million", "-$5", "$50"],
    "1/2": ["1", "2", "2/1", "1/3", "-1/2", "1/20"],
}
"""The same of answers that are not right; gold answers are numbers."""

FORMULAS: list[tuple[str, str, int]] = [
    *[("x^2", answer, 1) for answer in ("x^2", "x^2.", "**x^2**", "$x^2$", "x \\cdot x", "The answer is x^2.")],
    *[("x^2", answer, 0) for answer in ("x^3", "2x", "x", "4", "")],
    *[("\\sqrt{8}", answer, 1) for answer in ("2\\sqrt{2}", "\\sqrt{8}.", "$2\\sqrt{2}$", "8^{1/2}")],
    *[("\\sqrt{8}", answer, 0) for answer in ("8", "4", "-\\sqrt{8}", "not $\\sqrt{8}$", "\\sqrt{8} or \\sqrt{2}")],
    *[("(1,2)", answer, 1) for answer in ("(1, 2)", "(1,2).", "\\left(1, 2\\right)")],
    *[("3x+2", answer, 1) for answer in ("2+3x", "3x + 2.", "y = 3x+2", "3 x + 2")],
    ("{1, 2}", "\\{2, 1\\}", 1),
    ("120", "5!", 1),
    ("\\text{Monday}", "Monday", 1),
    ("\\text{Monday}", "Tuesday", 0),
    ("2\\pi", "2\\pi.", 1),
    ("2\\pi", "6", 0),
]
"""Gold answers that are formulas: only the task ``math`` reads them."""

PAIRS = [
    *((gold, answer, 1) for gold, answers in RIGHT.items() for answer in answers),
    *((gold, answer, 0) for gold, answers in WRONG.items() for answer in answers),
]

KIN = {"numeric": 1.0, "regression": 1.0, "relative_accuracy": 1.0, "math": 1.0}
"""Tasks that read numbers, and the value of a right answer."""


def value(task: str, answer: str, gold: object) -> float:
    return TASKS[task](answer, Prompt("how much?", "7", answer=gold, task=task), Text(answer))


def test_the_table_has_at_least_three_hundred_pairs_of_both_kinds():
    assert len(PAIRS) + len(FORMULAS) >= 300 and sum(right for *_, right in PAIRS) >= 150
    assert sum(not right for *_, right in PAIRS) >= 150 and len({(str(g), a) for g, a, _ in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("task", KIN)
def test_numbers_are_read_alike_by_every_task(task):
    if task == "math":
        pytest.importorskip("math_verify")
    wrong = []
    for gold, answer, right in PAIRS:
        if task != "math" and (gold, answer) in (("1/2", "50%"), (5, "5!")):
            continue  # a percentage is compared as a fraction by math alone
        if task == "math" and (gold, answer) == (5, "five"):
            continue  # words up to a hundred are read by math alone
        got = value(task, answer, gold)
        if got != KIN[task] * right if right or task in ("numeric", "math") else got >= KIN[task]:
            wrong.append((gold, answer, got))
    assert wrong == []


@pytest.mark.parametrize(("gold", "answer", "right"), FORMULAS)
def test_formulas_are_compared_by_what_they_are_equal_to(gold, answer, right):
    pytest.importorskip("math_verify")
    assert value("math", answer, gold) == right


@pytest.mark.parametrize("answer", ["5 million", "minus 5", "x-5", "10 or 11", "5 tenths", "not 5", "5 kg or so"])
def test_what_is_not_read_is_no_other_number(answer):
    read = quantity(answer)
    assert read is None or read.value != 5


@pytest.mark.parametrize(
    ("task", "right", "wrong"),
    [
        ("exact",
         {"-5": ["−5", "- 5", "**-5**", "$-5$", "\\boxed{-5}"], "red cat": ["**Red cat**.", "“red cat”"]},
         {"-5": ["5", "x-5", "-5,"], "red cat": ["**Red cat**!"], "5!": ["5"], "5": ["5!"]}),
        ("choice",
         {"B": ["**B**", "B,", "\\boxed{B}", "$B$", "Answer: B", "The answer is B.", "Option B", "(B).", "B) red"]},
         {"B": ["B. red C. blue", "A) red B) blue", "not B", "A, B", "B or C"]}),
        ("choices", {"A,C": ["A and C", "A, C.", "**A**, **C**", "C; A", "\\boxed{A, C}", "A C"]},
         {"A,C": ["A or B", "A, B, C", "neither"]}),
        ("yes_no", {"yes": ["**Yes**", "Yes!", "_yes_", "Yes, it is not black"]},
         {"yes": ["I cannot say yes", "not yes", "yes or no", "it isn't a yes"]}),
    ],
)  # fmt: skip
def test_words_and_letters_are_read_through_emphasis_and_punctuation(task, right, wrong):
    for gold, answers in right.items():
        assert [value(task, answer, gold) for answer in answers] == [1] * len(answers)
    for gold, answers in wrong.items():
        assert [value(task, answer, gold) < 1 for answer in answers] == [True] * len(answers)


@pytest.mark.parametrize(
    ("answer", "span"),
    [
        ("12.5 to 17", (12.5, 17)),
        ("from 12.5 seconds to 17 seconds.", (12.5, 17)),
        ("1 to 2 minutes", (60, 120)),
        ("1:02 to 1:30", (62, 90)),
        ("−5 to 7", (-5, 7)),
        ("1,234 to 1,300", None),
        ("10 to 20 frames", None),
        ("x-5 to 7", None),
        ('{"start_time": "1:02", "end_time": "90 s"}', (62, 90)),
    ],
)
def test_times_keep_their_signs_and_units(answer, span):
    from reward_models.rules.grounding import read_span

    assert read_span(answer) == span


def test_boxes_and_lists_keep_their_signs():
    from reward_models.rules.grounding import read_box, read_point
    from reward_models.rules.parsing import literal

    assert read_box("[−5, 0, 10, 20]") == (-5, 0, 10, 20) and read_box("(- 5, 0), (10, 20)") == (-5, 0, 10, 20)
    assert read_point("(−5, 10)") == (-5, 10) and literal("[−5, - 2, 3]") == [-5, -2, 3]
    assert literal('["a − 5"]') == ["a − 5"]  # what can be read as it is, is not changed


def main() -> None:
    """Print where math-verify's defaults and the task ``math`` differ on the table."""
    from math_verify import parse, verify

    rows = [*PAIRS, *FORMULAS]
    wrong = {"math": 0, "math-verify": 0}
    for gold, answer, right in rows:
        theirs = int(verify(parse(str(gold)), parse(answer)))
        ours = int(value("math", answer, gold))
        wrong["math"] += ours != right
        wrong["math-verify"] += theirs != right
        if theirs != ours:
            print(f"{gold!s:12} {answer!r:40} right {right}  math {ours}  math-verify {theirs}")
    print(f"{len(rows)} pairs; wrong: {wrong}")


if __name__ == "__main__":
    main()
