"""Parsers of numbers, literals and gold answers, on both sides of their limits."""

from __future__ import annotations

import math

import pytest

from reward_models.rules.parsing import (
    complete,
    literal,
    number,
    numbers,
    words,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 2]", [1, 2]),
        ("{'a': None}", {"a": None}),
        ('{"a": null}', {"a": None}),
        ("null", None),
        ("```json\n[1]\n```", [1]),
        ("no: ```[1]``` but ```json [2]``` then", [2]),
        ("[1] ```[2]", None),
        (" [" + " " * 19_997 + "]", []),
        (" [" + " " * 19_998 + "]", None),
        ("[" * 9999, None),
        ("1 +", None),
        ("{[]: 1}", None),
    ],
)
def test_a_literal_is_json_or_python_or_nothing(text, value):
    assert literal(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.5 km", 1234.5),
        (" " * 999 + "5", 5),
        (" " * 1000 + "5", None),
        ("-0.5", -0.5),
        (".5", 0.5),
        ("1 2", None),
        ("a5", None),
        ("1e999", None),
        ("", None),
    ],
)
def test_a_number_is_the_only_one_of_a_short_text(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    ("value", "count", "expected"),
    [
        ([1, 2.5], 2, (1.0, 2.5)),
        ((1,), 1, (1.0,)),
        ([], 0, ()),
        ([1, 2], 3, None),
        ([1, 2], 1, None),
        ("12", 2, None),
        ({1: 2}, 1, None),
        ([1, True], 2, None),
        ([1, "2"], 2, None),
        ([1, math.inf], 2, None),
        ([1, 10**400], 2, None),
    ],
)
def test_numbers_are_a_list_of_as_many_finite_ones(value, count, expected):
    assert numbers(value, count) == expected


def test_a_list_is_complete_or_nothing():
    assert complete(iter([0, "", 2])) == [0, "", 2] and complete([]) == []
    assert complete([0, None, 2]) is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (".", ""),
        ("**Red**!", "red"),
        ("$-5$", "-5"),
        ("− 5", "-5"),
        ("\\boxed{\\text{Red}}", "red"),
        ("5!", "5!"),
        ("“A”", "a"),
    ],
)
def test_words_are_compared_without_marks_around_them(text, plain):
    assert words(text) == plain


def test_words_are_compared_without_case_spaces_and_a_final_stop():
    assert words("  Red \n CAT . ") == "red cat" and words("a.b..") == "a.b."
