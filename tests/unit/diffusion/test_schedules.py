"""Noise grids: the published tables, exact ends, and agreement with diffusers' schedulers."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.diffusion.schedules import (
    ddim_grid,
    exponential_sigmas,
    flow,
    flow_grid,
    flux_grid,
    flux_shift,
    inverse_time_shift,
    time_shift,
    variance_exploding_grid,
)

SHIFT3_TEN = [1, 0.964286, 0.923077, 0.875, 0.818182, 0.75, 0.666667, 0.5625, 0.428571, 0.25, 0]
SHIFT3_SIXTEEN = [
    *[1, 0.978261, 0.954545, 0.928571, 0.9, 0.868421, 0.833333, 0.794118, 0.75],
    *[0.7, 0.642857, 0.576923, 0.5, 0.409091, 0.3, 0.166667, 0],
]


def stable_diffusion_alphas() -> torch.Tensor:
    """SD1.x: betas whose square roots are evenly spaced from 0.00085 to 0.012."""
    return (1 - torch.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2).cumprod(0)


@pytest.mark.parametrize(("steps", "table"), [(10, SHIFT3_TEN), (16, SHIFT3_SIXTEEN)])
def test_shift_three_gives_the_published_levels(steps, table):
    # T = 10, second entry: 3 * 0.9 / (1 + 2 * 0.9) = 2.7 / 2.8 = 0.964286
    torch.testing.assert_close(flow_grid(steps).levels, torch.tensor(table), atol=5e-7, rtol=0)


def test_shift_one_is_evenly_spaced():
    torch.testing.assert_close(flow_grid(4, shift=1.0).levels, torch.tensor([1, 0.75, 0.5, 0.25, 0]))


@pytest.mark.parametrize(
    "grid", [flow_grid(7), flow_grid(25, 5.0), flux_grid(28, image_tokens=1024), flux_grid(1, image_tokens=4096)]
)
def test_flow_levels_start_at_one_and_end_at_zero_exactly(grid):
    assert grid.levels[0] == 1 and grid.levels[-1] == 0
    assert grid.levels.dtype == torch.float32
    assert bool((grid.levels[1:] < grid.levels[:-1]).all())


def test_flux_shift_grows_with_the_image():
    # mu is linear: 0.5 at 256 tokens, 1.15 at 4096; at 1024: 0.5 + 768 * 0.65 / 3840 = 0.63
    assert math.log(flux_shift(1024)) == pytest.approx(0.63, abs=1e-12)
    assert flux_shift(1024) == pytest.approx(1.8776, abs=5e-5)
    assert math.log(flux_shift(2025)) == pytest.approx(0.79944, abs=5e-6)
    assert flux_shift(2025) == pytest.approx(2.2243, abs=5e-5)
    assert flux_shift(4096) == pytest.approx(3.1582, abs=5e-5)


@pytest.mark.parametrize(("steps", "tokens"), [(4, 256), (16, 2025), (28, 4096)])
def test_flux_grid_is_that_of_diffusers(steps, tokens):
    schedulers = pytest.importorskip("diffusers").schedulers
    scheduler = schedulers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    base = torch.linspace(1, 1 / steps, steps, dtype=torch.float64).numpy()
    scheduler.set_timesteps(sigmas=base, mu=math.log(flux_shift(tokens)))
    torch.testing.assert_close(flux_grid(steps, image_tokens=tokens).levels, scheduler.sigmas, atol=2e-7, rtol=0)


@pytest.mark.parametrize("steps", [7, 28, 50])
def test_levels_are_rounded_to_fp32_once(steps):
    """At most half of the last bit, 2^-25 below 1, from the formula in double precision."""
    shift = flux_shift(1024)
    sigmas = [1 - k * (1 - 1 / steps) / max(1, steps - 1) for k in range(steps)]
    exact = torch.tensor([*(shift * s / (1 + (shift - 1) * s) for s in sigmas), 0], dtype=torch.float64)
    torch.testing.assert_close(flux_grid(steps, image_tokens=1024).levels.double(), exact, rtol=0, atol=2**-25 + 1e-15)


def test_the_network_is_given_sigma_and_not_a_truncated_thousandth():
    grid = flow_grid(16)
    step = torch.arange(16)
    assert torch.equal(grid.network_time(step), grid.levels[:-1])
    # int(0.978261 * 1000) / 1000 = 0.978 is another time
    assert grid.network_time(torch.tensor([1])).item() == pytest.approx(0.9782609, abs=1e-7)


def test_steps_of_a_flow_last_from_one_to_zero():
    assert flow_grid(10).dt(torch.arange(10)).sum().item() == pytest.approx(1, abs=1e-6)


def test_unshifted_undoes_shifted():
    sigma = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(inverse_time_shift(time_shift(sigma, 3.0), 3.0), sigma, atol=1e-15, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 5, 11])
@pytest.mark.parametrize("grid", [flow_grid(16), flux_grid(16, image_tokens=1024)])
def test_a_tail_lands_on_zero_and_leaves_the_head_alone(grid, length):
    tail = grid.with_tail(5, length)
    assert tail.steps == 5 + length and tail.times.shape == (5 + length,)
    assert tail.levels[-1] == 0
    assert torch.equal(tail.levels[:6], grid.levels[:6])
    assert bool((tail.levels[1:] < tail.levels[:-1]).all())


def test_a_tail_of_full_length_is_the_grid_itself():
    grid = flow_grid(16)
    torch.testing.assert_close(grid.with_tail(5, 11).levels, grid.levels, atol=1e-7, rtol=0)


def test_a_tail_is_evenly_spaced_before_the_shift():
    # from 0.75, which is 0.5 before a shift of 3, in two steps: 0.5, 0.25, 0 -> 0.75, 0.75 / 1.5 = 0.5, 0
    grid = flow_grid(4).with_tail(2, 2)
    torch.testing.assert_close(grid.levels[2:], torch.tensor([0.75, 0.5, 0.0]))


def test_picked_points_keep_levels_times_and_the_cap_of_the_whole_grid():
    grid = flow_grid(10)
    coarse = grid.pick([0, 3, 6, 10])
    assert torch.equal(coarse.levels, grid.levels[[0, 3, 6, 10]])
    assert torch.equal(coarse.times, grid.levels[[0, 3, 6]])
    assert coarse.cap == grid.cap == pytest.approx(0.9642857)


@pytest.mark.parametrize("steps", [1, 20, 30, 50])
def test_leading_ddim_times_are_those_of_stable_diffusion(steps):
    schedulers = pytest.importorskip("diffusers").schedulers
    scheduler = schedulers.DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        set_alpha_to_one=False,
        steps_offset=1,
    )
    scheduler.set_timesteps(steps)
    grid = ddim_grid(stable_diffusion_alphas(), steps)
    assert grid.times.tolist() == scheduler.timesteps.tolist()
    torch.testing.assert_close(grid.levels[:-1], scheduler.alphas_cumprod[scheduler.timesteps])
    assert grid.levels[-1] == scheduler.final_alpha_cumprod


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
def test_all_timesteps_are_visited_once_whatever_the_spacing(spacing):
    grid = ddim_grid(stable_diffusion_alphas(), 1000, spacing, offset=0)
    assert grid.times.tolist() == list(range(999, -1, -1))


def test_there_are_as_many_times_as_steps_and_none_beyond_the_last():
    # 1000 / 61 in floating point fits into 1000 a 62nd time
    assert len(ddim_grid(stable_diffusion_alphas(), 61, "trailing").times) == 61
    # of 1000 leading steps with an offset the first would be at 1000
    assert ddim_grid(stable_diffusion_alphas(), 1000, "leading", offset=1).times.tolist()[:2] == [999, 999]


def test_trailing_ddim_times_start_at_the_last_timestep():
    grid = ddim_grid(stable_diffusion_alphas(), 4, spacing="trailing", clean_end=True)
    assert grid.times.tolist() == [999, 749, 499, 249]
    assert grid.levels[-1] == 1


def test_ddim_times_are_integers_and_levels_grow():
    grid = ddim_grid(stable_diffusion_alphas(), 50)
    assert grid.times.dtype == torch.int64 and grid.times[0] == 981 and grid.times[-1] == 1
    assert bool((grid.levels[1:] > grid.levels[:-1]).all())


def test_levels_that_do_not_fall_to_zero_are_refused():
    assert flow(torch.tensor([1.0, 0.0])).steps == 1
    for levels in ([1.0, 0.5, 0.5, 0.0], [1.0, 0.5, 0.1], [1.2, 0.5, 0.0], [1.0], [0.0]):
        with pytest.raises(ValueError, match="decrease.*1.*0"):
            flow(torch.tensor(levels))


def test_impossible_grids_are_refused_with_the_reason():
    with pytest.raises(ValueError, match="steps=0.*1"):
        flow_grid(0)
    with pytest.raises(ValueError, match="1000 timesteps"):
        ddim_grid(stable_diffusion_alphas(), 1001)
    with pytest.raises(ValueError, match="'even'.*'leading'.*'trailing'.*'linspace'"):
        ddim_grid(stable_diffusion_alphas(), 10, spacing="even")
    with pytest.raises(ValueError, match="diffusion.*flow"):
        ddim_grid(stable_diffusion_alphas(), 10).with_tail(2, 2)


def test_an_exploding_variance_becomes_a_share_of_noise_and_an_angle():
    grid = variance_exploding_grid(torch.tensor([3.0**0.5, 1.0, 0.0]))
    assert grid.levels.tolist() == pytest.approx([0.25, 0.5, 1])  # 1 / (1 + sigma^2)
    assert grid.times.tolist() == pytest.approx([2 / 3, 1 / 2])  # of a right angle: 60 and 45 degrees
    assert grid.process == "diffusion" and grid.levels[-1] == 1 and grid.cap == 0.5
    assert variance_exploding_grid(torch.tensor([1.0, 0.0])).steps == 1
    for sigmas in ([1.0, 0.3], [0.0], [1.0, 1.0, 0.0], [1.0, 2.0, 0.0], [2.0, 1.0, 1.0, 0.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="decrease.*0"):
            variance_exploding_grid(torch.tensor(sigmas))


def test_levels_in_geometric_progression_end_at_zero():
    assert exponential_sigmas(3, 0.5, 8.0).tolist() == pytest.approx([8, 2, 0.5, 0])
    with pytest.raises(ValueError, match="steps=0.*1"):
        exponential_sigmas(0, 0.5, 8.0)


def test_levels_without_a_shift_are_respaced_evenly_and_move_together():
    grid = flow(torch.tensor([1.0, 0.6, 0.0]))
    assert grid.shift == 1
    torch.testing.assert_close(grid.with_tail(1, 3).levels, torch.tensor([1.0, 0.6, 0.4, 0.2, 0.0]))
    assert {grid.to("meta").levels.device.type, grid.to("meta").times.device.type} == {"meta"}
