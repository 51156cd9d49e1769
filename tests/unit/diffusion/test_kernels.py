"""Kernels: worked numbers, reductions, precision and shapes."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.diffusion.kernels import (
    DIFFUSION_KERNELS,
    KERNELS,
    dance,
    ddim,
    dpmpp_2m,
    edm_churn,
    euler,
    flow_ddim,
    flow_sde,
    kernel,
    level_table,
    no_history,
    noise_table,
    rectifier_table,
    sibling_noise,
)
from mmgrpo.diffusion.schedules import Grid, ddim_grid, flow_grid
from tests.flows import FLOW_KERNELS, NOISE_FREE, even_grid, fine_ddim_grid, flow_like, real, worked

# Worked numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mean", "std", "reached", "log_prob"),
    [
        # level = 0.7 sqrt(0.8 / 0.2) = 1.4; mean = 1 - 0.1 - 1.96 / 1.6 * 1.1 * 0.2; std = 1.4 sqrt(0.2)
        ("flow_sde(a=0.7)", 0.6305, 0.62609903, 0.81832971, -0.49569181),
        # mean = 1 - 0.1 - 0.09 / 1.6 * 1.1 * 0.2; std = 0.3 sqrt(0.2)
        ("dance(eta=0.3)", 0.887625, 0.13416408, 0.92787422, 1.04475323),
        # std = 0.6 sin(0.4 pi); mean = 0.4 * 0.6 + 0.6 cos(0.4 pi) * 1.1; log-prob = -(std * 0.3)^2
        ("cps(a=0.8)", 0.44395122, 0.57063391, 0.61514139, -0.02930608),
        # std = 0.42 sqrt(1 - 0.36 * 0.04 / (0.64 * 0.16)); mean = 0.4 * 0.6 + sqrt(0.36 - std^2) * 1.1
        ("flow_ddim(eta=0.7)", 0.74216687, 0.38935042, 0.85897199, -0.02066302),
        # std = 0.42 sqrt(0.2); mean = 0.24 + sqrt(0.36 - 0.03528) * 1.1
        ("flow_ddim_damped(eta=0.7)", 0.86682629, 0.18782971, 0.92317520, 0.70828099),
        # level = 0.7 * 0.8 * 0.8 = 0.448 on the grid 1, 0.8, 0.6, 0; mean = 0.9 - 0.448^2 / 1.6 * 1.1 * 0.2
        ("flow_sde_wan(eta=0.7)", 0.8724032, 0.20035169, 0.93250871, 0.64374247),
        ("flow_sde(a=1.4, factors=[1, 0.5, 1])", 0.6305, 0.62609903, 0.81832971, -0.49569181),
        # r = 0.6 / 1.04; mean = (1 + (r - 0.8) * 0.5) / (1 + 0.1 r); std = r sqrt(0.21) / (1 + 0.1 r)
        ("edm_churn(gamma=0.1)", 0.84, 0.24995867, 0.91498760, 0.42252114),
    ],
)
def test_flow_kernels_give_the_worked_numbers(text, mean, std, reached, log_prob):
    transition = kernel(text)(*worked())
    sample = transition.sample(real(0.3)[:, None])
    got = [transition.mean.item(), transition.std.item(), sample.item(), transition.log_prob(sample).item()]
    assert got == pytest.approx([mean, std, reached, log_prob], abs=6e-9)


@pytest.mark.parametrize(
    ("prediction", "mean", "std"),
    [
        # x0 = (1 - sqrt(.5) * .4) / sqrt(.5) = 1.01421; var = .3 / .5 * (1 - .5 / .7) = .1714286
        ("epsilon", 0.99197938, 0.41403934),
        # x0 = sqrt(.5) * (1 - .4) = .42426, e = sqrt(.5) * (.4 + 1) = .98995
        ("v", 0.70992957, 0.41403934),
        # x0 = .4, e = (1 - sqrt(.5) * .4) / sqrt(.5) = 1.01421: sqrt(.7) * .4 + sqrt(.1285714) * 1.01421
        ("sample", math.sqrt(0.7) * 0.4 + math.sqrt(0.3 - 0.6 * 2 / 7) * (math.sqrt(2) - 0.4), 0.41403934),
    ],
)
def test_ddim_gives_the_worked_numbers_for_every_prediction(prediction, mean, std):
    grid = Grid(real(0.5, 0.7), torch.tensor([10]), "diffusion", 0.7)
    transition = ddim(real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid, prediction=prediction)
    assert [transition.mean.item(), transition.std.item()] == pytest.approx([mean, std], abs=6e-9)


def test_ddim_log_prob_is_the_worked_number():
    grid = Grid(real(0.5, 0.7), torch.tensor([10]), "diffusion", 0.7)
    transition = ddim(real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid, "epsilon")
    sample = transition.sample(real(0.3)[:, None])
    assert sample.item() == pytest.approx(1.11619118, abs=6e-9)
    assert transition.log_prob(sample).item() == pytest.approx(-0.08214424, abs=6e-9)


def test_clipping_bounds_the_clean_estimate_and_leaves_the_noise():
    grid = Grid(real(0.5, 0.7), torch.tensor([10]), "diffusion", 0.7)
    inputs = (real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid, "epsilon")
    # x0 falls from 1.01421356 to 0.8, so the mean by sqrt(.7) of that
    lost = ddim(*inputs).mean - ddim(*inputs, clip=0.8).mean
    assert lost.item() == pytest.approx(math.sqrt(0.7) * 0.21421356, abs=1e-8)


def test_euler_gives_the_worked_number():
    assert euler(*worked()).item() == pytest.approx(0.9, abs=1e-15)  # 1 + 0.5 * (0.6 - 0.8)


def test_a_step_to_sigma_zero_is_the_clean_estimate():
    x, output, _, grid = worked()
    # from sigma 0.6: 1 - 0.6 * 0.5
    assert euler(x, output, torch.tensor([2]), grid).item() == pytest.approx(0.7, abs=1e-15)


@pytest.mark.parametrize("steps", [2, 10, 25])
def test_the_first_flow_sde_step_has_std_a(steps):
    # a sqrt(1 / (1 - s_1)) * sqrt(1 - s_1) = a
    assert noise_table(kernel("flow_sde(a=0.7)"), even_grid(steps, 3.0))[0].item() == pytest.approx(0.7)


def test_sigma_one_is_replaced_only_where_one_minus_sigma_divides():
    grid = flow_like(real(1, 0.9, 0))
    transition = flow_sde(real(1)[:, None], real(0.5)[:, None], torch.tensor([0]), grid, a=0.7)
    # level^2 = 0.49 / 0.1 = 4.9; x1 = x = 1; mean = 1 - 0.05 - 4.9 / 2 * 0.1 = 0.705
    assert transition.mean.item() == pytest.approx(0.705, abs=1e-12)
    assert transition.std.item() == pytest.approx(0.7, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("flow_sde(a=0.7)", [0.700, 0.738, 0.532, 0.442, 0.388, 0.350, 0.320, 0.291, 0.256, 0.202]),
        ("dance(eta=0.3)", [0.057, 0.061, 0.066, 0.072, 0.078, 0.087, 0.097, 0.110, 0.127, 0.150]),
    ],
)
def test_noise_tables_are_the_published_ones(text, table):
    # the tables are rounded to three digits, twice
    torch.testing.assert_close(noise_table(kernel(text), flow_grid(10)), torch.tensor(table), atol=6e-4, rtol=0)


def test_the_noise_level_is_the_std_without_the_root_of_dt():
    levels = level_table(kernel("dance(eta=0.3)"), flow_grid(10))
    torch.testing.assert_close(levels, torch.full((10,), 0.3), atol=1e-6, rtol=0)
    grid = flow_like(real(1, 0.8, 0.6, 0))
    assert level_table(kernel("flow_sde(a=0.7)"), grid)[1].item() == pytest.approx(1.4)
    assert level_table(kernel("ddim", "v"), Grid(real(0.5, 0.7), torch.tensor([1]), "diffusion", 0.7)).item() == (
        pytest.approx(0.41403934)
    )


# Reductions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", NOISE_FREE)
def test_every_flow_kernel_without_noise_is_euler(text):
    grid, step = even_grid(8, 3.0), torch.arange(8)
    x, output = torch.randn(2, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    transition = kernel(text)(x, output, step, grid)
    torch.testing.assert_close(transition.mean, euler(x, output, step, grid), atol=1e-14, rtol=0)
    assert bool((transition.std == 0).all())
    assert torch.equal(transition.sample(torch.ones_like(x)), transition.mean)


def test_flow_sde_at_a_level_of_eta_is_dance():
    # level = a sqrt(s / (1 - s)) = eta at s = 0.8 for a = eta / 2
    x, output, step, grid = worked()
    flow_step, dance_step = (
        flow_sde(x, output, step, grid, a=0.15),
        dance(x, output, step, grid, eta=0.3),
    )
    assert flow_step.mean.item() == pytest.approx(dance_step.mean.item(), abs=1e-15)
    assert flow_step.std.item() == pytest.approx(dance_step.std.item(), abs=1e-15)


def test_dance_drifts_along_the_score():
    # score = -x1 / s = -1.375; mean = x + v dt - eta^2 score dt / 2
    mean = 1 + 0.5 * -0.2 - 0.5 * 0.3**2 * -1.375 * -0.2
    assert dance(*worked(), eta=0.3).mean.item() == pytest.approx(mean, abs=1e-15)


def test_first_order_dpm_solver_is_euler():
    x, output, step, grid = worked()
    # (s'/s) x - (1 - s') (exp(-h) - 1) x0 with exp(-h) = 0.2 * 0.6 / (0.8 * 0.4) = 0.375: 0.75 + 0.15
    assert dpmpp_2m(x, output, step, grid, no_history(x))[0].item() == pytest.approx(0.9, abs=1e-15)


def test_ddim_without_noise_inverts_the_forward_process():
    x0, noise, grid = real(0.3)[:, None], real(-1.2)[:, None], fine_ddim_grid(10)
    now, then = grid.levels[4], grid.levels[5]
    x = now.sqrt() * x0 + (1 - now).sqrt() * noise
    for prediction, output in (
        ("epsilon", noise),
        ("sample", x0),
        ("v", now.sqrt() * noise - (1 - now).sqrt() * x0),
    ):
        step = ddim(x, output, torch.tensor([4]), grid, eta=0.0, prediction=prediction)
        expected = then.sqrt() * x0 + (1 - then).sqrt() * noise
        torch.testing.assert_close(step.mean, expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize(("eta", "clip"), [(1.0, math.inf), (0.0, math.inf), (0.5, 0.8)])
def test_ddim_is_that_of_diffusers(prediction, eta, clip):
    schedulers = pytest.importorskip("diffusers").schedulers
    scheduler = schedulers.DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        set_alpha_to_one=False,
        steps_offset=1,
        prediction_type=prediction,
        clip_sample=math.isfinite(clip),
        clip_sample_range=clip if math.isfinite(clip) else 1.0,
    )
    scheduler.set_timesteps(20)
    grid = ddim_grid(scheduler.alphas_cumprod, 20)
    x, output, noise = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0))
    for step in (0, 7, 18):
        wanted = scheduler.step(output, scheduler.timesteps[step], x, eta=eta, variance_noise=noise)
        transition = ddim(
            *(x, output, torch.full((2,), step), grid),
            eta=eta,
            prediction=prediction.removesuffix("_prediction"),
            clip=clip,
        )
        torch.testing.assert_close(transition.sample(noise), wanted.prev_sample, atol=2e-5, rtol=2e-5)


# Precision and shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*FLOW_KERNELS, *NOISE_FREE])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_transitions_are_fp32_whatever_the_network_computes_in(text, dtype):
    grid, step = flow_grid(4), torch.arange(3)
    x, output = torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    transition = kernel(text)(x, output, step, grid)
    exact = kernel(text)(x.float(), output.float(), step, grid)
    assert transition.mean.dtype == transition.std.dtype == torch.float32
    assert torch.equal(transition.mean, exact.mean)


@pytest.mark.parametrize("text", FLOW_KERNELS)
def test_entries_at_different_steps_do_not_mix(text):
    grid, step = flow_grid(6), torch.tensor([4, 0, 2])
    x, output = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    together = kernel(text)(x, output, step, grid)
    for index in range(3):
        one = slice(index, index + 1)
        alone = kernel(text)(x[one], output[one], step[one], grid)
        torch.testing.assert_close(together.mean[one], alone.mean)
        torch.testing.assert_close(together.std[one], alone.std)
        assert alone.std.shape == (1, 1, 1)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_every_kernel_of_the_table_runs_with_its_defaults(name):
    process = "diffusion" if name in DIFFUSION_KERNELS else "flow"
    grid = fine_ddim_grid(5) if process == "diffusion" else flow_grid(5)
    stds = noise_table(kernel(name, "epsilon"), grid, 2 if name == "drawn_velocity" else 1)
    assert stds.shape == (5,) and bool((stds[1:-1] > 0).all()) and bool(stds.isfinite().all())


@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
def test_a_consistency_step_keeps_nothing_of_the_noise(prediction):
    """abar .5 to .7: sqrt(.7) x0 and std sqrt(.3), where x0 of the three predictions is as in ddim's numbers."""
    grid = Grid(real(0.5, 0.7), torch.tensor([10]), "diffusion", 0.7)
    transition = kernel("consistency", prediction)(real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid)
    clean = {"epsilon": math.sqrt(2) - 0.4, "v": math.sqrt(0.5) * 0.6, "sample": 0.4}[prediction]
    assert transition.mean.item() == pytest.approx(math.sqrt(0.7) * clean, abs=1e-12)
    assert transition.std.item() == pytest.approx(math.sqrt(0.3), abs=1e-12)


