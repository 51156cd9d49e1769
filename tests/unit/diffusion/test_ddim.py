"""DDIM for the three predictions: worked numbers, gradients, and whole chains of diffusers' scheduler."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.diffusion.kernels import ddim, kernel, noise_table
from mmgrpo.diffusion.schedules import Grid, ddim_grid
from tests.flows import real

SD = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "clip_sample": False}
"""The betas of Stable Diffusion."""


def scheduler_of(**changes):
    return pytest.importorskip("diffusers").schedulers.DDIMScheduler(**SD, **changes)


def worked(prediction: str, output: torch.Tensor):
    """abar = .5 to .7, x = 1: var = .3 / .5 (1 - .5 / .7) = .1714286, std = .4140393."""
    grid = Grid(real(0.5, 0.7), torch.tensor([10]), "diffusion", 0.7)
    return ddim(real(1)[:, None], output, torch.tensor([0]), grid, prediction)


@pytest.mark.parametrize(
    ("prediction", "reached", "slope"),
    [
        # mean = sqrt(.7) (1 - sqrt(.5) e) / sqrt(.5) + sqrt(.3 - .1714286) e
        ("epsilon", 1.11619118, -math.sqrt(0.7) + math.sqrt(0.9 / 7)),
        # x0 = sqrt(.5) (1 - v), e = sqrt(.5) (v + 1)
        ("v", 0.70992957 + 0.3 * 0.41403934, math.sqrt(0.5) * (-math.sqrt(0.7) + math.sqrt(0.9 / 7))),
        # x0 = s, e = (1 - sqrt(.5) s) / sqrt(.5): .33466401 + .35856858 * 1.01421356
        ("sample", 0.69832913 + 0.3 * 0.41403934, math.sqrt(0.7) - math.sqrt(0.9 / 7)),
    ],
)
def test_a_sample_its_log_prob_and_its_gradient_are_the_worked_numbers(prediction, reached, slope):
    output = real(0.4)[:, None].requires_grad_()
    transition = worked(prediction, output)
    sample = transition.sample(real(0.3)[:, None])
    assert sample.item() == pytest.approx(reached, abs=1e-8)
    log_prob = transition.log_prob(sample)
    # -.3^2 / 2 - ln(.41403934) - ln(2 pi) / 2, whatever the network predicts
    assert log_prob.item() == pytest.approx(-0.08214424, abs=6e-9)
    [gradient] = torch.autograd.grad(log_prob.sum(), output)
    assert gradient.item() == pytest.approx(0.3 / 0.41403934 * slope, abs=1e-7)  # z / std dmean


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize(
    ("spacing", "offset", "to_one", "rescaled"),
    [("leading", 1, False, False), ("leading", 0, True, False), ("trailing", 0, True, False), ("trailing", 0, 0, True)],
)
def test_a_whole_chain_is_that_of_diffusers(prediction, spacing, offset, to_one, rescaled):
    if rescaled and prediction == "epsilon":
        pytest.skip("the noise cannot be predicted from pure noise")
    scheduler = scheduler_of(
        timestep_spacing=spacing,
        steps_offset=offset,
        set_alpha_to_one=bool(to_one),
        rescale_betas_zero_snr=rescaled,
        prediction_type=prediction,
    )
    scheduler.set_timesteps(10)
    grid = ddim_grid(scheduler.alphas_cumprod, 10, spacing, offset, bool(to_one))
    assert grid.times.tolist() == scheduler.timesteps.tolist()
    x = other = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    for step, time in enumerate(scheduler.timesteps):
        # A network that reads the state, so a wrong step shows in all later ones.
        x = ddim(x, (x + step).sin(), torch.full((2,), step), grid, prediction.removesuffix("_prediction"), 0.0).mean
        other = scheduler.step((other + step).sin(), time, other).prev_sample
        torch.testing.assert_close(x, other, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("steps", [7, 15, 30, 50])
@pytest.mark.parametrize("spacing", ["trailing", "linspace"])
def test_times_of_any_number_of_steps_are_those_of_diffusers_and_levels_are_theirs(spacing, steps):
    """Also where ``1000 // steps`` is not the distance of two times, by which diffusers' own step would go."""
    scheduler = scheduler_of(timestep_spacing=spacing)
    scheduler.set_timesteps(steps)
    grid = ddim_grid(scheduler.alphas_cumprod, steps, spacing)
    assert grid.times.tolist() == scheduler.timesteps.tolist()
    assert torch.equal(grid.levels[:-1], scheduler.alphas_cumprod[scheduler.timesteps])


@pytest.mark.parametrize(("prediction", "x0", "noise"), [("v", -0.4, 1.0), ("sample", 0.4, 1.0)])
def test_from_pure_noise_a_step_keeps_what_the_network_predicts(prediction, x0, noise):
    grid = Grid(real(0, 0.64), torch.tensor([999]), "diffusion", 0.64)
    for eta, direction, std in ((0.0, 0.6, 0.0), (1.0, 0.0, 0.6)):  # var = .36 / 1 (1 - 0)
        transition = ddim(real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid, prediction, eta)
        assert transition.mean.item() == pytest.approx(0.8 * x0 + direction * noise, abs=1e-12)
        assert transition.std.item() == pytest.approx(std, abs=1e-12)


def test_the_last_step_has_almost_no_noise_which_is_why_no_plan_trains_it():
    grid = ddim_grid(scheduler_of().alphas_cumprod, 50)
    std = noise_table(kernel("ddim(eta=1.0)", "epsilon"), grid)
    # betas .00085 and about .000855: var = .00085 / .001704 * .000855
    assert std[-1].item() == pytest.approx(0.0207, abs=1e-4)
    assert bool((std[:-1] > 1.5 * std[-1]).all())
    assert noise_table(kernel("ddim(eta=1.0)", "v"), ddim_grid(scheduler_of().alphas_cumprod, 50, clean_end=True))[
        -1
    ].item() == pytest.approx(0.0, abs=1e-12)
