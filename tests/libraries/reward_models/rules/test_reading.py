"""Parsers of numbers, literals and gold answers, on both sides of their limits."""

from __future__ import annotations

import math

import pytest

from mmgrpo.types import Prompt
from reward_models.rules.parsing import (
    complete,
    gold_number,
    gold_text,
    gold_texts,
    literal,
    malformed,
    meta_choice,
    meta_number,
    meta_size,
    number,
    numbers,
    words,
)


def row(answer=None, **meta) -> Prompt:
    return Prompt("a question", "7", answer=answer, meta=meta)


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


@pytest.mark.parametrize(("answer", "text"), [(" red ", "red"), (3, "3"), (2.5, "2.5")])
def test_a_gold_text_is_a_text_or_a_number(answer, text):
    assert gold_text(row(answer)) == text and gold_texts(row(answer)) == [text]


@pytest.mark.parametrize("answer", [None, True, " ", ["red"], {"a": 1}])
def test_what_is_no_gold_text_is_an_error(answer):
    with pytest.raises(ValueError, match="'7'.*answer"):
        gold_text(row(answer))


def test_several_gold_texts_are_a_list_of_them():
    assert gold_texts(row(["red ", 3])) == gold_texts(row(("red", "3"))) == ["red", "3"]
    for answer in ([], [True], ["a", None], {"a": 1}):
        with pytest.raises(ValueError, match="accepted"):
            gold_texts(row(answer))
    with pytest.raises(ValueError, match="non-empty"):
        gold_texts(row(["a", " "]))


def test_a_gold_number_is_one_finite_number():
    assert gold_number(row("1,000 m")) == 1000 and gold_number(row(2.5)) == 2.5
    for answer in (None, "two", [3], True, math.nan):
        with pytest.raises(ValueError, match="answer"):
            gold_number(row(answer))


def test_numbers_of_a_row_have_a_default_or_are_required():
    assert meta_number(row(size=3), "size") == 3 == meta_number(row(size="3"), "size", 4)
    assert meta_number(row(), "size", 4) == 4 and meta_number(row(), "size", 0) == 0
    for prompt, default in ((row(), math.nan), (row(size=None), 4), (row(size="x"), 4)):
        with pytest.raises(ValueError, match="meta.size"):
            meta_number(prompt, "size", default)
    with pytest.raises(ValueError, match="meta.size.*None"):
        meta_number(row(), "size")


def test_choices_of_a_row_are_one_of_some_words_or_the_first():
    assert [meta_choice(one, "kind", ("full", "half")) for one in (row(), row(kind="half"))] == ["full", "half"]
    with pytest.raises(ValueError, match="meta.kind.*'hal'.*'half'"):
        meta_choice(row(kind="hal"), "kind", ("full", "half"))
    with pytest.raises(ValueError, match="meta.kind.*3"):
        meta_choice(row(kind=3), "kind", ("full", "half"))


def test_a_size_is_height_and_width_above_nothing():
    assert meta_size(row(size=[1, 0.5])) == (1, 0.5)
    for size in (None, [0, 1], [1, -1], [1], "1x1"):
        with pytest.raises(ValueError, match=r"meta.size.*\[height, width\]"):
            meta_size(row(size=size))


def test_an_error_names_the_prompt_and_shows_the_beginning_of_what_it_got():
    with pytest.raises(ValueError) as caught:
        malformed(Prompt("q" * 90, "7", answer="a" * 300), "something else")
    assert str(caught.value) == f"prompt '7' ('{'q' * 80}'): got answer '{'a' * 199}, expected something else"
