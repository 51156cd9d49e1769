"""DRAGON's contrast of two halves, and the reward of sets that uses it."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.rewards import scorer
from mmgrpo.types import Prompt, Text
from reward_models.sets.distances import vendi_score
from reward_models.sets.rewards import contrast


def near_one(rows):
    return -abs(float(rows.mean()) - 1)


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_elements_change_places_where_the_positive_half_gains():
    """{0, 4} and {1, 3}: F = -1 both. 1 for 0 gives the mean 2.5; 3 for 4 gives 1.5: D+ = {0, 3}."""
    assert contrast(column(0, 4, 1, 3), near_one) == [True, False, False, True]
    # {5, 5} is the worse half: D+ = {1, 2}, F = -.5; 5 for 1 and 5 for 2 make it worse.
    assert contrast(column(5, 5, 1, 2), near_one) == [False, False, True, True]
    # Swaps are tried in turn: after 1 for 4 (mean 1), 1 for 1 changes nothing.
    assert contrast(column(4, 1, 1, 1), near_one) == [False, False, True, True]


def test_a_reward_of_single_samples_compares_pairs():
    """For F the sum of r, D+ has the better one of every pair: DRAGON's instance-wise case."""
    values = column(3, 0, 5, 1, 2, 4)
    positive = contrast(values, lambda rows: float(rows.sum()))
    assert positive == [True, False, True, False, True, False]


@pytest.mark.parametrize("seed", range(5))
def test_the_positive_half_is_at_least_as_good_as_both_halves_were(seed):
    rows = torch.rand(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    positive = torch.tensor(contrast(rows, vendi_score))
    assert int(positive.sum()) == 4 and (positive[:4] ^ positive[4:]).all(), "one of every pair"
    assert vendi_score(rows[positive]) >= max(vendi_score(rows[:4]), vendi_score(rows[4:]))


def angle(outputs):
    """Embeddings of texts: a direction in degrees; NaN where there is none."""
    degrees = [math.radians(float(one.text)) if one.text else math.nan for one in outputs]
    return torch.tensor([[math.cos(one), math.sin(one)] for one in degrees])


def test_the_reward_is_one_in_the_positive_half_and_an_odd_row_is_not_scored():
    """0, 0 | 90, 0: the second half is more diverse. The fifth row has no partner, the sixth no embedding."""
    reward = scorer(f"vendi(embed='{__name__}:angle', credit='contrast')")
    values = reward.fn([Prompt("a", "0")] * 6, [Text(one) for one in ("0", "0", "90", "0", "45", "")])
    assert values[:4] == [0, 0, 1, 1] and all(map(math.isnan, values[4:]))


@pytest.mark.parametrize(("credit", "expected"), [("shared", 1.0), ("contrast", 0.0)])
def test_every_prompt_has_its_set_although_one_before_it_has_none(credit, expected):
    """The first prompt's texts have no embedding; of two alike, the first of each later pair is positive."""
    reward = scorer(f"vendi(embed='{__name__}:angle', credit='{credit}')")
    prompts = [Prompt("a", name) for name in "aabbcc"]
    values = reward.fn(prompts, [Text(one) for one in ("", "", "0", "0", "90", "90")])
    assert all(map(math.isnan, values[:2])) and values[2:] == pytest.approx([1, expected] * 2)
