"""Thought dropout."""

from __future__ import annotations

import pytest

from mmgrpo.data.thoughts import EMPTY, drop_thoughts
from mmgrpo.types import Prompt
from reward_models.rules.tags import STYLES

WRITTEN = [f"<think>\nfirst {number}\n</think>\n<answer>{number}</answer>" for number in range(400)]


def test_about_half_of_the_thoughts_are_emptied_and_every_answer_stays():
    dropped = drop_thoughts(WRITTEN, seed=1)
    empty = [text for text in dropped if text.startswith(EMPTY)]
    assert 160 < len(empty) < 240  # 200 +- 4 standard deviations
    assert all(new == old or new == EMPTY + old.split("</think>")[1] for new, old in zip(dropped, WRITTEN, strict=True))
    assert drop_thoughts(WRITTEN, seed=1) == dropped != drop_thoughts(WRITTEN, seed=2)


def test_none_and_all_are_dropped_at_the_ends():
    assert drop_thoughts(WRITTEN, 0.0) == WRITTEN
    assert all(text.startswith(EMPTY) for text in drop_thoughts(WRITTEN, 1.0))


def test_half_are_dropped_by_default_and_only_the_first_thought_of_each():
    assert drop_thoughts(WRITTEN) == drop_thoughts(WRITTEN, 0.5, seed=0)
    assert drop_thoughts(["<think>a</think><think>b</think>"], 1.0) == [f"{EMPTY}<think>b</think>"]


def test_an_empty_thought_has_the_form_that_is_rewarded():
    (text,) = drop_thoughts(WRITTEN[:1], 1.0)
    assert STYLES["think_answer_loose"](text, Prompt("?"))


@pytest.mark.parametrize(
    ("completions", "probability", "message"),
    [
        (["5"], 0.5, "completion 0.*'5'"),
        (WRITTEN, 1.5, "probability 1.5.*0.*1"),
        (WRITTEN, -0.1, "probability -0.1.*0.*1"),
    ],
)
def test_what_has_no_thought_is_refused(completions, probability, message):
    with pytest.raises(ValueError, match=message):
        drop_thoughts(completions, probability)
