"""What text-to-speech papers add: steps in the other direction of time, drawn velocities, sway sampling."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.diffusion.kernels import drawn_velocity, flow_sde, kernel, noise_table
from mmgrpo.diffusion.schedules import EPSS, flow_grid, pruned_sway_grid, sway_grid
from tests.flows import even_grid, flow_like, real, seeded


@pytest.mark.parametrize("a", [0.3, 0.7])
def test_the_house_step_is_the_one_in_the_direction_of_text_to_speech(a):
    """FlowTTS-GRPO, t = 0 noise, t = 1 data: mean = x + [v + s^2 / (2 (1 - t)) (-x + t v)] dt, s = a sqrt((1 - t) / t),
    std = s sqrt(dt)."""
    grid = even_grid(8, 2.0)
    step = torch.arange(1, 7)  # both formulas end at t = 0 and t = 1
    x, velocity = (torch.randn(6, 3, 5, generator=seeded(n), dtype=torch.float64) for n in range(2))
    t = (1 - grid.levels[step])[:, None, None]
    dt = (1 - grid.levels[step + 1])[:, None, None] - t
    sigma = a * ((1 - t) / t).sqrt()
    mean = x + (velocity + sigma**2 / (2 * (1 - t)) * (-x + t * velocity)) * dt
    ours = flow_sde(x, -velocity, step, grid, a)  # the house's velocity is noise - data
    torch.testing.assert_close(ours.mean, mean, rtol=0, atol=1e-13)
    torch.testing.assert_close(ours.std, sigma * dt.sqrt(), rtol=0, atol=1e-13)


def test_a_drawn_velocity_moves_the_sample_by_it_times_the_step():
    """mu = 2 and sigma = 1/2 from s = 1 to 0.75: mean = x - 2 / 4, std = 1/2 / 4; in F5R-TTS's direction +2 / 4."""
    grid, x = flow_like(real(1, 0.75, 0)), real(1, -1)[None]
    output = torch.cat([real(2, 0)[None], real(0.5, 2).log()[None]], 1)
    transition = drawn_velocity(x, output, torch.tensor([0]), grid)
    assert transition.mean.tolist() == [[0.5, -1.0]]
    assert transition.std.tolist() == [[0.125, 0.5]]
    at = real(0.6, -0.5)[None]
    expected = torch.distributions.Normal(transition.mean, transition.std).log_prob(at).mean()
    assert transition.log_prob(at).item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_the_first_half_of_the_outputs_is_the_mean_and_the_second_ln_sigma(channels):
    output = torch.cat([torch.ones(1, channels), math.log(3) * torch.ones(1, channels)], 1).double()
    grid = flow_like(real(1, 0.5, 0))
    transition = drawn_velocity(torch.zeros(1, channels).double(), output, torch.tensor([0]), grid)
    assert transition.mean.tolist() == [[-0.5] * channels]
    assert transition.std.flatten().tolist() == pytest.approx([1.5] * channels)


def test_the_gradient_reaches_the_std_too():
    """Of the mean log-density: (z^2 - 1) / 2 to ln sigma and z / sigma * (-dt) / (2 dt) to mu, with z = 3 and 0."""
    grid, output = flow_like(real(1, 0.5, 0)), torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    transition = drawn_velocity(torch.zeros(1, 2, dtype=torch.float64), output, torch.tensor([0]), grid)
    transition.log_prob(real(1.5, 0.0)[None]).sum().backward()
    assert output.grad is not None
    assert output.grad[0, 2:].tolist() == [8 / 2, -1 / 2]
    assert output.grad[0, :2].tolist() == [-3 / 2, 0]


def test_a_network_without_ln_sigma_cannot_draw():
    with pytest.raises(ValueError, match="1 outputs.*1"):
        noise_table(kernel("drawn_velocity"), flow_grid(3))


def test_sway_with_minus_one_is_the_cosine_and_zero_is_even():
    levels = sway_grid(4).levels
    assert levels.tolist() == pytest.approx([math.cos(math.pi / 8 * k) for k in range(4)] + [0.0], abs=1e-7)
    assert levels[-1] == 0 and levels[0] == 1
    assert sway_grid(4, s=0.0).levels.tolist() == [1, 0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize("s", [-1.0, -0.4, 1.0])
def test_sway_is_the_published_formula_in_the_other_direction(s):
    t = torch.linspace(0, 1, 33, dtype=torch.float64)
    published = t + s * ((math.pi / 2 * t).cos() - 1 + t)
    # rounded to fp32 once, which is at most 2^-25 off
    torch.testing.assert_close(1 - sway_grid(32, s).levels.double(), published, rtol=0, atol=2**-25 + 1e-15)


@pytest.mark.parametrize("steps", range(1, 34))
def test_pruned_steps_are_those_of_32_with_some_left_out(steps):
    """F5-TTS's numbers of evaluations with a choice of their own, and even times for all others."""
    levels, all_levels = pruned_sway_grid(steps).levels, sway_grid(32).levels
    assert len(levels) == steps + 1
    if steps not in (5, 6, 7, 10, 12, 16):
        assert torch.equal(levels, sway_grid(steps).levels)
        return
    assert set(levels.tolist()) <= set(all_levels.tolist())
    gaps = [after - before for before, after in zip(EPSS[steps], EPSS[steps][1:])]
    assert gaps == sorted(gaps) and sum(gaps) == 32
