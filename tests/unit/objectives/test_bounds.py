"""What happens exactly at a bound: every range is closed, so a decision at its edge is inside."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.objectives import aggregation, surrogates
from mmgrpo.objectives.base import Loss

ONE, ZERO = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
LOW, HIGH = math.log1p(-0.25), math.log1p(0.5)
STEP = 1e-9


def flags(loss: Loss) -> tuple[bool, bool]:
    return bool(loss.low.any()), bool(loss.high.any())


@pytest.mark.parametrize(
    "objective",
    [surrogates.ppo, surrogates.dual_clip, surrogates.two_sided_clip, surrogates.log_preclip, surrogates.mini_rl],
)
def test_a_ratio_at_the_edge_of_its_range_is_not_clipped(objective):
    def at(log_ratio: float, advantage: float) -> tuple[bool, bool]:
        return flags(objective(log_ratio * ONE, ZERO, advantage * ONE, low=0.25, high=0.5))

    assert at(HIGH, 1.0) == at(LOW, -1.0) == (False, False)
    assert at(HIGH + STEP, 1.0) == (False, True) and at(LOW - STEP, -1.0) == (True, False)
    # Without an advantage nothing is clipped, on either side.
    assert at(HIGH + 0.1, 0.0) == at(LOW - 0.1, 0.0) == (False, False)


def test_a_weight_at_its_cap_is_not_clipped():
    for log_ratio, expected in ((HIGH, (False, False)), (HIGH + STEP, (False, True)), (LOW - STEP, (True, False))):
        assert flags(surrogates.cispo_band(log_ratio * ONE, ZERO, ONE, low=0.25, high=0.5)) == expected
    assert flags(surrogates.cispo_band(LOW * ONE, ZERO, ONE, low=0.25, high=0.5)) == (False, False)


def test_a_ratio_at_the_bound_before_the_clip_is_inside_of_it():
    limit = math.log(8.0)
    for sign in (-1.0, 1.0):
        at_bound = surrogates.log_preclip(sign * limit * ONE, ZERO, -sign * ONE, low=1.0, high=7.0, bound=8.0)
        beyond = surrogates.log_preclip(sign * (limit + STEP) * ONE, ZERO, -sign * ONE, low=1.0, high=7.0, bound=8.0)
        assert flags(at_bound) == (False, False) and flags(beyond) == (sign < 0, sign > 0)


def test_a_ceiling_at_the_upper_bound_is_allowed_and_one_below_is_not():
    at_bound = surrogates.dual_clip(math.log(2.0) * ONE, ZERO, -ONE, low=0.25, high=0.5, dual=1.5)
    assert at_bound.values.item() == pytest.approx(1.5) and flags(at_bound) == (False, True)
    with pytest.raises(ValueError, match="ceiling.*1.49.*1.*1.5"):
        surrogates.dual_clip(ZERO, ZERO, -ONE, low=0.25, high=0.5, dual=1.49)


@pytest.mark.parametrize("low", [1.0, 1.5])
def test_a_lower_bound_of_zero_or_less_is_none(low):
    assert surrogates.band(low, 0.5) == (-math.inf, HIGH)
    assert surrogates.band(0.999, 0.5)[0] == pytest.approx(math.log(0.001))
    assert flags(surrogates.ppo(-50 * ONE, ZERO, -ONE, low=low, high=0.5)) == (False, False)


def test_gmpo_clips_beyond_its_log_range_only():
    mask, old = torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.float64)
    for log_ratio, advantage, expected in (
        (0.5, 1.0, (False, False)),
        (0.5 + STEP, 1.0, (False, True)),
        (-0.5, -1.0, (False, False)),
        (-0.5 - STEP, -1.0, (True, False)),
    ):
        loss = surrogates.gmpo(old + log_ratio, old, old + advantage, mask, clip=0.5)
        assert flags(loss) == expected


def test_a_mean_at_the_threshold_is_inside_of_the_trust_region():
    # shift / (2 std^2) = shift for std = sqrt(1/2)
    std = torch.full((1,), 0.5, dtype=torch.float64).sqrt()
    for shift, expected in ((0.25, False), (0.25 + STEP, True)):
        moved = surrogates.flow_dppo(0.1 * ONE, ZERO, ONE, shift * ONE, std, threshold=0.25 * float(ONE / (2 * std**2)))
        assert flags(moved) == (False, expected)
        assert moved.values.item() == pytest.approx(0.0 if expected else -math.exp(0.1))
    # A ratio of exactly one has not left, and without advantage none has.
    assert flags(surrogates.flow_dppo(ZERO, ZERO, ONE, ONE, std)) == (False, False)
    assert flags(surrogates.flow_dppo(0.1 * ONE, ZERO, ZERO, ONE, std)) == (False, False)
    assert flags(surrogates.flow_dppo(-0.1 * ONE, ZERO, -ONE, ONE, std)) == (True, False)


def test_a_weight_at_the_edge_of_the_mask_is_kept():
    old = torch.tensor([[0.5, 2.0, 0.5 - 1e-6, 2.0 + 1e-6]], dtype=torch.float64).log()
    sampler = torch.zeros_like(old)
    assert aggregation.mis(old, sampler)[0, 2:].tolist() == [0, 0]
    exact = torch.tensor([[0.0]], dtype=torch.float64)
    for edge in ({"low": 1.0, "high": 2.0}, {"low": 0.5, "high": 1.0}):  # e^0 is exactly 1
        assert aggregation.mis(exact, exact, **edge).item() == 1
        assert aggregation.sequence_mask(exact, exact, exact == 0, **edge).item() == 1
    assert aggregation.sequence_mask(exact - 50, exact, exact == 0, low=0.0).item() == pytest.approx(
        math.exp(-50), abs=0
    )
    assert aggregation.sequence_mask(exact - 1, exact, exact == 0).item() == 0
    assert aggregation.sequence_mask(exact + 1, exact, exact == 0).item() == 0
    assert aggregation.tis(exact + 5, exact).item() == 2


def test_a_row_at_the_limit_is_not_far_off_policy_and_one_without_advantage_is_not_bad():
    mask, old = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2)

    def factor(gap: float, advantage: float) -> list[float]:
        return aggregation.off_policy_mask(old - gap, old, old + advantage, mask, delta=0.5)[0].tolist()

    assert factor(0.5, -1.0) == [1, 1] and factor(0.75, -1.0) == [0, 0]
    assert factor(0.75, 0.0) == factor(0.75, 1.0) == [1, 1]
