"""Rewards of generated speech in [0, 1], of its length and of its tokens: worked numbers, and what has no score."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Audio, Decisions, Prompt
from reward_models.speech import intelligibility
from reward_models.speech.decoding import group_length, length_window, token_entropy
from reward_models.speech.intelligibility import harmonic_mean, spoken_cer_nll, spoken_likelihood, spoken_tanh_cer

RATE = 8_000


def hum(seconds: float) -> Audio:
    return Audio(torch.full((1, round(seconds * RATE)), 0.1), RATE)


PROMPTS = [Prompt("good morning", str(number)) for number in range(4)]


@pytest.fixture
def judged(monkeypatch) -> list[str]:
    """A recognizer whose character error rates are 0, .1, 2 and undefined, with NLLs 0, 1, 3 and undefined."""
    asked: list[str] = []

    def neg_cer(prompts, outputs, path, cap, normal):
        asked.append(f"{path} {cap} {normal}")
        return [-0.0, -0.1, -2.0, math.nan]

    monkeypatch.setattr(intelligibility, "spoken_neg_cer", neg_cer)
    monkeypatch.setattr(intelligibility, "spoken_log_prob", lambda prompts, outputs, path: [0.0, -1.0, -3.0, math.nan])
    return asked


def test_character_errors_count_by_the_hyperbolic_tangent_without_a_cap(judged):
    right, near, wrong, unheard = spoken_tanh_cer(PROMPTS, [hum(1)] * 4, path="a/b", normal="characters")
    assert right == 1 and near == pytest.approx(0.70869, abs=1e-5) and wrong == pytest.approx(1.229e-5, abs=1e-7)
    assert math.isnan(unheard) and judged == ["a/b inf characters"]
    assert spoken_tanh_cer(PROMPTS, [hum(1)] * 4, steepness=1.0)[1] == pytest.approx(0.90033, abs=1e-5)


def test_a_likelihood_is_the_exponential_of_a_third_of_the_log_probability(judged):
    values = spoken_likelihood(PROMPTS, [hum(1)] * 4)
    assert values[:3] == pytest.approx([1, 0.71653, 0.36788], abs=1e-5) and math.isnan(values[3])


def test_errors_and_likelihood_are_joined_by_the_harmonic_mean_of_the_paper(judged):
    values = spoken_cer_nll(PROMPTS, [hum(1)] * 4)
    # 1 / (.6 / .70869 + .4 / .71653)
    assert values[:2] == pytest.approx([1, 0.71181], abs=1e-5) and values[2] < 3e-5 and math.isnan(values[3])
    assert harmonic_mean(0.5, 1.0, 1.0, 1.0) == pytest.approx(2 / 3)
    assert harmonic_mean(0.5, 1.0, 0.6, 0.4) == pytest.approx(0.625)
    assert harmonic_mean(0.0, 1.0, 0.6, 0.4) == 0 and math.isnan(harmonic_mean(0.0, math.nan, 0.6, 0.4))


def test_a_length_is_compared_with_the_median_of_its_own_group():
    prompts = [Prompt("a", id) for id in "00011"]
    sounds = [hum(1), hum(2), hum(6), hum(4), Audio(torch.zeros(1, 0), RATE)]
    *values, empty = group_length(prompts, sounds)
    assert values == pytest.approx([-0.5, 0, -2, 0]) and math.isnan(empty)
    assert math.copysign(1, values[1]) == 1
    shared = Prompt("no id")
    assert group_length([shared, shared, Prompt("no id")], [hum(1), hum(3), hum(9)]) == pytest.approx([-0.5, -0.5, 0])


@pytest.mark.parametrize(("seconds", "value"), [(1.39, 0), (1.4, 1), (2.6, 1), (2.61, 0)])
def test_a_length_is_right_within_the_window_of_the_text(seconds, value):
    prompt = Prompt("a" * 10 + " " + "b" * 20)  # 30 characters, 2 s
    assert length_window([prompt], [hum(seconds)]) == [value]
    assert math.isnan(length_window([prompt], [Audio(torch.zeros(1, 0), RATE)])[0])
    short = [hum(1 / 15), hum(2 / 15)]  # of one character, and at least that of none
    assert length_window([Prompt("a")] * 2, short) == length_window([Prompt("")] * 2, short) == [1, 0]


def test_the_entropy_of_tokens_costs_only_above_the_target_and_padding_does_not_count():
    entropy = torch.tensor([[1.0, 3.0, 9.0], [2.0, 3.0, 4.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    rows = torch.zeros(2, dtype=torch.long)
    node = torch.arange(6).view(2, 3)
    decisions = Decisions(-entropy, mask, mask, node, rows, {"prompt": rows}, {"entropy": entropy})
    values = token_entropy(PROMPTS[:2], [hum(1)] * 2, target=2.25, rollout=decisions)
    assert values == [0, -0.75] and math.copysign(1, values[0]) == 1  # means 2 and 3
    without = Decisions(-entropy, mask, mask, node, rows, {"prompt": rows})
    with pytest.raises(ValueError, match="entropy"):
        token_entropy(PROMPTS[:2], [hum(1)] * 2, rollout=without)


def test_what_compares_a_group_or_reads_the_rollout_says_so():
    from mmgrpo.rewards import entries

    one = entries()["group_length"].read_manifest()
    assert one is not None and one.group and scorer("token_entropy(target=1.5, weight=0.5)").reads_rollout
