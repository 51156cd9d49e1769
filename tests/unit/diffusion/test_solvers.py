"""Deterministic solvers: worked numbers, orders of convergence, and the agreement with diffusers."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.diffusion.kernels import dpmpp_2m, euler, no_history
from mmgrpo.diffusion.ode import Solver
from mmgrpo.diffusion.schedules import Grid, flow, flow_grid
from tests.flows import flow_like, real, worked
from tests.toys import ToyConditioning, ToyModel


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
    """Log-SNR is minus infinity at sigma 1, so no slope can be taken from there."""
    grid, x = flow_like(real(1, 0.9, 0.7, 0)), real(1)[:, None]
    history = no_history(x)
    for index, velocity in enumerate((0.5, -0.25)):
        step, output = torch.tensor([index]), real(velocity)[:, None]
        expected = euler(x, output, step, grid)
        x, history = dpmpp_2m(x, output, step, grid, history)
        assert x.item() == expected.item()


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_tail_solved_by_dpmpp_lands_on_the_data(length):
    """With all data in one point the clean estimate is exact, so every length must land on it."""
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


@pytest.mark.parametrize("prediction", ["epsilon", "v", "sample"])
def test_a_step_of_the_solver_takes_the_output_for_what_the_model_predicts(prediction):
    """From x_t = sqrt(a) x0 + sqrt(1 - a) e with a = 0.36 to a = 0.64: 0.6 x0 + 0.8 e becomes 0.8 x0 + 0.6 e."""
    grid, clean, noise = Grid(real(0.36, 0.64), torch.tensor([10]), "diffusion", 0.64), real(2), real(-1)
    output = {"epsilon": noise, "v": 0.6 * noise - 0.8 * clean, "sample": clean}[prediction]
    model = ToyModel(size=1)
    model.prediction = prediction
    solver = Solver(model, forward_batch_size=1, device=torch.device("cpu"))
    x = 0.6 * clean + 0.8 * noise
    after = solver.step(x[:, None], output[:, None], torch.tensor([0]), grid)
    assert after.item() == pytest.approx(0.8 * 2 - 0.6, abs=1e-12)


class CountingModel(ToyModel):
    """Predicts x + time + the number of its prompt, in half precision, and keeps the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def predict(self, network, x, time, conditioning):
        self.sizes.append(len(x))
        return (x + (time + conditioning.number)[:, None, None, None]).half()


def counting(batch: int) -> tuple[CountingModel, Solver]:
    model = CountingModel()
    return model, Solver(model, forward_batch_size=batch, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("batch", "gradient", "sizes"), [(2, False, [2, 2, 1]), (5, False, [5]), (4, False, [4, 1]), (2, True, [5])]
)
def test_only_forward_passes_without_gradient_are_cut_into_batches(batch, gradient, sizes):
    """A batch with gradient keeps its activations in any case, and is cut by ``micro_batch_size``."""
    model, solver = counting(batch)
    x, step = torch.arange(5.0).view(5, 1, 1, 1), torch.tensor([0, 1, 2, 3, 0])
    with torch.set_grad_enabled(gradient):
        output = solver.predict(model.network, x, step, ToyConditioning(torch.arange(5.0) * 10), flow_grid(4, 1.0))
    assert model.sizes == sizes and output.dtype == torch.float32
    assert output.flatten().tolist() == [0 + 1, 11 + 0.75, 22 + 0.5, 33 + 0.25, 44 + 1]


def test_the_ode_is_solved_from_the_first_step_unless_said_otherwise():
    # x' = x + t: from 1 at t = 1 by -1/2 each: 1 - (1 + 1) / 2 = 0, then 0 - (0 + 1/2) / 2 = -1/4
    model, solver = counting(8)
    one, none = torch.ones(1, 1, 1, 1), ToyConditioning(torch.zeros(1))
    assert solver.denoise(model.network, one, none, flow_grid(2, 1.0)).item() == -0.25
    assert solver.denoise(model.network, one, none, flow_grid(2, 1.0), start=1).item() == 1 - 1.5 / 2


def test_the_velocity_of_a_drawn_output_is_its_first_half_of_channels():
    output = torch.arange(48.0).view(2, 6, 4)
    model, solver = counting(8)
    assert torch.equal(solver.mean(output), output)
    model.prediction = "drawn"
    assert torch.equal(solver.mean(output), output[:, :3])