def test_a_consistency_step_of_a_flow_is_cps_with_all_of_its_noise():
    # mean = .4 * .6, x' = .24 + .6 * .3, log-prob = -.045 - ln .6 - ln(2 pi) / 2; d log-prob / d v = .3 * (-.32) / .6
    x, output, step, grid = worked()
    output.requires_grad_()
    transition = kernel("cps(a=1.0, scaled=True)")(x, output, step, grid)
    sample = transition.sample(real(0.3)[:, None])
    log_prob = transition.log_prob(sample)
    (slope,) = torch.autograd.grad(log_prob.sum(), output)
    got = [transition.mean.item(), transition.std.item(), sample.item(), log_prob.item(), slope.item()]
    assert got == pytest.approx([0.24, 0.6, 0.42, -0.45311291, -0.16], abs=1e-8)
    assert -1.5 * slope.item() == pytest.approx(0.24)  # of -A log p with A = 1.5


def test_damped_noise_leaves_out_the_first_step_and_the_last():
    # eta s' sqrt(1 - s) on ten steps of shift 3
    stds = noise_table(kernel("flow_ddim_damped"), flow_grid(10))
    expected = [0, 0.1221, 0.1699, 0.2025, 0.2239, 0.2333, 0.2273, 0.1984, 0.1323, 0]
    assert stds.tolist() == pytest.approx(expected, abs=5e-5)


