"""Rows of a multiple choice: their options in the prompt, and as the rewards read them."""

from __future__ import annotations

import pytest

from mmgrpo.data.rows import as_prompts

LINES = "Which?\nA. cat\nB. dog"


@pytest.mark.parametrize(
    ("row", "text", "kept"),
    [
        ({"question": "Which?", "choices": ["cat", "dog"], "answer": 1}, LINES, {"choices": ["cat", "dog"]}),
        ({"text": "Which?", "options": ["cat", "dog"], "answer": "B"}, LINES, {"options": ["cat", "dog"]}),
        ({"text": "Which?", "options": "['cat', 'dog']", "answer": "B"}, LINES, {"options": ["cat", "dog"]}),
        ({"text": "Which?", "options": {"A": "cat", "B": "dog"}}, LINES, {"options": {"A": "cat", "B": "dog"}}),
        ({"text": "(a) Cat (b) a dog?", "options": ["cat", "dog"]}, "(a) Cat (b) a dog?", {"options": ["cat", "dog"]}),
        ({"text": "How many?", "options": [1, 2.5]}, "How many?\nA. 1\nB. 2.5", {"options": [1, 2.5]}),
        ({"text": "Which?", "options": "strict"}, "Which?", {"options": "strict"}),
        ({"text": "Which?", "options": ["one"]}, "Which?", {"options": ["one"]}),
        ({"text": "Which?", "choices": [{"a": 1}, {"b": 2}]}, "Which?", {"choices": [{"a": 1}, {"b": 2}]}),
    ],
)
def test_options_are_read_and_shown_and_kept_as_given(row, text, kept):
    (prompt,) = as_prompts([row])
    assert prompt.text == text and prompt.meta == kept and prompt.answer == row.get("answer")


def test_options_stand_behind_the_last_question_of_a_conversation():
    turns = [{"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Yes"), ("user", "So?"))]
    (prompt,) = as_prompts([{"messages": turns, "options": ["cat", "dog"]}])
    assert ["".join(map(str, turn.parts)) for turn in prompt.turns] == ["Hi", "Yes", "So?\nA. cat\nB. dog"]


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"task": "mcq"}, "choice"),
        ({"task": "multiple_choice"}, "choice"),
        ({"task": "exact"}, "exact"),
        ({"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "72"}}, "numeric"),
        ({"data_source": "aime2024", "reward_model": {"ground_truth": "72"}}, "math"),
        ({"data_source": "searchR1_nq", "reward_model": {"ground_truth": "72"}}, "exact"),
        ({"data_source": "openai/gsm8k", "reward_model": {"ground_truth": "72"}, "task": "math"}, "math"),
        ({"data_source": "own", "reward_model": {"ground_truth": "72"}}, ""),
        ({"data_source": "openai/gsm8k", "answer": "72"}, ""),  # no row of verl
    ],
)
def test_names_of_others_for_tasks(row, task):
    (prompt,) = as_prompts([{"text": "How many?", **row}])
    assert prompt.task == task
