"""Kernels and solvers: worked numbers, reductions, the marginals they claim, and their likelihood."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from mmgrpo.diffusion.kernels import (
    KERNELS,
    Transition,
    cps,
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
    sibling_noise,
)
from mmgrpo.diffusion.schedules import Grid, ddim_grid, flow, flow_grid, shifted

FLOW_KERNELS = ["flow_sde", "dance", "cps", "cps(scaled=True)", "flow_ddim", "edm_churn(gamma=0.1)"]
NOISE_FREE = ["flow_sde(a=0.0)", "dance(eta=0.0)", "cps(a=0.0)", "flow_ddim(eta=0.0)", "edm_churn(gamma=0.0)"]


def real(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flow_like(levels: torch.Tensor) -> Grid:
    return flow(levels.double())


def worked(output: float = 0.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Grid]:
    """x = 1, v = 0.5, sigma 0.8 to 0.6: x0 = 1 - 0.8 * 0.5 = 0.6, x1 = 1 + 0.2 * 0.5 = 1.1, dt = -0.2."""
    return real(1)[:, None], real(output)[:, None], torch.tensor([1]), flow_like(real(1, 0.8, 0.6, 0))


def even_grid(steps: int, shift: float = 1.0) -> Grid:
    return flow_like(shifted(torch.linspace(1, 0, steps + 1, dtype=torch.float64), shift))


def fine_ddim_grid(steps: int) -> Grid:
    """A cosine process in fine double-precision steps; the network times do not matter here."""
    angle = torch.linspace(1.5, 0.02, steps + 1, dtype=torch.float64)
    levels = angle.cos().square()
    return Grid(levels, torch.arange(steps), "diffusion", float(levels[1]))


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
    transition = ddim(real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid)
    sample = transition.sample(real(0.3)[:, None])
    assert sample.item() == pytest.approx(1.11619118, abs=6e-9)
    assert transition.log_prob(sample).item() == pytest.approx(-0.08214424, abs=6e-9)


def test_clipping_bounds_the_clean_estimate_and_leaves_the_noise():
    grid = Grid(real(0.5, 0.7), torch.tensor([10]), "diffusion", 0.7)
    inputs = (real(1)[:, None], real(0.4)[:, None], torch.tensor([0]), grid)
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
    assert level_table(kernel("ddim"), Grid(real(0.5, 0.7), torch.tensor([1]), "diffusion", 0.7)).item() == (
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


# Marginals --------------------------------------------------------------------------------------------


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


# Solvers ----------------------------------------------------------------------------------------------


def solver_error(steps: int, second_order: bool) -> float:
    """Solve the ODE of data N(0, 0.25) from sigma 0.9 to 0.1; x stays at its quantile, one std."""
    levels = torch.linspace(0.9, 0.1, steps + 1, dtype=torch.float64)
    grid = Grid(levels, levels[:-1], "flow", float(levels[1]))
    variance = (1 - levels).square() * 0.25 + levels.square()
    x = variance[0].sqrt().reshape(1, 1)
    history = no_history(x)
    for index in range(steps):
        step = torch.tensor([index])
        velocity = x * (levels[index] - (1 - levels[index]) * 0.25) / variance[index]
        if second_order:
            x, history = dpmpp_2m(x, velocity, step, grid, history)
        else:
            x = euler(x, velocity, step, grid)
    return abs(x.item() / variance[-1].sqrt().item() - 1)


def test_twice_the_steps_quarter_the_error_of_dpmpp_and_halve_that_of_euler():
    assert solver_error(40, True) / solver_error(80, True) == pytest.approx(4, abs=0.1)
    assert solver_error(40, False) / solver_error(80, False) == pytest.approx(2, abs=0.1)
    assert solver_error(40, True) < solver_error(40, False) / 10


def test_the_second_order_correction_is_the_worked_number():
    x, output, step, grid = worked()
    history = no_history(x)
    _, history = dpmpp_2m(x, output, step, flow_like(real(1, 0.9, 0.8, 0)), history)
    # before: x0 = 1 - 0.9 * 0.5 = 0.55 at 0.9; now x0 = 0.6 at 0.8
    l09, l08, l06 = (math.log((1 - s) / s) for s in (0.9, 0.8, 0.6))
    slope = (0.6 - 0.55) * (l06 - l08) / (l08 - l09)
    expected = 0.9 - 0.5 * 0.4 * (0.375 - 1) * slope
    after, history = dpmpp_2m(x, output, step, grid, history)
    assert after.item() == pytest.approx(expected, abs=1e-14)
    assert history.clean.item() == pytest.approx(0.6) and history.level.item() == 0.8


def test_the_step_to_sigma_zero_is_first_order_and_finite():
    x, output, step, grid = worked()
    _, history = dpmpp_2m(x, output, step, grid, no_history(x))
    after, _ = dpmpp_2m(x, 2 * output, torch.tensor([2]), grid, history)
    assert after.item() == pytest.approx(1 - 0.6 * 1.0, abs=1e-15)


def test_the_first_two_steps_from_sigma_one_are_first_order():
    """Log-SNR is minus infinity at sigma 1, so that no slope can be taken from there."""
    grid, x = flow_like(real(1, 0.9, 0.7, 0)), real(1)[:, None]
    history = no_history(x)
    for index, velocity in enumerate((0.5, -0.25)):
        step, output = torch.tensor([index]), real(velocity)[:, None]
        expected = euler(x, output, step, grid)
        x, history = dpmpp_2m(x, output, step, grid, history)
        assert x.item() == expected.item()


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_tail_solved_by_dpmpp_lands_on_the_data(length):
    """With all data in one point the clean estimate is exact, so that every length must land on it."""
    grid = flow_grid(12).with_tail(7, length)
    x = (1 - grid.levels[7]) * torch.full((3, 2), 0.7) + grid.levels[7] * torch.randn(
        3, 2, generator=torch.Generator().manual_seed(0)
    )
    history = no_history(x)
    for index in range(7, grid.steps):
        step = torch.full((3,), index)
        x, history = dpmpp_2m(x, (x - 0.7) / grid.levels[index], step, grid, history)
    torch.testing.assert_close(x, torch.full((3, 2), 0.7), atol=1e-6, rtol=0)


def test_dpmpp_is_that_of_diffusers():
    schedulers = pytest.importorskip("diffusers").schedulers
    scheduler = schedulers.DPMSolverMultistepScheduler(
        solver_order=2,
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=3.0,
        lower_order_final=False,
        euler_at_final=True,
        final_sigmas_type="zero",
    )
    scheduler.set_timesteps(9)
    grid = flow(scheduler.sigmas)
    generator = torch.Generator().manual_seed(0)
    x = theirs = torch.randn(2, 3, generator=generator)
    history = no_history(x)
    for index, time in enumerate(scheduler.timesteps):
        output = torch.randn(2, 3, generator=generator)
        theirs = scheduler.step(output, time, theirs).prev_sample
        x, history = dpmpp_2m(x, output, torch.full((2,), index), grid, history)
        torch.testing.assert_close(x, theirs, atol=2e-5, rtol=2e-5)


# Likelihood -------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("text", FLOW_KERNELS)
def test_scoring_a_sample_again_gives_the_same_number(text):
    generator, grid, step = torch.Generator().manual_seed(0), flow_grid(10), torch.arange(9)
    x, output, noise = torch.randn(3, 9, 4, 2, generator=generator)
    transition = kernel(text)(x, output, step, grid)
    sample = transition.sample(noise)
    again = kernel(text)(x, output, step, grid).log_prob(sample)
    assert torch.equal(again, transition.log_prob(sample)) and bool(again.isfinite().all())


@pytest.mark.parametrize("text", FLOW_KERNELS)
def test_following_the_gradient_makes_the_sample_likelier(text):
    generator, grid, step = torch.Generator().manual_seed(0), flow_grid(10), torch.arange(9)
    x, output, noise = torch.randn(3, 9, 8, generator=generator, dtype=torch.float64)
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
    with pytest.raises(ValueError, match="deterministic step"):
        transition.log_prob(transition.mean)
    with pytest.raises(ValueError, match="deterministic step"):
        flow_sde(*worked()).kl(transition)


def test_the_last_step_of_cps_has_no_likelihood():
    x, output, _, grid = worked()
    transition = cps(x, output, torch.tensor([2]), grid)
    assert transition.std.item() == 0
    with pytest.raises(ValueError, match="last step"):
        transition.log_prob(x)


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
    process = "diffusion" if name == "ddim" else "flow"
    grid = fine_ddim_grid(5) if process == "diffusion" else flow_grid(5)
    stds = noise_table(kernel(name), grid)
    assert stds.shape == (5,) and bool((stds[:-1] > 0).all()) and bool(stds.isfinite().all())


def test_a_kernel_of_the_other_process_is_refused():
    with pytest.raises(ValueError, match="for a flow process, the model's noise grid is of a diffusion"):
        noise_table(kernel("flow_sde"), fine_ddim_grid(5))
    with pytest.raises(ValueError, match="diffusion models take ddim"):
        noise_table(kernel("ddim"), flow_grid(5))


def test_unknown_kernels_and_predictions_are_refused_with_what_is_known():
    with pytest.raises(ValueError, match="Did you mean 'flow_sde'"):
        kernel("flow_sd(a=0.7)")
    with pytest.raises(ValueError, match="has no parameter 'eta'"):
        kernel("flow_sde(eta=0.7)")
    with pytest.raises(ValueError, match="'epsilon', 'v' or 'sample', got 'flow'"):
        noise_table(kernel("ddim(prediction='flow')"), fine_ddim_grid(5))


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