def test_rectifiers_are_those_of_flash_grpo():
    # w = 1 / (sqrt(dt) / c + c sqrt(dt) (1 - s) / (2 s)); at s .8 to .6: c = .7 * .9 * .8 = .504
    grid = flow_like(real(1, 0.9, 0.8, 0.6, 0))
    assert rectifier_table(kernel("flow_sde_wan(eta=0.7)"), grid)[2].item() == pytest.approx(1.09229569, abs=1e-7)
    table = rectifier_table(kernel("flow_sde_wan(eta=0.7)"), flow_grid(10))
    expected = [3.5718, 3.1814, 2.7964, 2.4176, 2.0457, 1.6819, 1.3271, 0.9824, 0.6484, 0.3237]
    assert table.tolist() == pytest.approx(expected, abs=6e-5)
    assert (table[:5] / table[:5].mean()).tolist() == pytest.approx([1.2745, 1.1352, 0.9978, 0.8626, 0.7299], abs=6e-5)
    # 20 steps and eta 1: within .1 % of the released table, whose grid begins at .9997
    released = [7.4770, 7.0414, 6.6112, 6.1867, 5.7682, 5.3559, 4.9502, 4.5513, 4.1596, 3.7754]
    assert rectifier_table(kernel("flow_sde_wan"), flow_grid(20))[:10].tolist() == pytest.approx(released, rel=1.1e-3)


