"""``check-data`` on rows of spoken English whose transcripts are in other letters."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.cli.check_data import gold_problem, gold_rewards, task_problem
from mmgrpo.types import Audio, Media, Prompt, Turn

SPOKEN = (Turn("user", (Media("audio", Audio(torch.ones(1, 16), 16)),)),)


@pytest.mark.parametrize(
    ("answer", "language", "task", "named"),
    [
        ("今天天气很好", "en", "", True),
        ("今天天气很好", "English", "transcribe", True),
        ("今天天气很好", "zh", "", False),
        ("今天天气很好", "", "", False),
        ("今天天气很好", "en", "translate", False),  # into another language
        ("nice weather", "en", "", False),
    ],
)
def test_a_transcript_in_other_letters_than_its_language_is_a_problem_of_its_row(answer, language, task, named):
    problem = task_problem(Prompt("", "7", answer, task, {"language": language}, SPOKEN))
    assert (problem is not None) == named
    if problem:
        assert problem.id == "7" and "language" in problem.reason


def test_a_rule_that_does_not_fit_the_letters_is_a_problem_of_its_row():
    pytest.importorskip("whisper_normalizer")
    row = Prompt("", "7", "今天天气很好", turns=SPOKEN)
    problem = gold_problem(row, gold_rewards(["one_minus_wer(normal='english')"]))
    assert problem is not None and "normal='english'" in problem.reason
