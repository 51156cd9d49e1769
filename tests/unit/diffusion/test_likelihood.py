"""Log-probabilities and KL of transitions: identities, gradients, and steps that have none."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from mmgrpo.diffusion.kernels import Transition, cps, flow_sde, kernel
from mmgrpo.diffusion.schedules import flow_grid
from tests.flows import FLOW_KERNELS, NOISE_FREE, real, worked


def random_transition(seed: int, latent: tuple[int, ...] = (2, 3), count: int = 4) -> Transition:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, *latent, generator=generator, dtype=torch.float64)
    std = torch.rand(count, *[1] * len(latent), generator=generator, dtype=torch.float64) + 0.1
    return Transition(mean, std)


def test_log_prob_is_the_mean_over_latents_of_the_normal_log_density():
    transition = random_transition(0)
    x = transition.sample(torch.ones(4, 2, 3, dtype=torch.float64))
    expected = Normal(transition.mean, transition.std).log_prob(x).mean((1, 2))
    torch.testing.assert_close(transition.log_prob(x), expected, atol=1e-14, rtol=0)


def test_log_prob_is_invariant_to_repeating_latents():
    narrow = random_transition(0)
    wide = Transition(narrow.mean.repeat(1, 5, 7), narrow.std)
    x = narrow.mean + 0.1
    torch.testing.assert_close(wide.log_prob(x.repeat(1, 5, 7)), narrow.log_prob(x))


@pytest.mark.parametrize("equal_std", [True, False])
def test_kl_is_that_of_the_normal_distributions(equal_std):
    first, second = random_transition(0), random_transition(1)
    if equal_std:
        second = Transition(second.mean, first.std)
    expected = kl_divergence(Normal(first.mean, first.std), Normal(second.mean, second.std)).mean((1, 2))
    torch.testing.assert_close(first.kl(second), expected, atol=1e-13, rtol=1e-12)


def test_kl_with_itself_is_zero():
    transition = random_transition(0)
    assert torch.equal(transition.kl(transition), torch.zeros(4, dtype=torch.float64))


def test_step_kl_is_a_weighted_velocity_gap():
    old, new = flow_sde(*worked(0.5)), flow_sde(*worked(0.51))
    # (dt / 2) (1 / level + level (1 - s) / (2 s))^2 dv^2 with dt 0.2, level 1.4, s 0.8, dv 0.01
    weighted = 0.1 * (1 / 1.4 + 1.4 * 0.2 / 1.6) ** 2 * 1e-4
    assert old.kl(new).item() == pytest.approx(weighted, rel=1e-9)
    assert old.kl(new).item() == pytest.approx(7.90829e-6, abs=5e-12)
    # without the dt of the variance, as some code has it: 0.2 of it
    assert (new.mean - old.mean).square().item() / (2 * 1.4**2) == pytest.approx(1.581658e-6, abs=5e-13)


def test_log_ratio_is_noise_times_shift_less_the_kl():
    old, new = flow_sde(*worked(0.5)), flow_sde(*worked(0.51))
    shift = (new.mean - old.mean).item()
    sample = old.sample(real(0.3)[:, None])
    log_ratio = (new.log_prob(sample) - old.log_prob(sample)).item()
    assert shift == pytest.approx(-0.00249, abs=1e-12)
    assert log_ratio == pytest.approx(-0.00120101, abs=5e-9)
    # without its bias the log-ratio is shift * z / std
    guarded = old.std.item() * (log_ratio + shift**2 / (2 * old.std.item() ** 2))
    assert guarded == pytest.approx(shift * 0.3, abs=1e-12) == pytest.approx(-0.000747, abs=1e-12)


def test_the_same_identity_holds_for_the_plain_distance_with_its_likelihood_std():
    old, new = cps(*worked(0.5)), cps(*worked(0.51))
    sample = old.sample(real(0.3)[:, None])
    z = (sample - old.mean) / old.likelihood_std
    shift = (new.mean - old.mean) / old.likelihood_std
    log_ratio = new.log_prob(sample) - old.log_prob(sample)
    assert log_ratio.item() == pytest.approx((shift * z - shift.square() / 2).item(), abs=1e-14)


def test_the_plain_distance_and_the_scaled_likelihood_of_cps_draw_the_same_samples():
    plain, scaled = cps(*worked(), scaled=False), cps(*worked(), scaled=True)
    assert torch.equal(plain.mean, scaled.mean) and torch.equal(plain.std, scaled.std)
    x = real(0.2)[:, None]
    distance = (x - plain.mean).square().item()
    assert plain.log_prob(x).item() == pytest.approx(-distance, abs=1e-15)
    expected = Normal(scaled.mean, scaled.std).log_prob(x).item()
    assert scaled.log_prob(x).item() == pytest.approx(expected, abs=1e-14)


def noisy_steps(text: str) -> torch.Tensor:
    """The steps of a grid of 10 that have noise: the damped kernel has none at the first, nor has any at the last."""
    return torch.arange(int(text.startswith("flow_ddim_damped")), 9)


@pytest.mark.parametrize("text", FLOW_KERNELS)
def test_scoring_a_sample_again_gives_the_same_number(text):
    generator, grid, step = torch.Generator().manual_seed(0), flow_grid(10), noisy_steps(text)
    x, output, noise = torch.randn(3, len(step), 4, 2, generator=generator)
    transition = kernel(text)(x, output, step, grid)
    sample = transition.sample(noise)
    again = kernel(text)(x, output, step, grid).log_prob(sample)
    assert torch.equal(again, transition.log_prob(sample)) and bool(again.isfinite().all())


@pytest.mark.parametrize("text", FLOW_KERNELS)
def test_following_the_gradient_makes_the_sample_likelier(text):
    generator, grid, step = torch.Generator().manual_seed(0), flow_grid(10), noisy_steps(text)
    x, output, noise = torch.randn(3, len(step), 8, generator=generator, dtype=torch.float64)
    output.requires_grad_()
    transition = kernel(text)(x, output, step, grid)
    sample = transition.sample(noise)
    before = transition.log_prob(sample)
    (gradient,) = torch.autograd.grad(before.sum(), output)
    after = kernel(text)(x, output + 1e-3 * gradient, step, grid).log_prob(sample)
    assert bool((after > before).all())


def test_the_gradient_reaches_the_mean_and_not_the_sample():
    mean = real(0.0, 0.0)[None].requires_grad_()
    transition = Transition(mean, real(0.5)[:, None])
    sample = transition.sample(real(1.0, -2.0)[None])
    transition.log_prob(sample).sum().backward()
    # (x - mean) / std^2 / 2 latents = (0.5, -1) / 0.25 / 2
    assert mean.grad is not None and mean.grad.tolist() == [[1.0, -2.0]]


@pytest.mark.parametrize("text", NOISE_FREE)
def test_a_step_without_noise_has_no_likelihood(text):
    transition = kernel(text)(*worked())
    with pytest.raises(ValueError, match="deterministic"):
        transition.log_prob(transition.mean)
    with pytest.raises(ValueError, match="deterministic"):
        flow_sde(*worked()).kl(transition)


def test_one_deterministic_entry_is_enough_to_refuse_a_likelihood():
    mixed = Transition(real(0, 0)[:, None], real(0, 1)[:, None])
    with pytest.raises(ValueError, match="log_prob"):
        mixed.log_prob(mixed.mean)


def test_the_last_step_of_cps_has_no_likelihood():
    x, output, _, grid = worked()
    transition = cps(x, output, torch.tensor([2]), grid)
    assert transition.std.item() == 0
    with pytest.raises(ValueError, match="last step"):
        transition.log_prob(x)


@pytest.mark.parametrize("stds", [(0.0, 1.0), (1.0, 0.0)])
def test_neither_side_of_a_divergence_may_be_deterministic(stds):
    one, other = (Transition(real(0)[:, None], real(std)[:, None]) for std in stds)
    with pytest.raises(ValueError, match="kl.*deterministic"):
        one.kl(other)


def test_the_likelihood_std_of_a_scaled_transition_is_its_std():
    std = torch.tensor([[0.25]])
    assert Transition(torch.zeros(1, 1), std).likelihood_std is std
    assert Transition(torch.zeros(1, 1), std, scaled=False).likelihood_std.item() == pytest.approx(0.5**0.5)