@pytest.mark.parametrize("text", FLOW_KERNELS)
def test_a_rectifier_is_the_std_over_what_an_output_moves_the_mean_by(text):
    grid, step = flow_grid(6), torch.arange(6)
    x, output = torch.zeros(6, 1), torch.zeros(6, 1, requires_grad=True)
    transition = kernel(text)(x, output, step, grid)
    (slope,) = torch.autograd.grad(transition.mean.sum(), output)
    expected = (transition.std / slope.abs()).flatten()
    torch.testing.assert_close(rectifier_table(kernel(text), grid), expected, rtol=1e-4, atol=1e-6)


def test_factors_of_another_grid_are_refused():
    with pytest.raises(ValueError, match=r"flow_sde: factors.*2.*5"):
        noise_table(kernel("flow_sde(factors=[1, 0.5])"), flow_grid(5))


def test_a_kernel_of_the_other_process_is_refused():
    with pytest.raises(ValueError, match="diffusion.*flow"):
        noise_table(kernel("flow_sde"), fine_ddim_grid(5))
    with pytest.raises(ValueError, match="ddim"):
        noise_table(kernel("ddim"), flow_grid(5))


def test_unknown_kernels_and_predictions_are_refused_with_what_is_known():
    with pytest.raises(ValueError, match="'flow_sde'"):
        kernel("flow_sd(a=0.7)")
    with pytest.raises(ValueError, match="'eta'"):
        kernel("flow_sde(eta=0.7)")
    with pytest.raises(ValueError, match="'ddim'.*'prediction'"):
        kernel("ddim(prediction='v')")  # it is the network's
    with pytest.raises(ValueError, match="'flow'"):
        noise_table(kernel("ddim"), fine_ddim_grid(5))


