"""What is read from a judge's answer, and what is not: a failure is None and never a plausible number."""

from __future__ import annotations

import pytest

from reward_models.judges.verdicts import conclusion, flex_verdict, json_object, number_after, verdict

READ = {
    "Score: 4": 4,
    "score = 4.5": 4.5,
    "Score: 4.5/5": 4.5,
    "Score: 4 out of 5": 4,
    "**Score**: **3**": 3,
    "**Score:** 3": 3,
    "Score (1-5): 2": 2,
    "Good light, weak hands.\nScore:\n3": 3,
    "The score is fine. Score: 3.": 3,
    "Score\uff1a4": 4,
    "Score\uff1a\uff14\uff0e\uff15": 4.5,
    '{"score": 4, "why": "sharp"}': 4,
    '```json\n{"score": "4"}\n``` I hope that this helps.': 4,
    "<think>Perhaps Score: 1? No.</think>Score: 5": 5,
    "It is fine, perhaps Score: 2.</think>\nScore: 3": 3,
    "Score: 4\nIn short: Score: 4": 4,
    "4": 4,
    "4.5/5": 4.5,
    "[4]": 4,
    "Score: 5 stars": 5,
    "Perhaps Score: 1.</THINK>Score: 2</think>\nScore: 3": 3,
}

NOT_READ = [
    None,
    "",
    "   ",
    "I'm sorry, but I cannot rate this image.",
    "Score: 6",
    "Score: 0",
    "Score: -3",
    "Score: 9/10",
    "Score: 4/5, or Score: 4/10",
    "Score: 90%",
    "Score: 4,5",
    "Score: 1.2.3",
    "Score: 1-5",
    "Score: four",
    "Score: N/A",
    "Score: nan",
    "Score: 4. No, on reflection Score: 2",
    "Underscore: 4",
    "The picture has 4 dogs.",
    "<think>Score: 4",
    "<think>Score: 4</think>",
    "4 of the dogs are missing",
    "Score: 4 or 5",
    "Score: 4 to 5",
    "Score: 4 - 5",
    "Score: 4 and a half",
    "Score: 4 1/2",
    "Score: 4\u00bd",
    "Score: 4 million",
    "Score: \u22124",
    "4 or 5",
    "3 4",
    "Score 4",
    "Score: 1e3",
    ":",
    "Thought process:",
]


@pytest.mark.parametrize(("answer", "value"), READ.items())
def test_a_number_after_its_label_is_read(answer, value):
    assert number_after(answer, "Score", 1, 5) == value


@pytest.mark.parametrize("answer", NOT_READ)
def test_anything_less_clear_is_no_number(answer):
    assert number_after(answer, "Score", 1, 5) is None


def test_a_minus_sign_is_one_of_any_kind_and_a_fraction_is_no_digit():
    assert number_after("Score: \u22122", "Score", -3, 3) == -2 and number_after("Score: -2", "Score", -3, 3) == -2
    assert number_after("Score: 4\u00bd", "Score", 0, 100) is None  # not 41


def test_there_are_at_least_thirty_answers_above():
    assert len(READ) + len(NOT_READ) >= 30


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("Verdict: 1", 1.0),
        ("Verdict: **2**", 0.0),
        ("The left one is sharper.\nVerdict: tie", 0.5),
        ("[[A]]", 1.0),
        ("[[B]]", 0.0),
        ("[[C]]", 0.5),
        ("Image 1 is better", 1.0),
        ("<think>Image 1 looks better at first.</think><answer>Image 2 is better</answer>", 0.0),
        ("Output 2 is better than the other.", 0.0),
        ("Verdict: 1, at first.\nVerdict: 2", 0.0),
        ("2", 0.0),
        ("Neither", 0.5),
        ("<ANSWER>\nImage 1 is better\n</ANSWER>", 1.0),
        ("Verdict: 1\n<answer>2</answer>", 0.0),
        ("WINNER: a", 1.0),
        ("Image 1 and image 2 are equal", None),
        ("Verdict: 1 or 2", None),
        ("Image 1 is better than Image 2", None),
        ("Image 1 is worse", None),
        ("Image 1 is not better", None),
        ("Image 1 is nice.\nIt has 2 dogs.", None),
        ("Verdict: 3", None),
        ("I cannot compare them.", None),
        ("<think>Verdict: 1", None),
        ("", None),
        (None, None),
    ],
)
def test_verdicts(answer, value):
    assert verdict(answer) == value


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        ('{"a": 1} That is all.', {"a": 1}),
        ('Here:\n```json\n{"a": {"b": [1]}}\n```', {"a": {"b": [1]}}),
        ('{"a": 1} {"a": 2}', None),
        ('{"a": 1, "a": 2}', None),
        ('{"a": NaN}', None),
        ('{"a": 1', None),
        ("no object", None),
        ("{" * 100_000, None),
    ],
)
def test_json_is_found_among_text_and_must_be_one_object(answer, content):
    assert json_object(answer) == content


def test_the_reasoning_of_a_judge_is_no_part_of_its_answer():
    assert conclusion("<THINK>a</THINK> b <think>c</think> d") == "b  d"
    assert conclusion("5 <think>a\nb</THINK>") == "5"
    assert conclusion("<think>never ends") == ""


def test_flex_is_the_mean_of_the_winner_and_of_the_categories():
    answer = (
        '{"categories": [{"cat_winner": "Image 1"}, {"cat_winner": "Image 2"}, {"cat_winner": "?"}], "winner": "%s"}'
    )
    assert flex_verdict(answer % "Image 1") == 0.75
    assert flex_verdict(answer % "Image 2") == 0.25
    assert flex_verdict('{"winner": "Image 2"}') == 0.0
    assert flex_verdict(answer % "both images") == 0.5
    assert flex_verdict('{"categories": []}') is flex_verdict("no object") is flex_verdict(None) is None
    three = '{"categories": [{"cat_winner": "1"}, {"cat_winner": "1"}, {"cat_winner": "2"}, 3], "winner": "1"}'
    assert flex_verdict(three) == (1 + 2 / 3) / 2
    assert flex_verdict('{"categories": "Image 2", "winner": "1"}') == 1.0
