"""Surrogates by hand: at log-prob 0 of the old policy, the log-prob is the log-ratio."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mmgrpo.objectives import surrogates


def at(objective, ratio: float, advantage: float, **parameters) -> tuple[float, float, bool, bool]:
    """Value, gradient with respect to the log-prob, and the two clip flags, in double precision."""
    log_prob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    old, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    loss = objective(log_prob, old, advantage * one, **parameters)
    loss.values.sum().backward()
    return loss.values.item(), cast(Tensor, log_prob.grad).item(), loss.low.item(), loss.high.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient", "low", "high"),
    [
        (1.5, 1.0, -1.2, 0.0, False, True),  # min(1.5, 1.2)
        (0.5, 1.0, -0.5, -0.5, False, False),  # min(0.5, 0.8): free to come back
        (1.5, -1.0, 1.5, 1.5, False, False),  # min(-1.5, -1.2): free to come back
        (0.5, -1.0, 0.8, 0.0, True, False),  # min(-0.5, -0.8)
        (1.1, 2.0, -2.2, -2.2, False, False),  # inside: -r A, gradient -r A
        (1.5, 0.0, 0.0, 0.0, False, False),  # no advantage, nothing to clip
    ],
)
def test_ppo_clips_only_what_would_move_on(ratio, advantage, value, gradient, low, high):
    got = at(surrogates.ppo, ratio, advantage)
    assert got == (pytest.approx(value, abs=1e-12), pytest.approx(gradient, abs=1e-12), low, high)


def test_a_higher_upper_bound_lets_rare_decisions_grow_further():
    assert at(surrogates.ppo, 1.5, 1.0, high=0.28)[0] == pytest.approx(-1.28, abs=1e-12)


def test_ppo_equals_its_definition_everywhere():
    log_ratio = torch.linspace(-1, 1, 41, dtype=torch.float64)
    for sign in (-1.0, 1.0):
        advantages = torch.full_like(log_ratio, sign)
        r = log_ratio.exp()
        expected = -torch.minimum(r * advantages, r.clamp(0.7, 1.4) * advantages)
        got = surrogates.ppo(log_ratio, torch.zeros_like(r), advantages, low=0.3, high=0.4).values
        assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_a_clip_range_near_the_resolution_of_fp32_acts_where_it_should():
    # 1 + 2e-6 has a relative resolution of 6 % in fp32; the logarithm has full precision.
    log_ratio = torch.tensor([1.99e-6, 2.01e-6])
    loss = surrogates.ppo(log_ratio, torch.zeros(2), torch.ones(2), low=2e-6, high=2e-6)
    assert loss.high.tolist() == [False, True]


def test_without_bounds_ppo_is_the_importance_weighted_policy_gradient():
    value, gradient, low, high = at(surrogates.ppo, 7.0, 1.5, low=1.0, high=math.inf)
    assert (value, gradient) == (pytest.approx(-10.5), pytest.approx(-10.5)) and not (low or high)


def test_dual_clip_bounds_the_loss_of_negative_advantages():
    # ppo: 5; bounded by -3 * -1
    assert at(surrogates.dual_clip, 5.0, -1.0, dual=3.0) == (pytest.approx(3.0), 0.0, False, True)
    assert at(surrogates.dual_clip, 2.0, -1.0, dual=3.0) == (pytest.approx(2.0), pytest.approx(2.0), False, False)


def test_a_decision_without_advantage_is_never_counted_as_clipped():
    for ratio in (0.1, 5.0):
        assert at(surrogates.dual_clip, ratio, 0.0)[2:] == (False, False)


@pytest.mark.parametrize("objective", [surrogates.ppo, surrogates.dual_clip, surrogates.sapo])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_beyond_fp32_leaves_a_finite_gradient(objective, advantage):
    log_probs = torch.tensor([200.0], requires_grad=True)  # e^200 is infinite in fp32
    loss = objective(log_probs, torch.zeros(1), torch.tensor([advantage]))
    loss.values.sum().backward()
    assert loss.values.isfinite().all() and cast(Tensor, log_probs.grad).isfinite().all()


def test_two_sided_clip_holds_the_ratio_at_its_ceiling():
    assert at(surrogates.two_sided_clip, 5.0, -1.0) == (pytest.approx(4.0), 0.0, False, True)
    assert at(surrogates.two_sided_clip, 5.0, 1.0) == (pytest.approx(-1.2), 0.0, False, True)


def test_a_ceiling_inside_the_band_is_refused():
    with pytest.raises(ValueError, match=r"1 \+ high"):
        at(surrogates.dual_clip, 1.0, 1.0, dual=1.1)


def test_log_preclip_stops_either_sign_beyond_its_bound():
    # A < 0 and r = 50: ppo would let the gradient grow with r; the pre-clip at 10 stops it
    assert at(surrogates.log_preclip, 50.0, -1.0, bound=10.0) == (pytest.approx(10.0), 0.0, False, True)
    # A > 0 and r = 0.01: ppo would leave it free
    assert at(surrogates.log_preclip, 0.01, 1.0, bound=10.0) == (pytest.approx(-0.1), 0.0, True, False)
    assert at(surrogates.log_preclip, 1.1, 1.0) == at(surrogates.ppo, 1.1, 1.0)


def test_cispo_caps_the_weight_and_keeps_the_gradient():
    # ratio 6, cap 5: gradient of -5 A log pi
    assert at(surrogates.cispo_cap, 6.0, 1.0, cap=5.0)[1:] == (pytest.approx(-5.0), False, True)
    assert at(surrogates.cispo_cap, 0.01, -2.0)[1:] == (pytest.approx(0.02), False, False)


def test_the_same_number_means_two_caps_in_the_two_forms_of_cispo():
    assert at(surrogates.cispo_band, 9.0, 1.0, low=1.0, high=5.0)[1] == pytest.approx(-6.0)
    assert at(surrogates.cispo_cap, 9.0, 1.0, cap=5.0)[1] == pytest.approx(-5.0)
    assert at(surrogates.cispo_band, 0.5, 1.0)[1:] == (pytest.approx(-0.8), True, False)


@pytest.mark.parametrize(
    ("advantage", "gates"),
    [(1.0, [1.51016, 2.0, 2.48984]), (-1.0, [1.41594, 1.90476, 2.39359])],  # tau 1; tau 1.05
)
def test_sapo_gates(advantage, gates):
    for ratio, gate in zip((0.5, 1.0, 1.5), gates, strict=True):
        assert at(surrogates.sapo, ratio, advantage)[0] == pytest.approx(-advantage * gate, abs=5e-6)


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_sapo_has_unit_gradient_at_one_for_any_temperature(tau):
    value, gradient, *_ = at(surrogates.sapo, 1.0, 1.0, tau_positive=tau)
    assert gradient == pytest.approx(-1.0) and value == pytest.approx(-2 / tau)


def test_simple_policy_by_hand():
    # 1.1 - 0.1^2 / (2 * 0.2) = 1.1 - 0.025; gradient -(1 - 0.1 / 0.2) * 1.1
    value, gradient, *_ = at(surrogates.simple_policy, 1.1, 1.0)
    assert value == pytest.approx(-1.075) and gradient == pytest.approx(-0.55)


@pytest.mark.parametrize(("ratio", "advantage"), [(1.2, 1.0), (0.8, -1.0)])
def test_simple_policy_is_best_at_the_edge_of_its_range(ratio, advantage):
    assert at(surrogates.simple_policy, ratio, advantage)[1] == pytest.approx(0.0, abs=1e-12)


def test_policy_gradient_is_minus_advantage_times_log_prob():
    loss = surrogates.policy_gradient(torch.tensor([-0.5]), torch.tensor([2.0]))
    assert loss.values.item() == 1.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("ratio", [0.3, 0.9, 1.0, 1.2, 4.0])
def test_mini_rl_has_the_gradient_of_ppo(ratio, advantage):
    ppo = at(surrogates.ppo, ratio, advantage, low=0.2, high=0.28)
    assert at(surrogates.mini_rl, ratio, advantage)[1:] == (pytest.approx(ppo[1], abs=1e-12), *ppo[2:])


def test_decisions_that_others_made_have_no_clip():
    # r = .3 and A = 2: -r A with its own gradient, and -A r / (r + .1) of gradient -A r .1 / (r + .1)^2
    assert at(surrogates.importance, 0.3, 2.0) == (pytest.approx(-0.6), pytest.approx(-0.6), False, False)
    assert at(surrogates.luffy, 0.3, 2.0) == (pytest.approx(-1.5), pytest.approx(-0.375), False, False)


ENTROPY = [0.01, 0.1, 1.0, 2.0]


def by_entropy(ratio, advantage, **parameters):
    log_prob = torch.full((4,), math.log(ratio), dtype=torch.float64, requires_grad=True)
    given = torch.zeros(4).double(), torch.full((4,), advantage).double(), torch.tensor(ENTROPY).double()
    loss = surrogates.ppo_by_entropy(log_prob, *given, torch.ones(4, dtype=torch.bool), **parameters)
    loss.values.sum().backward()
    return loss.values.tolist(), cast(Tensor, log_prob.grad).tolist(), loss


def test_hapo_bounds_and_advantages_follow_the_entropy():
    h = surrogates.relative_entropy(torch.tensor(ENTROPY), torch.ones(4, dtype=torch.bool), 0.8)
    assert_close(h, torch.tensor([-1.0, -0.5, 0, 1]))
    # at ratio one all are inside: A (1 + h) for sure decisions, A for the uncertain one
    assert by_entropy(1.0, 1.0)[0] == pytest.approx([0, -0.5, -1, -1])
    # 1.3 is beyond the bounds of 1.2, and within 1.4; the uncertain one has twice the advantage beyond 1.2
    values, gradients, loss = by_entropy(1.3, 1.0)
    assert values == pytest.approx([-1.2, -1.2, -1.2, -2.6]) and gradients == pytest.approx([0, 0, 0, -2.6])
    assert loss.high.tolist() == [True, True, True, False]
    # .65 is within .6 and beyond .7 and .8
    values, gradients, loss = by_entropy(0.65, -1.0)
    assert values == pytest.approx([0.65, 0.7, 0.8, 1.6]) and loss.low.tolist() == [False, True, True, True]
    assert by_entropy(50.0, -1.0)[0] == pytest.approx([10, 10, 10, 20])  # the dual bound


def test_hapo_without_its_two_factors_is_dual_clip():
    for ratio in (0.5, 0.9, 1.0, 1.3, 20.0):
        for advantage in (1.0, -1.0):
            wanted = at(surrogates.dual_clip, ratio, advantage, dual=10.0)
            values, gradients, loss = by_entropy(ratio, advantage, alpha=0.0, beta=0.0)
            assert values == pytest.approx([wanted[0]] * 4) and gradients == pytest.approx([wanted[1]] * 4)
            assert (loss.low[0].item(), loss.high[0].item()) == wanted[2:]