# Siblings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_siblings_are_standard_normal_and_correlate_by_one_over_one_plus_s_squared(scale):
    generator, count = torch.Generator().manual_seed(0), 200_000
    shared, first, second = torch.randn(3, count, 1, generator=generator)
    one, two = sibling_noise(shared, first, scale), sibling_noise(shared, second, scale)
    # three standard errors: 3 / sqrt(200000) = 0.007, of a variance 0.0095
    assert one.var().item() == pytest.approx(1, abs=0.0095)
    assert (one * two).mean().item() == pytest.approx(1 / (1 + scale**2), abs=0.007)


def test_siblings_of_infinite_scale_are_independent():
    shared, own = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(sibling_noise(shared, own, math.inf), own)
    torch.testing.assert_close(sibling_noise(shared, own, 1e6), own, atol=1e-5, rtol=0)


def test_parameters_in_the_text_reach_the_kernel():
    x, output, step, grid = worked()
    assert torch.equal(
        kernel("flow_ddim(eta=0.2)")(x, output, step, grid).std,
        flow_ddim(x, output, step, grid, eta=0.2).std,
    )
    assert torch.equal(
        kernel("edm_churn(gamma=0.2)")(x, output, step, grid).mean,
        edm_churn(x, output, step, grid, gamma=0.2).mean,
    )
