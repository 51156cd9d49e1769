"""What happens exactly at a threshold, of selectors and of shapes."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.advantages import select, shape
from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.scale import SCALES
from mmgrpo.config.registry import bind

ALL = torch.ones(4, dtype=torch.bool)
KEY = torch.zeros(4, dtype=torch.long)


def real(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_reward_at_the_threshold_is_wrong():
    got = select.balanced(real(0.5, 0.5, 0.75, 0.25), KEY, ALL, count=2, threshold=0.5)
    assert got.tolist() == [True, False, True, False]
    # Of three, two are right where there are enough.
    assert select.balanced(real(1, 1, 1, 0), KEY, ALL, count=3).tolist() == [True, True, False, True]
    assert select.balanced(real(1, 0, 0, 0), KEY, ALL, count=3).tolist() == [True, True, True, False]


def test_groups_that_differ_by_exactly_the_least_difference_are_dropped():
    values = real(0.5, 0.25, 0.5, 0.5)
    assert not select.drop_zero_spread(values, KEY, ALL, least=0.25).any()
    assert select.drop_zero_spread(values, KEY, ALL, least=0.2499).all()


def test_a_row_without_decisions_has_a_finite_efficiency():
    length = torch.tensor([0, 1, 2, 4])
    assert select.gfpo(real(0.5, 1, 1, 1), KEY, ALL, length, count=1, metric="efficiency").tolist() == [
        False, True, False, False,
    ]  # fmt: skip


def test_a_score_of_exactly_the_limit_is_kept_and_an_epsilon_is_added_to_the_deviation():
    # -1, 0, 1: mean 0, std 1, so the scores are -1, 0, 1; with eps .25 they are -.8, 0, .8
    values, every = real(-1, 0, 1), ALL[:3]
    assert shape.drop_outliers(values, every, limit=1.0, eps=0.0).tolist() == [-1, 0, 1]
    assert shape.drop_outliers(values, every, limit=0.9, eps=0.25).tolist() == [-1, 0, 1]
    assert shape.drop_outliers(values, every, limit=0.7, eps=0.25).tolist() == [0, 0, 0]


def test_a_rate_above_what_flips_leave_of_certainty_is_certain():
    # 19 of 20 are right: (.95 - .1) / .8 > 1
    rewards = torch.tensor([1.0] * 19 + [0.0], dtype=torch.float64)
    key, stat = torch.zeros(20, dtype=torch.long), torch.ones(20, dtype=torch.bool)
    assert shape.noise_weight(torch.ones_like(rewards), rewards, key, stat, flip=0.1).tolist() == [0] * 20


def test_an_entropy_is_the_mean_over_the_decisions_of_its_row_and_at_least_epsilon():
    # means 3 and 1: batch mean 2; factors 2 / 3 and 2
    entropy, mask = torch.tensor([[3.0, 9], [0.5, 1.5]]), torch.tensor([[True, False], [True, True]])
    got = shape.entropy_ratio(real(1, 2), ALL[:2], entropy, mask)
    assert got.tolist() == pytest.approx([2 / 3, 4])
    # means 0 and 2: batch mean 1, divided by .5 and 2; a row without decisions has the mean 0 too
    entropy = torch.tensor([[9.0, 9], [2, 2]])
    for own in ([True, False], [False, False]):
        entropy[0, 0] = 0
        got = shape.entropy_ratio(real(1, 1), ALL[:2], entropy, torch.tensor([own, [True, True]]), eps=0.5)
        assert got.tolist() == [2, 0.5]


def test_an_advantage_of_zero_is_not_right():
    assert shape.right_or_wrong(real(0.0, 1e-9, -1.0)).tolist() == [-1.0, 0.1, -1.0]
    assert shape.noisy_forward(real(0.5, 0.51), false_negative=0.2).tolist() == [pytest.approx(-0.8), 0.2]


def test_an_advantage_of_zero_stays_zero_where_signs_are_weighted():
    assert shape.sign_weights(real(0.0)).tolist() == [0.0]
    assert shape.difficulty_weight(real(0, 0, 0, 0), real(1, 0, 0, 1), KEY, ALL).tolist() == [0, 0, 0, 0]


def test_momentum_is_clipped_to_its_two_bounds():
    got = shape.momentum(real(0, 0, 0, 0), real(1, 0.2, -0.1, -1), real(0, 0, 0, 0), low=-0.25, high=0.5)
    assert got.tolist() == [0.5, 0.2, -0.1, -0.25]


def test_the_epsilon_of_whitening_is_added_to_the_variance():
    inputs = {"centred": real(1.0, -1.0, 0.5, -0.5), "stat": ALL, "length": torch.ones(4, dtype=torch.long)}
    # squares 2.5 over 3; (2.5 + 1.5) / 3
    got = bind("token_whiten(eps=0.5)", SCALES, "scale")(inputs)
    torch.testing.assert_close(got, inputs["centred"] / (2.5 / 3 + 0.5) ** 0.5)


def test_rewards_between_other_limits_are_mapped_to_rates_first():
    """Rewards of -1 and 3 with low=-1 and high=3 are rates of 0 and 1, of which advantages are a quarter as large."""
    ones = real(1, 0, 0, 1, 1, 0, 0, 0)
    key = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    every = torch.ones(8, dtype=torch.bool)

    def scaled(values: torch.Tensor, text: str) -> torch.Tensor:
        centred = values - torch.tensor([values[key == k].mean() for k in key])
        return bind(text, SCALES, "scale")({"values": values, "centred": centred, "key": key, "stat": every})

    torch.testing.assert_close(scaled(4 * ones - 1, "beta_pdf(low=-1.0, high=3.0)"), scaled(ones, "beta_pdf"))


def test_a_length_weighted_baseline_of_one_decision_is_its_reward_and_of_none_zero():
    inputs = {"values": real(0.25, 3, 1, 1), "key": torch.tensor([0, 1, 2, 2]), "length": torch.tensor([1, 0, 2, 2])}
    assert bind("length_weighted", BASELINES, "baseline")({**inputs, "stat": ALL}).tolist() == [0.25, 0, 1, 1]


@pytest.mark.parametrize(
    ("centred", "length", "wanted"),
    [
        ([2.0], [1], [0]),  # a single decision has no variance
        ([2.0, -2.0], [1, 1], [0.5**0.5, -(0.5**0.5)]),  # squares 8 over 1
        ([3.0, 3.0], [2, 2], [0, 0]),
        ([3.0], [0], [0]),
    ],
)
def test_whitening_needs_two_different_decisions(centred, length, wanted):
    inputs = {"centred": real(*centred), "stat": ALL[: len(centred)], "length": torch.tensor(length)}
    assert bind("token_whiten(eps=0)", SCALES, "scale")(inputs).tolist() == pytest.approx(wanted)


def test_where_no_group_has_spread_there_is_no_fraction_of_valid_rows_and_no_advantage():
    inputs = {"centred": real(1, 1, 2, 2), "values": real(3, 3, 4, 4), "key": torch.tensor([0, 0, 1, 1]), "stat": ALL}
    assert bind("valid_fraction", SCALES, "scale")(inputs).tolist() == [0, 0, 0, 0]
    inputs["values"] = real(3, 5, 4, 4)  # two of four rows have spread
    assert bind("valid_fraction", SCALES, "scale")(inputs).tolist() == [2, 2, 4, 4]
