"""Answers that are words, letters or numbers."""

from __future__ import annotations

import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.answers import fraction_of_choices, fuzzy_count, mean_relative_accuracy
from reward_models.rules.tasks import TASKS


def value(task: str, answer: str, gold, **meta) -> float:
    prompt = Prompt("a question", "7", answer=gold, task=task, meta=meta)
    return TASKS[task](answer, prompt, Text(answer))


@pytest.mark.parametrize(
    ("task", "answer", "gold", "expected"),
    [
        ("exact", "Red  Cat.", "red cat", 1),
        ("exact", "a red cat", "red cat", 0),
        ("exact", "5", 5, 1),
        ("exact", "grey", ["gray", "grey"], 1),
        ("exact", ".", "red", 0),
        ("exact", "", ".", 0),  # nothing is left of the gold answer either
        ("exact", "red!", "red", 0),
        ("exact", "red,", "red", 0),
        ("exact", "red!", "Red!", 1),
        ("classification", "The Golden_Retriever.", "golden retriever", 1),
        ("classification", "goldenretriever", "golden-retriever", 1),
        ("classification", "Golden_Retriever dog", "golden retriever", 0),
        ("classification", "retriever", "golden retriever", 0),
        ("classification", "retriever", ["golden retriever", "retriever"], 1),
        ("classification", "cat or dog or bird", "cat", 0),
        ("classification", "not a cat", "cat", 0),
        ("classification", "a", "cat", 0),
        ("classification", "t", "cat", 0),
        ("classification", "the", "the", 1),
        ("classification_visual_rft", "Golden_Retriever dog", "golden retriever", 1),
        ("classification_visual_rft", "retriever", "golden retriever", 1),
        ("classification_visual_rft", "cat or dog or bird", "cat", 1),
        ("classification_visual_rft", "poodle", "golden retriever", 0),
        ("classification_visual_rft", "", "golden retriever", 0),  # "" is a part of every name
        ("classification_visual_rft", " _ ", "golden retriever", 0),
        ("classification", "poodle", "golden retriever", 0),
        ("classification", "", "golden retriever", 0),
        ("classification", " _ ", "golden retriever", 0),
        ("choice", "B", "B", 1),
        ("choice", "(b)", "B", 1),
        ("choice", "B. a red cat", "b", 1),
        ("choice", "B: red", "(B)", 1),
        ("choice", "a dog", "A", 0),
        ("choice", "A or B", "A", 0),
        ("choice", "C", "B", 0),
        ("choice", "B - a cat", "B", 1),
        ("choice", "B – a cat", "B", 1),
        ("choice", "b - a cat", "B", 1),
        ("choice", "c (the sea)", "C", 1),
        ("choice", "It's B - a cat", "B", 1),
        ("choice", "a - cat", "A", 0),  # an article
        ("choice", "C (the sea)", "C", 1),
        ("choice", "It's B", "B", 1),
        ("choice", "It’s B.", "B", 1),
        ("choice", "A - B", "A", 0),
        ("choice", "A (B)", "B", 0),
        ("choice", "It's a cat", "A", 0),
        ("choice", "not B", "B", 0),
        ("choice", "AB", "A", 0),
        # |prediction| / |correct| if every letter is correct
        ("choices", "A", "A,B", 0.5),
        ("choices", "A,C", "A,B", 0),
        ("choices", "b, A", "A,B", 1),
        ("choices", "A,A", "A,B", 0.5),
        ("choices", "", "A,B", 0),
        ("choices", ",", "A", 0),
        ("choices", "A,B,C,D", "A", 0),
        ("choices", "C", ["A", "C"], 0.5),
        ("yes_no", "Yes, it is.", "yes", 1),
        ("yes_no", "No", False, 1),
        ("yes_no", "Yes", True, 1),
        ("yes_no", "yes", "Yes.", 1),
        ("yes_no", "yes and no", "yes", 0),
        ("yes_no", "I know nothing", "no", 0),  # neither word stands there by itself
        ("numeric", "5", 5, 1),
        ("numeric", "5 apples", "5", 1),
        ("numeric", "-1,234.50", -1234.5, 1),
        ("numeric", "1e3", 1000, 1),
        ("numeric", "4 or 5", 5, 0),
        ("numeric", "m5", 5, 0),
        ("numeric", "5cm", 5, 1),
        ("numeric", "5x2", 5, 0),
        ("numeric", "35x2", 3, 0),
        ("numeric", "5.1.2", 5.1, 0),
        ("numeric", "5.", 5, 1),
        ("numeric", "five", 5, 0),
        ("numeric", "inf", 5, 0),
        ("numeric", "1e999", 5, 0),
        ("numeric_video_r1", "0.333", "0.33", 1),
        ("numeric_video_r1", "0.33", "0.333", 1),
        ("numeric_video_r1", "0.34", "0.33", 0),
        ("numeric_video_r1", "3", "3.0", 0),  # one of them has a decimal point
        ("numeric_video_r1", "3.00", "3.0", 1),
        # 1 - min(1, |p - g| / |g|)
        ("regression", "90", 100, 1 - (10 + 1e-9) / (100 + 1e-9)),
        ("regression", "250", 100, 0),
        ("regression", "0", 0, 1),
        ("regression", "2e-9", 3e-9, 0.5),  # 1 - (1 + 1) / (3 + 1)
        ("regression", "1", 0, 0),
        ("relative_accuracy", "90", 100, 0.8),
        ("relative_accuracy", "60", 100, 0.2),
        ("relative_accuracy", "100", 100, 1),
        ("relative_accuracy", "50", 100, 0),
        ("count_fuzzy", "90", 100, 1.4),
        ("count_fuzzy", "110 people", 100, 1.4),
        ("count_fuzzy", "50", 100, 0),
        ("count_fuzzy", "51", 100, 1.01),
        ("count_fuzzy", "1", 1, 1.5),
        ("count_fuzzy", "many", 100, 0),
        ("jaccard", "cat; dog", "dog;bird", 1 / 3),
        ("jaccard", "cat;cat;", ["cat"], 1),
        ("jaccard", ";", "cat", 0),
        ("edit", "kitten", "sitting", 4 / 7),  # 3 edits of 7 letters
        ("edit", "", "sitting", 0),
        ("edit_ratio", "", "sitting", 0),
        ("edit_ratio", "kitten", "sitting", 8 / 13),  # 2 out, 3 in: 5 of 13 letters
        ("ocr_wer", "a big red cat", "a red cat", 2 / 3),  # one word too many, of three
        ("ocr_wer", "one two three four five", "six", 0),
        # 1-grams 2 * 2 / 5, 2-grams none, longest common subsequence "the cat" 2 * 2 / 5
        ("rouge", "the black cat", "The cat!", (0.8 + 0 + 0.8) / 3),
        ("rouge", "the cat sat", "the cat sat", 1),
        ("rouge_l", "the black cat", "The cat!", 0.8),
        ("rouge_l", "cat the", "the cat", 0.5),
        ("rouge_l", "", "the cat", 0),
        ("rouge_l", "a caf", "Café", 2 / 3),  # of "a" and "caf" one is in "caf": letters a to z alone, as rouge_score
        ("ranking", "A > B > C", "B > A > C", 2 / 3),  # one of three pairs is wrong
        ("ranking", "C, A, B", ["B", "A", "C"], 0),
        ("ranking", "B > A", "B > A > C", 0),
    ],
)
def test_worked_values(task, answer, gold, expected):
    assert value(task, answer, gold) == pytest.approx(expected, abs=1e-12)


