"""Guard and Flow-DPPO on transitions whose numbers are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal
from torch.testing import assert_close

from mmgrpo.objectives import divergences, surrogates

STD = 0.62609903  # Flow-SDE, a = 0.7, from 0.8 to 0.6; its level 1.4
SHIFT = -0.00249  # of the mean when the velocity goes from 0.5 to 0.51
NOISE = 0.3
DT = 0.2


def transition(shift: torch.Tensor, noise: torch.Tensor, std: float):
    """Mean log-probs of x' = mean_old + std * noise under the new and the old mean, and the squared shift."""
    x = std * noise
    new = Normal(shift, std, validate_args=False).log_prob(x).mean(-1, keepdim=True)
    old = Normal(torch.zeros_like(shift), std).log_prob(x).mean(-1, keepdim=True)
    return new, old, shift.square().mean(-1, keepdim=True)


def log_ratio_of(shift: torch.Tensor, noise: torch.Tensor, std: float) -> torch.Tensor:
    """The guarded log-ratio, read off the loss (-exp(log r) for A = 1, dt = 1, no clip)."""
    new, old, squared = transition(shift, noise, std)
    one = torch.ones_like(new)
    return torch.log(-surrogates.grpo_guard(new, old, one, squared, std * one, one, clip=0.99).values)


def test_the_worked_transition():
    shift, noise = torch.tensor([SHIFT]).double(), torch.tensor([NOISE]).double()
    new, old, squared = transition(shift, noise, STD)
    assert (new - old).item() == pytest.approx(-0.00120101, abs=5e-9)
    assert log_ratio_of(shift, noise, STD).item() == pytest.approx(-0.000747, abs=1e-9)  # shift * noise
    std, level = torch.tensor([STD]).double(), torch.tensor([1.4]).double()
    assert divergences.kl_gaussian_exact(squared, std, coef=1.0).item() == pytest.approx(7.90829e-6, rel=1e-6)
    assert divergences.kl_gaussian_dt_free(squared, level, coef=1.0).item() == pytest.approx(1.581658e-6, rel=1e-6)
    assert divergences.kl_velocity(torch.tensor([0.01**2]), coef=1.0).item() == pytest.approx(1e-4)


def test_a_wanted_transition_gains_by_its_log_ratio_beyond_the_kl_and_an_unwanted_one_loses():
    """sigmoid(.5 (2 - .4)) = sigmoid(.8) = .6900; its slope .5 x .69 x .31 = .1069; KL = .2 / (2 x .25) = .4."""
    log_probs = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    rest = torch.ones(3, dtype=torch.float64)
    advantages, shift = torch.tensor([0.7, -3.0, 0.0]).double(), (0.2 * rest).requires_grad_()
    loss = surrogates.diffusion_kto(log_probs, -rest, advantages, shift, 0.5 * rest, beta=0.5)
    assert loss.values.tolist() == pytest.approx([-0.689974, -0.310026, 0], abs=1e-6)
    loss.values.sum().backward()
    assert log_probs.grad.tolist() == pytest.approx([-0.106955, 0.106955, 0], abs=1e-6)
    assert shift.grad is None, "the KL is a level to compare with"


def test_the_clip_range_of_dppo_grows_along_the_steps():
    """base .1, clip .5, rate ln 4: at p = 0, 1/2 and 1 widths .1, .1 + .4 (2 - 1) / 3 = .2333 and .5."""
    ratio = torch.tensor([1.3, 1.3, 1.3, 0.8, 0.8], dtype=torch.float64)
    log_probs = ratio.log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]).double()
    progress = torch.tensor([0.0, 0.5, 1.0, 0.0, 1.0]).double()
    rate = math.log(4)
    loss = surrogates.ppo_denoising(log_probs, 0 * ratio, advantages, progress, base=0.1, clip=0.5, rate=rate)
    assert loss.values.tolist() == pytest.approx([-1.1, -1.2333333, -1.3, 0.9, 0.8])
    assert loss.high.tolist() == [True, True, False, False, False] and loss.low.tolist() == [False] * 3 + [True, False]
    loss.values.sum().backward()
    assert log_probs.grad.tolist() == pytest.approx([0, 0, -1.3, 0, 0.8])
    # One width throughout is ppo.
    flat = surrogates.ppo_denoising(log_probs, 0 * ratio, advantages, progress, base=0.2, clip=0.2)
    assert_close(flat.values, surrogates.ppo(log_probs, 0 * ratio, advantages, 0.2, 0.2).values)


def test_a_shift_of_early_steps_costs_and_one_of_later_steps_does_not():
    shift, place = torch.tensor([0.2, 0.4, 0.6], requires_grad=True), torch.tensor([0.0, 1.0, 2.0])
    cost = divergences.early_shift(shift, place, coef=3.0, first=2)
    assert cost.tolist() == pytest.approx([0.3, 0.6, 0.0])
    cost.sum().backward()
    assert shift.grad.tolist() == [1.5, 1.5, 0.0]


