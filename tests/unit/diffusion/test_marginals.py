"""Kernels keep the marginals they claim: the noise after a step, and the variance of Gaussian data."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.diffusion.kernels import Transition, dance, ddim, euler, flow_sde, kernel
from mmgrpo.diffusion.schedules import flow
from tests.flows import NOISE_FREE, even_grid, fine_ddim_grid, flow_like, real


def noise_after(text: str, now: float = 0.8, then: float = 0.6) -> float:
    """Std of the noise after one step, where all data are one point and v is exact."""
    point, grid, step = 0.7, flow_like(real(1, now, then, 0)), torch.tensor([1])
    x = (1 - now) * point + now * real(0, 1)[:, None]
    transition = kernel(text)(x, (x - point) / now, step.expand(2), grid)
    offset, slope = transition.mean[0], transition.mean[1] - transition.mean[0]
    if text.startswith(("cps", "flow_ddim", "edm_churn")):
        assert offset.item() == pytest.approx((1 - then) * point, abs=1e-12)
    return (slope.square() + transition.std[0].square()).sqrt().item()


@pytest.mark.parametrize("text", ["cps", "cps(a=0.3)", "flow_ddim", "edm_churn(gamma=0.1)", *NOISE_FREE])
@pytest.mark.parametrize(("now", "then"), [(0.8, 0.6), (0.99, 0.5), (0.3, 0.05)])
def test_noise_is_exactly_at_the_level_that_follows(text, now, then):
    assert noise_after(text, now, then) == pytest.approx(then, abs=1e-12)


@pytest.mark.parametrize(("text", "std"), [("flow_sde(a=0.7)", 0.71974), ("dance(eta=0.3)", 0.60384)])
def test_the_reverse_sde_leaves_excess_noise_in_a_finite_step(text, std):
    # sqrt((0.6 - level^2 * 0.2 / 1.6)^2 + level^2 * 0.2)
    assert noise_after(text) == pytest.approx(std, abs=5e-6)


def variance_errors(transition: Transition, marginal: torch.Tensor) -> float:
    """Largest relative error of the variance along a chain x' = c x + std z, against the true marginals."""
    variance, worst = marginal[0], 0.0
    for c, std, true in zip(transition.mean[:, 0], transition.std[:, 0], marginal[1:], strict=True):
        variance = c.square() * variance + std.square()
        worst = max(worst, abs(variance / true - 1).item())
    return worst


def flow_marginal_error(text: str, steps: int, spread: float = 0.25) -> float:
    """For data N(0, spread), where v is linear in x and the chain's variance is known exactly.

    It starts at sigma 0.9: at 1 flow_sde's level has a pole, whose error fades slower than the steps
    shrink. It ends before sigma 0: noise of the last step stays, which is why no plan draws it.
    """
    sigma = torch.linspace(0.9, 0, steps + 1, dtype=torch.float64)
    marginal = (1 - sigma).square() * spread + sigma.square()
    velocity = ((sigma - (1 - sigma) * spread) / marginal)[:-2, None]
    transition = kernel(text)(torch.ones_like(velocity), velocity, torch.arange(steps - 1), flow(sigma))
    return variance_errors(transition, marginal[:-1])


@pytest.mark.parametrize(
    ("coarse", "fine"),
    [
        ("flow_sde(a=0.7)",) * 2,
        ("dance(eta=0.3)",) * 2,
        ("dance(eta=1.0)",) * 2,
        ("flow_ddim(eta=0.7)",) * 2,
        ("flow_ddim(eta=1.0)",) * 2,
        ("cps(a=0.0)",) * 2,
        ("edm_churn(gamma=0.01)", "edm_churn(gamma=0.001)"),  # its noise is per step, not per time
    ],
)
def test_marginals_of_gaussian_data_are_kept_as_steps_shrink(coarse, fine):
    before, after = flow_marginal_error(coarse, 200), flow_marginal_error(fine, 2000)
    # the error of a first-order method falls tenfold with ten times the steps
    assert after < before / 5 and after < 0.02


def test_marginals_need_the_drift_that_belongs_to_the_noise():
    """The same noise on top of the plain ODE is off, however fine the steps."""
    grid, step = even_grid(2000), torch.arange(1999)
    sigma = grid.levels
    marginal = (1 - sigma).square() * 0.25 + sigma.square()
    velocity = ((sigma - (1 - sigma) * 0.25) / marginal)[:-2, None]
    ones = torch.ones_like(velocity)
    wrong = Transition(euler(ones, velocity, step, grid), dance(ones, velocity, step, grid, eta=1.0).std)
    assert variance_errors(wrong, marginal[:-1]) > 0.5


@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_ddim_keeps_the_marginals_of_gaussian_data(prediction, eta):
    def error(steps: int) -> float:
        grid = fine_ddim_grid(steps)
        alpha = grid.levels
        marginal = alpha * 0.25 + 1 - alpha
        clean, noise = alpha.sqrt() * 0.25 / marginal, (1 - alpha).sqrt() / marginal
        output = {
            "epsilon": noise,
            "sample": clean,
            "v": alpha.sqrt() * noise - (1 - alpha).sqrt() * clean,
        }[prediction][:-1, None]
        step = torch.arange(steps)
        transition = ddim(torch.ones_like(output), output, step, grid, eta=eta, prediction=prediction)
        return variance_errors(transition, marginal)

    assert error(2000) < error(200) / 5 < 0.01


def test_drawn_samples_have_the_variance_of_the_marginal():
    generator, grid, count = torch.Generator().manual_seed(1), even_grid(100), 20000
    x = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    for index in range(60):
        sigma, step = grid.levels[index], torch.full((count,), index)
        velocity = x * (sigma - (1 - sigma) * 0.25) / ((1 - sigma) ** 2 * 0.25 + sigma**2)
        noise = torch.randn(count, 1, generator=generator, dtype=torch.float64)
        x = flow_sde(x, velocity, step, grid, a=0.7).sample(noise)
    # at sigma 0.4: 0.36 * 0.25 + 0.16 = 0.25; 3 standard errors of a variance: 3 sqrt(2 / 20000) = 3 %,
    # and 2 % for the 100 steps
    assert x.var().item() == pytest.approx(0.25, rel=0.05)