RAW = "She sold 48/2 = <<48/2=24>>24 clips in May.\n48+24 = <<48+24=72>>72 in all.\n#### "


@pytest.mark.parametrize("task", ["exact", "math", "numeric", "vlm_r1"])
def test_a_gold_solution_of_gsm8k_is_what_stands_behind_its_mark(task):
    if task in ("math", "vlm_r1"):
        pytest.importorskip("math_verify")
    assert [value(task, answer, RAW + "72") for answer in ("72", "24", "")] == [1, 0, 0]
    assert [value(task, answer, RAW + "1,234") for answer in ("1234", "1,234", "12")] == [1, 1, 0]


def test_a_heading_in_a_gold_text_is_no_mark():
    gold = "#### Steps\nFirst the cat, then the dog"
    assert value("exact", gold, gold) == 1 and value("exact", "72", "x #### 72") == 0


OPTIONS = [
    ["cat", "dog"],
    "['cat', 'dog']",  # MMMU
    {"A": "cat", "B": "dog"},
    {"text": ["cat", "dog"], "label": ["A", "B"]},  # ARC
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("key", ["options", "choices"])
@pytest.mark.parametrize("gold", [1, "1", "B", "(b)", "dog"])
def test_a_choice_is_a_letter_a_number_or_a_text_of_the_options(options, key, gold):
    got = [
        value("choice", answer, gold, **{key: options}) for answer in ("B", "dog", "B (dog)", "A", "cat", "B. cat", "1")
    ]
    assert got == [1, 1, 1, 0, 0, 0, 0]


def test_labels_and_texts_of_options_come_before_their_numbers():
    assert value("choice", "B", "2", options={"label": ["1", "2"], "text": ["cat", "dog"]}) == 1
    assert value("choice", "B", "2", options=["1", "2", "3"]) == 1
    assert value("choice", "C", "C", options={"C": "cat", "D": "dog"}) == 1
    assert value("choices", "A,B", [0, "dog"], options=["cat", "dog", "bird"]) == 1
    # as a number 2 may be the second text or, counted from 0, the third
    for gold, options in [(2, ["1", "2", "3"]), (2, ["cat", "dog"]), (-1, ["cat", "dog"]), ("C", ["cat", "dog"])]:
        with pytest.raises(ValueError, match=f"'7'.*answer.*{gold}"):
            value("choice", "B", gold, options=options)


def test_shares_and_gaps_are_those_of_the_papers():
    assert fraction_of_choices({"A"}, {"A", "B"}) == 0.5
    assert fraction_of_choices({"A", "C"}, {"A", "B"}) == 0
    assert (mean_relative_accuracy(90, 100), mean_relative_accuracy(60, 100)) == (0.8, 0.2)
    assert (fuzzy_count(90, 100), fuzzy_count(50, 100)) == (1.4, 0)


@pytest.mark.parametrize("error", range(1, 20))
def test_relative_accuracy_does_not_turn_on_the_last_bit(error):
    # The error is the limit of a threshold wherever it is below 1/2, and limits do not count: 10 - error are left.
    expected = max(0, 10 - error) / 10
    for gold in (20, 0.2, 7.0, 1e6):
        assert mean_relative_accuracy(gold * (1 - error / 20), gold) == expected
        assert mean_relative_accuracy(gold * (1 + error / 20), gold) == expected
        assert mean_relative_accuracy(gold * (1 + (error - 0.01) / 20), gold) == max(0, 11 - error) / 10


@pytest.mark.parametrize(
    ("answer", "expected"), [("0.4", 1), ("0.2", 1), ("0.41", 0), ("0.19", 0), ("0.30000000000000004", 1)]
)
def test_a_tolerance_includes_its_ends(answer, expected):
    # 0.4 - 0.3 is 0.10000000000000003 in floating point
    assert value("numeric", answer, 0.3, tolerance=0.1) == expected


def test_without_a_tolerance_numbers_must_be_equal():
    assert value("numeric", "0.30000000000000004", 0.3) == 1
    assert value("numeric", "0.3001", 0.3) == 0
    assert value("numeric", "0", 0) == 1
    # the relative difference that is left to rounding is 1e-9
    assert value("numeric", "1.0000000005", 1) == 1
    assert value("numeric", "1.0000000015", 1) == 0
    assert value("numeric", "1e-15", 0) == 0


def test_a_choice_may_be_named_by_its_own_text():
    options = ["a red cat", "A", "a blue cat"]
    assert value("choice", "a blue cat.", "C", options=options) == 1
    assert value("choice", "A", "B", options=options) == 1  # the text of option B
    assert value("choice", "a cat", "C", options=options) == 0
    assert value("choice", "", "A", options=["", "red"]) == 0


@pytest.mark.parametrize(
    ("task", "gold", "expected"),
    [
        ("exact", None, "text"),
        ("exact", [], "text"),
        ("exact", ["red", " "], "non-empty texts"),
        ("classification", "", "non-empty"),
        ("choice", "AB", "one letter"),
        ("choices", ",", "letters"),
        ("choices", [], "letters"),
        ("choices", "A,red", "letters"),
        ("yes_no", "perhaps", "yes or no"),
        ("yes_no", None, "yes or no"),
        ("numeric", "three", "number"),
        ("numeric", float("nan"), "number"),
        ("numeric", True, "number"),
        ("relative_accuracy", 0, "other than 0"),
        ("count_fuzzy", 0, "count"),
        ("jaccard", ";", "labels"),
        ("rouge", "!", "letters"),
        ("rouge_l", "红猫", "letters"),
        ("edit", 3.5j, "non-empty"),
    ],
)
def test_a_gold_answer_that_cannot_be_used_is_an_error_that_names_the_prompt(task, gold, expected):
    with pytest.raises(ValueError, match=f"'7'.*answer.*{expected}"):
        value(task, "3", gold)


def test_parameters_that_cannot_be_used_are_errors_that_name_them():
    with pytest.raises(ValueError, match=r"meta\.tolerance.*'wide'"):
        value("numeric", "3", 3, tolerance="wide")
    with pytest.raises(ValueError, match=r"meta\.tolerance.*-1"):
        value("numeric", "3", 3, tolerance=-1)
    for options in ("red", ["red", 3]):
        with pytest.raises(ValueError, match=r"meta\.options"):
            value("choice", "A", "A", options=options)