def test_the_guarded_log_ratio_is_the_mean_of_shift_times_noise():
    random = torch.Generator().manual_seed(0)
    shift, noise = (torch.randn(5, 16, generator=random, dtype=torch.float64) for _ in range(2))
    guarded = log_ratio_of(0.1 * shift, noise, 0.3)
    assert_close(guarded, (0.1 * shift * noise).mean(-1, keepdim=True))


def test_over_the_noise_the_plain_log_ratio_is_minus_the_kl_on_average_and_the_guarded_one_zero():
    random = torch.Generator().manual_seed(1)
    half = torch.randn(1000, 8, generator=random, dtype=torch.float64)
    noise = torch.cat([half, -half])  # a symmetric sample has mean zero exactly
    shift = torch.full_like(noise, 0.05)
    new, old, _ = transition(shift, noise, 0.3)
    kl = torch.distributions.kl_divergence(Normal(0.05, 0.3), Normal(0.0, 0.3)).double()
    assert_close((new - old).mean(), -kl, rtol=1e-6, atol=0)
    assert abs(log_ratio_of(shift, noise, 0.3).mean().item()) < 1e-15


def test_guard_at_ratio_one_scales_the_gradient_by_std_over_dt():
    log_probs = torch.zeros(2, requires_grad=True)
    std, dt = torch.tensor([0.5, 0.2]), torch.tensor([0.1, 0.05])
    advantages = torch.tensor([1.0, -2.0])
    surrogates.grpo_guard(log_probs, torch.zeros(2), advantages, torch.zeros(2), std, dt).values.sum().backward()
    assert_close(log_probs.grad, torch.tensor([-5.0, 8.0]))  # -1 * .5 / .1; 2 * .2 / .05


def test_guard_keeps_the_gradient_of_the_shift():
    # the gradient of mean(shift * noise) by the shift is noise, although log-prob and shift both depend on it
    shift = torch.tensor([[0.01, -0.02]], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([[0.7, -1.1]], dtype=torch.float64)
    log_ratio_of(shift, noise, 0.3).sum().backward()
    assert_close(shift.grad, noise / 2)


def test_guard_clips_both_sides():
    zeros, ones = torch.zeros(4), torch.ones(4)
    log_probs = torch.tensor([3e-6, -3e-6, 3e-6, -3e-6])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss = surrogates.grpo_guard(log_probs, zeros, advantages, zeros, ones, ones)
    assert loss.high.tolist() == [True, False, False, False]
    assert loss.low.tolist() == [False, False, False, True]


@pytest.mark.parametrize("far", [True, False])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [0.1, -0.1])
def test_flow_dppo_drops_what_is_far_and_moves_away(far, advantage, log_ratio):
    log_probs = torch.tensor([log_ratio], requires_grad=True)
    # D = shift / (2 * .5^2) = 2 shift: 1.2e-5 and .8e-5 around the threshold
    shift = torch.tensor([0.6e-5 if far else 0.4e-5])
    advantages = torch.tensor([advantage])
    loss = surrogates.flow_dppo(log_probs, torch.zeros(1), advantages, shift, torch.tensor([0.5]))
    loss.values.sum().backward()
    dropped = far and advantage * log_ratio > 0
    expected = 0.0 if dropped else -advantage * torch.tensor(log_ratio).exp().item()
    assert log_probs.grad.item() == pytest.approx(expected)
    assert loss.high.item() == (dropped and advantage > 0) and loss.low.item() == (dropped and advantage < 0)


def test_a_finite_difference_pulls_the_velocity_towards_the_better_sample():
    """One pair of one number: x of .3 is better than that of -.1 by .5, so both velocities fall."""
    velocity, moved = torch.tensor([[0.0], [0.0]], requires_grad=True), torch.tensor([[5.0], [-5.0]])  # .2 / .2^2
    loss = surrogates.finite_difference(velocity * moved, velocity.square(), torch.tensor([[0.25], [-0.25]]))
    assert loss.values.flatten().tolist() == [-0.25, 0.25]  # ratios of one
    (gradient,) = torch.autograd.grad(loss.values.sum(), velocity)
    assert_close(gradient, torch.tensor([[2.5], [2.5]]))  # 2 A dx; v is noise less data, so less of it is more x
    far = surrogates.finite_difference(torch.tensor([0.12]), torch.tensor([0.01]), torch.tensor([0.5])).values
    ratio = math.exp(-0.25)
    assert far.item() == pytest.approx(-(ratio * 0.5 - 0.5 * (ratio - 1) ** 2 / 0.06))
