"""Sequence-level ratios by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from mmgrpo.objectives import aggregation, surrogates

FIRST = [0.6, -0.3, 0.0]
SECOND = [0.1, -0.6, 0.2]


def at(objective, log_ratios: list[float], advantage: float, **parameters):
    """Loss of one row, and the gradient of its mean over decisions."""
    log_probs = torch.tensor([log_ratios], dtype=torch.float64, requires_grad=True)
    old = torch.zeros_like(log_probs).detach()
    loss = objective(log_probs, old, torch.full_like(old, advantage), torch.ones_like(old).bool(), **parameters)
    loss.values.mean().backward()
    return loss, log_probs.grad


def test_gspo_takes_the_geometric_mean_of_the_ratios():
    # exp((0.6 - 0.3 + 0) / 3) = exp(0.1) = 1.10517, at every decision
    loss, gradient = at(surrogates.gspo, FIRST, 1.0, low=1.0, high=1.0)
    assert_close(loss.values, torch.full((1, 3), -1.10517, dtype=torch.float64), rtol=0, atol=2e-6)
    assert_close(gradient, loss.values / 3)


def test_gspo_clips_the_row_as_one():
    loss, gradient = at(surrogates.gspo, FIRST, 1.0)
    assert_close(loss.values, torch.full((1, 3), -1.0004, dtype=torch.float64))
    assert loss.high.all() and not loss.low.any() and (gradient == 0).all()
    assert at(surrogates.gspo, SECOND, -1.0)[0].low.all()


def test_gspo_token_has_the_value_and_gradient_of_gspo_when_the_advantage_is_the_rows():
    for log_ratios, advantage in ((FIRST, 1.0), (SECOND, -1.0), ([1e-4, 2e-4, 0.0], 1.0)):
        row, row_gradient = at(surrogates.gspo, log_ratios, advantage)
        token, token_gradient = at(surrogates.gspo_token, log_ratios, advantage)
        assert_close(token.values, row.values)
        assert_close(token_gradient, row_gradient)


def test_gspo_token_credits_each_decision_by_its_own_advantage():
    log_probs = torch.zeros(1, 2, requires_grad=True)
    advantages = torch.tensor([[1.0, -2.0]])
    loss = surrogates.gspo_token(log_probs, torch.zeros(1, 2), advantages, torch.ones(1, 2).bool())
    loss.values.sum().backward()
    assert_close(log_probs.grad, -advantages)


def test_gspo_of_one_decision_is_ppo():
    log_probs = torch.linspace(-0.5, 0.5, 7)[:, None]
    for sign in (1.0, -1.0):
        old, advantages = torch.zeros(7, 1), torch.full((7, 1), sign)
        row = surrogates.gspo(log_probs, old, advantages, torch.ones(7, 1).bool(), low=0.2, high=0.2)
        token = surrogates.ppo(log_probs, old, advantages)
        for a, b in zip(row, token, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("log_ratios", "advantage", "ratio"),
    [
        (FIRST, 1.0, 1.03390),  # exp((0.4 - 0.3 + 0) / 3): 0.6 clipped from above
        (FIRST, -1.0, 1.10517),  # exp((0.6 - 0.3 + 0) / 3): nothing below -0.4
        (SECOND, 1.0, 0.90484),  # exp((0.1 - 0.6 + 0.2) / 3)
        (SECOND, -1.0, 0.96722),  # exp((0.1 - 0.4 + 0.2) / 3): -0.6 clipped from below
    ],
)
def test_gmpo_clips_inside_the_geometric_mean(log_ratios, advantage, ratio):
    loss, _ = at(surrogates.gmpo, log_ratios, advantage)
    assert_close(loss.values, torch.full((1, 3), -advantage * ratio, dtype=torch.float64), rtol=0, atol=1e-5)


def test_gmpo_drops_the_gradient_of_the_clipped_decision_only():
    loss, gradient = at(surrogates.gmpo, FIRST, 1.0)
    assert loss.high.tolist() == [[True, False, False]]
    third = -1.03390 / 3
    assert_close(gradient, torch.tensor([[0.0, third, third]], dtype=torch.float64), rtol=0, atol=1e-5)


def test_sequence_sum_is_the_product_of_the_ratios():
    # exp(0.6 - 0.3 + 0) = exp(0.3) = 1.34986, beyond 1.2 for A > 0
    assert at(surrogates.sequence_sum, FIRST, -1.0)[0].values[0, 0].item() == pytest.approx(1.34986, abs=5e-6)
    assert at(surrogates.sequence_sum, FIRST, 1.0)[0].values[0, 0].item() == pytest.approx(-1.2)


def test_sequence_sum_at_one_has_the_gradient_of_summed_log_probs():
    decision_mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    advantages = torch.tensor([[1.0], [-2.0]]).expand(2, 3)
    log_probs = torch.zeros(2, 3, requires_grad=True)
    loss = surrogates.sequence_sum(log_probs, torch.zeros(2, 3), advantages, decision_mask)
    (aggregation.per_sample(decision_mask) * loss.values).sum().backward()
    assert_close(log_probs.grad, -advantages * aggregation.sample_sum(decision_mask))


@pytest.mark.parametrize(
    ("ratio", "advantage", "phi"),
    [
        (1.0, 1.0, 1.0),
        (1.2, 1.0, 0.79029),  # e^3 1.2^2 e^-3.6 = 1.44 e^-0.6
        (0.5, -1.0, 0.33979),  # e^2 0.5^3 e^-1 = 0.125 e
        (1.5, -1.0, 1.24159),  # e^2 1.5^3 e^-3 = 3.375 / e
    ],
)
def test_vespo_weights(ratio, advantage, phi):
    # the product of both ratios is the sequence ratio; the gradient per decision is -phi A, halved by the mean
    _, gradient = at(surrogates.vespo, [math.log(ratio) + 0.7, -0.7], advantage)
    assert_close(gradient, torch.full((1, 2), -phi * advantage / 2, dtype=torch.float64), rtol=0, atol=5e-6)


@pytest.mark.parametrize(
    ("log_ratio", "options", "weights", "low", "high"),
    [
        ([0.6, 0.4], {}, [1.9, 1.9], False, True),  # e is beyond 1.9
        ([-1.0, -2.0], {}, [0.1, 0.1], True, False),
        ([math.log(1.2), math.log(1.5)], {}, [1.8, 1.8], False, False),
        ([math.log(1.2), math.log(1.5)], {"ratio": "token"}, [1.2, 1.5], False, False),
        ([0.6, 0.4], {"ratio": "none"}, [1.0, 1.0], False, False),  # A times the negative log-likelihood
    ],
)
def test_a_lol_weighs_by_the_bounded_ratio_to_the_reference(log_ratio, options, weights, low, high):
    log_probs = torch.tensor([log_ratio], dtype=torch.float64, requires_grad=True)
    mask, zeros = torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2, dtype=torch.float64)
    loss = surrogates.a_lol(log_probs, zeros, zeros + 0.3, mask, **options)
    (gradient,) = torch.autograd.grad(loss.values.sum(), log_probs)
    assert gradient[0].tolist() == pytest.approx([-0.3 * weight for weight in weights])
    assert (bool(loss.low.any()), bool(loss.high.any())) == (low, high)


def test_decisions_that_a_row_passed_but_does_not_own_are_part_of_its_ratio():
    log_probs, old = torch.tensor([[0.4, 0.0]]), torch.zeros(1, 2)
    decision_mask = torch.tensor([[True, True]])
    both = surrogates.gspo(log_probs, old, -torch.ones(1, 2), decision_mask).values[0, 1]
    one = surrogates.gspo(log_probs, old, -torch.ones(1, 2), torch.tensor([[False, True]])).values[0, 1]
    assert_close(both, torch.tensor(math.exp(0.2)))
    assert_close(one, torch.tensor(1.0))
