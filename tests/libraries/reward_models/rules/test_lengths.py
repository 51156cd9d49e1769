"""Lengths, repetition, and rewards that look at all completions of a prompt."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mmgrpo.rewards import scorer
from mmgrpo.scoring import score_outputs
from mmgrpo.types import Prompt, Text
from reward_models.rules.lengths import cosine, cosine_length, ended, overlong, repeated_fraction

SUM = Prompt("2 + 3?", "sum", answer=5, task="numeric")
RIGHT, WRONG = "<answer>5</answer>", "<answer>6</answer>"


def score(reward: str, prompts, outputs) -> list[Any]:
    return list(scorer(reward).fn(prompts, outputs))


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0), (80, 0), (90, -0.5), (100, -1), (101, -1), (85, -0.25)])
def test_the_last_tokens_before_the_limit_cost_more_and_more(tokens, expected):
    assert overlong(tokens, 100, 20) == expected
    assert score("soft_overlong(max_tokens=100, buffer=20)", [SUM], [Text("", tokens)]) == [expected]


def test_a_buffer_may_be_one_token_or_all():
    assert score("soft_overlong(max_tokens=9, buffer=1)", [SUM] * 2, [Text("", 8), Text("", 9)]) == [0, -1]
    assert score("soft_overlong(max_tokens=4, buffer=4)", [SUM] * 2, [Text("", 0), Text("", 1)]) == [0, -0.25]


def test_a_buffer_that_does_not_fit_is_an_error():
    for buffer in (0, 101):
        with pytest.raises(RuntimeError, match="0.*max_tokens"):
            score_outputs([scorer(f"soft_overlong(max_tokens=100, buffer={buffer})")], [SUM], [Text("")])


def test_a_cosine_leads_from_short_to_long():
    assert [cosine(tokens, 100, 1.0, 0.5) for tokens in (0, 50, 100, 200)] == pytest.approx([1, 0.75, 0.5, 0.5])


def test_lengths_are_judged_by_whether_the_answer_is_right():
    outputs = [Text(text, tokens) for text in (RIGHT, WRONG, "") for tokens in (0, 50, 100)]
    expected = [1, 0.75, 0.5, -1, -0.75, -0.5, -1, -0.75, -0.5]
    assert score("cosine_length(max_tokens=100)", [SUM] * 9, outputs) == pytest.approx(expected)
    swift = "cosine_length(max_tokens=100, wrong_short=-0.5, wrong_long=0.0)"
    assert score(swift, [SUM] * 3, outputs[3:6]) == pytest.approx([-0.5, -0.25, 0])


def test_where_right_and_wrong_cannot_be_told_there_is_no_number():
    pytest.importorskip("math_verify")
    prompt = Prompt("a proverb", "7", answer="a bird in the hand", task="math")
    assert math.isnan(score("cosine_length(max_tokens=100)", [prompt], [Text(RIGHT, 5)])[0])


def test_repeated_grams_cost_their_share():
    # a b c, b c a, c a b, a b c: three of four differ
    assert repeated_fraction(["a", "b", "c", "a", "b", "c"], 3) == 0.25
    assert score("repetition", [SUM], [Text("A b c a B c")]) == [-0.25]
    assert score("repetition(n=1)", [SUM], [Text("a a a a")]) == [-0.75]
    assert score("repetition", [SUM] * 3, [Text(""), Text("a a"), Text("one two three four")]) == [0, 0, 0]


def test_lengths_pay_only_where_more_than_one_is_right():
    texts = [Text(RIGHT, 320), Text(RIGHT, 512), Text(RIGHT, 513), Text(RIGHT, 319), Text(WRONG, 400)]
    assert score("length_bonus", [SUM] * 5, texts) == [0.2, 0.2, 0, 0, 0]
    assert score("length_bonus", [SUM] * 2, [Text(RIGHT, 400), Text(WRONG, 400)]) == [0, 0]
    # those of another prompt do not count, wherever they stand
    other = Prompt("1 + 4?", "other", answer=5, task="numeric")
    assert score("length_bonus", [SUM, other, SUM], [Text(RIGHT, 400)] * 3) == [0.2, 0, 0.2]


def contrast(prompt: Prompt) -> Prompt:
    return Prompt(prompt.text, prompt.id, prompt.answer, prompt.task, {"contrast": "shuffle"})


def bonuses(ordered: list[str], shuffled: list[str], **parameters: float) -> list[float]:
    prompts = [SUM] * len(ordered) + [contrast(SUM)] * len(shuffled)
    named = ", ".join(f"{name}={value}" for name, value in parameters.items())
    return score(f"temporal_bonus({named})", prompts, [Text(text) for text in ordered + shuffled])


def test_order_pays_where_it_helped():
    assert bonuses([RIGHT, WRONG, RIGHT, RIGHT], [WRONG, RIGHT]) == [0.3, 0, 0.3, 0.3, 0, 0]
    assert bonuses([RIGHT, WRONG, WRONG, WRONG], [RIGHT, RIGHT]) == [0] * 6  # 0.25 < 0.8


def test_four_fifths_are_enough():
    assert bonuses([RIGHT] * 4 + [WRONG], [RIGHT] * 2) == [0.3] * 4 + [0] * 3  # 0.8 >= 0.8 * 1
    # 3/5 >= 0.8 * 3/4, although the right side is 0.6000000000000001 in floating point
    assert bonuses([RIGHT] * 3 + [WRONG] * 2, [RIGHT] * 3 + [WRONG]) == [0.3] * 3 + [0] * 6
    assert bonuses([RIGHT] * 4 + [WRONG], [RIGHT] * 2, ratio=0.9) == [0] * 7
    assert bonuses([RIGHT], [RIGHT], bonus=0.1) == [0.1, 0]


def test_a_wrong_answer_gets_no_bonus_although_its_group_is_better():
    assert bonuses([WRONG, WRONG], [WRONG]) == [0, 0, 0]


def test_prompts_without_contrast_get_no_bonus():
    assert bonuses([RIGHT, RIGHT], []) == [0, 0]
    assert bonuses([], [RIGHT]) == [0]


def test_every_prompt_is_compared_with_its_own_contrast():
    other = Prompt("1 + 4?", "other", answer=5, task="numeric")
    prompts = [SUM, other, contrast(other), contrast(SUM)]
    texts = [Text(text) for text in (RIGHT, RIGHT, WRONG, WRONG)]
    assert score("temporal_bonus", prompts, texts) == [0.3, 0.3, 0, 0]
    assert score("temporal_bonus", prompts[:3], texts[:3]) == [0, 0.3, 0]


def test_prompts_without_id_are_told_apart_by_being_different_objects():
    first, second = (Prompt("2 + 3?", answer=5, task="numeric") for _ in range(2))
    assert score("length_bonus", [first, second], [Text(RIGHT, 400)] * 2) == [0, 0]
    assert score("length_bonus", [first, first], [Text(RIGHT, 400)] * 2) == [0.2, 0.2]


def test_a_prompt_that_cannot_be_judged_has_no_bonus_either():
    pytest.importorskip("math_verify")
    prompt = Prompt("a proverb", "7", answer="a bird in the hand", task="math")
    values = score("temporal_bonus", [prompt, contrast(prompt)], [Text(RIGHT)] * 2)
    assert math.isnan(values[0])
    assert values[1] == 0


def test_a_value_at_the_threshold_is_not_right_yet():
    half = Prompt("label", "9", answer="a; b", task="jaccard")
    texts = [Text("<answer>a</answer>", 400)] * 2
    assert score("length_bonus(right=0.5)", [half] * 2, texts) == [0, 0]
    assert score("length_bonus(right=0.49)", [half] * 2, texts) == [0.2, 0.2]
    # a cosine takes it for right: its short end is 1, and -1 of a wrong one
    assert cosine_length([half], [Text("<answer>a</answer>", 0)], 100) == [1]
    assert cosine_length([half], [Text("<answer>a</answer>", 0)], 100, right=0.51) == [-1]
    assert cosine_length([half], [Text("<answer>c</answer>", 0)], 100) == [-1]


def test_an_answer_without_an_end_is_a_loss():
    outputs = [Text("a", 9, truncated=True), Text("a", 9)]
    assert ended([Prompt("?")] * 2, outputs) == [-1, 0]


def test_a_text_that_goes_round_or_has_no_end_is_punished():
    texts = [Text("a b a b a b"), Text("a b c a b d"), Text("a b c", truncated=True), Text("")]
    assert score("runaway(n=2, times=3)", [SUM] * 4, texts) == [-1, 0, -1, 0]
    with pytest.raises(ValueError, match="times=1"):
        score("runaway(n=2, times=1)", [SUM], texts[:1])
