"""Noise and states keep the sizes of the schedule: every kernel on the levels of every published scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mmgrpo.diffusion.kernels import ddim, kernel, noise_table
from mmgrpo.diffusion.schedules import MOST_RMS, MOST_RMS_OF_DIFFUSION, Grid, Sizes, ddim_grid, flow, refuse_noise
from mmgrpo.runtime.finite import NotFinite, TooLarge
from tests.flows import even_grid, fine_ddim_grid, flow_like, real

diffusers = pytest.importorskip("diffusers")

STOCHASTIC = [
    *("flow_sde(a=0.7)", "flow_sde(a=1.2)", "flow_sde_wan", "dance(eta=0.3)", "dance(eta=1.0)"),
    *("cps(a=0.8)", "cps(a=0.8, scaled=True)", "flow_ddim(eta=0.7)", "flow_ddim(eta=1.0)", "edm_churn"),
]


def levels(kind: str, steps: int, **config: Any) -> Grid:
    """The levels that a scheduler of diffusers makes, as its pipelines call it."""
    scheduler = getattr(diffusers, kind)(**config)
    if config.get("use_dynamic_shifting"):
        scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps), mu=1.15)
    else:
        scheduler.set_timesteps(steps)
    return flow(scheduler.sigmas.float())


MULTISTEP = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
PUBLISHED: dict[str, Callable[[int], Grid]] = {
    "sd3": lambda steps: levels("FlowMatchEulerDiscreteScheduler", steps, shift=3.0),
    "schnell": lambda steps: levels("FlowMatchEulerDiscreteScheduler", steps, shift=1.0),
    "hunyuan": lambda steps: levels("FlowMatchEulerDiscreteScheduler", steps, shift=7.0),
    "flux": lambda steps: levels("FlowMatchEulerDiscreteScheduler", steps, shift=3.0, use_dynamic_shifting=True),
    "qwen_image, ltx": lambda steps: levels(
        "FlowMatchEulerDiscreteScheduler", steps, use_dynamic_shifting=True, shift_terminal=0.02
    ),
    "wan": lambda steps: levels("UniPCMultistepScheduler", steps, flow_shift=3.0, **MULTISTEP),
    "wan 720p": lambda steps: levels("UniPCMultistepScheduler", steps, flow_shift=5.0, **MULTISTEP),
    "wan 2.2": lambda steps: levels("UniPCMultistepScheduler", steps, flow_shift=12.0, **MULTISTEP),
    "sana": lambda steps: levels("DPMSolverMultistepScheduler", steps, flow_shift=3.0, **MULTISTEP),
    "sana 4096": lambda steps: levels("DPMSolverMultistepScheduler", steps, flow_shift=6.0, **MULTISTEP),
    "sana_video": lambda steps: levels("DPMSolverMultistepScheduler", steps, flow_shift=8.0, **MULTISTEP),
    "lcm": lambda steps: levels("FlowMatchLCMScheduler", steps, shift=3.0),
}
"""The schedulers of published flows, with the values of their files."""


def sizes(text: str, grid: Grid, spread: float = 1.0) -> list[float]:
    """The RMS of the states after each step but the last, for data N(0, spread), whose velocity is linear in x."""
    sigma = grid.levels
    slope = (sigma - (1 - sigma) * spread) / ((1 - sigma).square() * spread + sigma.square())
    transition = kernel(text)(torch.ones(grid.steps, 1), slope[:-1, None], torch.arange(grid.steps), grid)
    variance, made = 1.0, []
    for gain, std in zip(transition.mean.flatten()[:-1].tolist(), transition.std.flatten()[:-1].tolist(), strict=True):
        variance = gain**2 * variance + std**2
        made.append(math.sqrt(variance))
    return made


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("text", STOCHASTIC)
def test_states_keep_the_size_of_noise_and_data(text, name):
    for steps in (10, 16, 20, 40):
        grid = PUBLISHED[name](steps)
        made, std = sizes(text, grid), noise_table(kernel(text), grid)
        assert min(made) > 0.5 and max(made) < 2, (steps, made)
        assert 0 < std[0] < 1.5 and float(std[:-1].max()) < 1.5, (steps, std)
        refuse_noise(text, std, [True] * (steps - 1) + [False], grid)


@pytest.mark.parametrize("top", [1.0, 0.9999999, 0.999999, 0.9999])
def test_the_first_std_of_flow_sde_is_continuous_in_the_first_level(top):
    """0.7 sqrt(top / (1 - 0.95)) sqrt(top - 0.95): at top = 1 exactly 0.7."""
    std = noise_table(kernel("flow_sde(a=0.7)"), flow_like(real(top, 0.95, 0.5, 0)))
    assert std[0].item() == pytest.approx(0.7, abs=1e-3)
    # 0.7 sqrt(0.95 / 0.05) sqrt(0.45) = 2.0469 at the second level, whatever the first one is
    assert std[1].item() == pytest.approx(2.0469, abs=1e-4)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("steps", [4, 10, 20, 40])
def test_the_first_std_of_flow_sde_is_a_on_every_published_scheduler(steps, name):
    std = noise_table(kernel("flow_sde(a=0.7)"), PUBLISHED[name](steps))
    assert std[0].item() == pytest.approx(0.7, rel=0.02)


def test_the_released_level_of_wan_is_the_second_level_times_s():
    """20 steps of shift 3: u = .95005, second level 3 u / (1 + 2 u) = .98277, std .98277 sqrt(1 - .98277) = .129."""
    grid = PUBLISHED["wan"](20)
    transition = kernel("flow_sde_wan")(torch.zeros(20, 1), torch.zeros(20, 1), torch.arange(20), grid)
    level = transition.std.flatten() / grid.dt(torch.arange(20)).sqrt()
    assert level[0].item() == pytest.approx(0.9828, abs=5e-5)
    assert transition.std[0].item() == pytest.approx(0.129, abs=5e-4)
    torch.testing.assert_close(level, grid.levels[1] * grid.levels[:-1])


# Denoising diffusion --------------------------------------------------------------------------------------

SCALED = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
@pytest.mark.parametrize("steps", [10, 50])
def test_states_of_ddim_keep_the_size_of_noise_and_data(spacing, zero_snr, prediction, steps):
    """Data of variance 1 have x of variance 1 at every level, and the exact predictions sqrt(1 - abar) x, 0 and
    sqrt(abar) x of epsilon, v and x0. A finite step loses some of the variance and never adds any."""
    if zero_snr and prediction == "epsilon":
        pytest.skip("pure noise tells a prediction of the noise nothing; the families refuse it")
    scheduler = diffusers.DDIMScheduler(**SCALED, rescale_betas_zero_snr=zero_snr)
    for clean_end in (False, True):
        grid = ddim_grid(scheduler.alphas_cumprod, steps, spacing, 1 if spacing == "leading" else 0, clean_end)
        if zero_snr and spacing != "leading":
            assert grid.levels[0] == 0
        now = grid.levels[:-1]
        slope = {"epsilon": (1 - now).sqrt(), "v": torch.zeros_like(now), "sample": now.sqrt()}[prediction]
        transition = ddim(torch.ones(steps, 1), slope[:, None], torch.arange(steps), grid, prediction)
        variance = 1.0
        for gain, std in zip(transition.mean.flatten().tolist(), transition.std.flatten().tolist(), strict=True):
            variance = gain**2 * variance + std**2
            assert 0.25 < variance < 1.0001


# Guards -----------------------------------------------------------------------------------------------------


def test_noise_that_the_levels_do_not_allow_is_refused_before_anything_is_sampled():
    grid = even_grid(4)
    stochastic = [True, True, True, False]
    for text in ("flow_sde(a=2.5)", "dance(eta=8.0)"):
        with pytest.raises(ValueError, match=rf"^sampling\.kernel.*{text.split('(')[0]}.*std.*4.*1"):
            refuse_noise(text, noise_table(kernel(text), grid), stochastic, grid)
    std = torch.tensor([0.5, 0.5, 0.5, 9.0])
    refuse_noise("flow_sde", std, stochastic, grid)  # the last step draws none
    with pytest.raises(ValueError, match=r"step 2 of 4"):
        refuse_noise("flow_sde", torch.tensor([0.5, 0.0, 0.5, 0.0]), stochastic, grid)
    with pytest.raises(ValueError, match="9.*step 4.*4"):
        refuse_noise("flow_sde", std, [True] * 4, grid)
    with pytest.raises(ValueError, match=r"step 1 of 4"):
        refuse_noise("flow_sde", std.index_fill(0, torch.tensor([0]), torch.nan), stochastic, grid)


@pytest.mark.parametrize(("grid", "most"), [(even_grid(4), MOST_RMS), (fine_ddim_grid(4), MOST_RMS_OF_DIFFUSION)])
def test_a_state_above_the_largest_size_names_kernel_level_and_step(grid, most):
    x, larger = torch.full((3, 2, 2), 0.999 * most), torch.full((3, 2, 2), 0.999 * most)
    larger[1] *= 1.01
    sizes = Sizes(grid)
    sizes.refuse()
    sizes.see(x, "kernel", 0)
    sizes.refuse()
    sizes.see(larger, "sampling.kernel dance", 1)
    sizes.see(2 * larger, "kernel", 2)
    with pytest.raises(TooLarge, match=f"^sampling.kernel dance.*1.*3.*2.*4.*{grid.levels[1]:.3g}"):
        sizes.refuse()
    larger[2] = torch.nan
    whole, undefined = Sizes(grid), Sizes(grid)
    whole.see(larger, "kernel", 1)
    with pytest.raises(NotFinite):
        whole.refuse()
    undefined.see(larger[2:], "kernel", 1)
    undefined.refuse()  # an error of its own, where the sample is complete
