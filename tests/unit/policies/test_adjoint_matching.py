"""Adjoint Matching against a scalar by hand and against Gaussians, whose optimum is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmgrpo.diffusion.kernels import kernel
from mmgrpo.diffusion.schedules import Grid, flow, flow_grid
from mmgrpo.policies.adjoint_matching import AdjointMatchingPolicy, lean_adjoints
from mmgrpo.policies.reward_gradients import Adjoint
from mmgrpo.types import Image, Prompt, Request
from tests.toys import ToyConditioning, ToyModel

MEAN, VARIANCE, ROWS = 0.5, 0.36, 8_000


class Exact(nn.Module):
    """The velocity of data N(.5, .6^2), and an affine correction of each step."""

    def __init__(self, grid: Grid) -> None:
        super().__init__()
        self.slope, self.shift = (nn.Parameter(torch.zeros(grid.steps)) for _ in range(2))
        self.grid = grid

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        step = (level[:, None] - self.grid.levels[:-1]).abs().argmin(1)
        s, slope, shift = (one.view(-1, 1, 1, 1) for one in (level, self.slope[step], self.shift[step]))
        share = (x - (1 - s) * MEAN) / ((1 - s) ** 2 * VARIANCE + s**2)
        return s * share - MEAN - (1 - s) * VARIANCE * share + slope * x + shift


class Gaussian(ToyModel):
    """Its pixels are (x + 8) / 16 of one latent."""

    def __init__(self, steps: int) -> None:
        super().__init__(1)
        self.levels = flow_grid(steps, 1.0)
        self.network = Exact(self.levels)
        self.base = Exact(self.levels)
        self.reference: Any = Fixed(self.base)

    def grid(self, steps: int) -> Grid:
        return self.levels

    def predict(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: ToyConditioning) -> Tensor:
        return network(x, time)

    def pixels(self, latents: Tensor, conditioning: ToyConditioning) -> Tensor:
        return ((latents + 8) / 16).expand(-1, 3, -1, -1)

    def decode(self, latents: Tensor, conditioning: ToyConditioning) -> list[Image]:
        self.last = latents.flatten()
        return [Image(torch.zeros(3, 1, 1))] * len(latents)


class Fixed:
    """A reference that stays."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def keep(self) -> None: ...
    def __enter__(self) -> nn.Module:
        return self.network

    def __exit__(self, *error: object) -> None: ...
    def __call__(self) -> Fixed:
        return self


def made(steps: int, scale: float = 1.0, **options: Any) -> AdjointMatchingPolicy:
    path = Adjoint(scale, **options)
    model: Any = Gaussian(steps)
    return AdjointMatchingPolicy(model, steps=steps, path=path, evaluation_steps=steps, forward_batch_size=ROWS)


def sampled(policy: Any, reward: Any, seed: int, rows: int = ROWS) -> Any:
    """A rollout whose reward is a function of the latent."""
    function = lambda prompts, pixels: reward(16 * pixels[:, 0, 0, 0] - 8)  # noqa: E731
    return policy.rollout(Request([Prompt("a")], [0], rows, seed=seed, gradient=function))


def fit(policy: Any, reward: Any, rounds: int = 8, full: bool = False) -> tuple[float, float]:
    """Mean and std of samples after rounds of least squares; ``full``: adjoints of the trained field."""
    network, base, grid = policy.network, policy.model.base, policy.grid
    for number in range(rounds):
        steps = sampled(policy, reward, number).steps
        targets = steps.targets
        if full:
            states = list(steps.states.unbind(1))
            end = policy._step(network, states[-1], grid.steps - 1, steps.conditioning).mean.detach().requires_grad_()
            slope = torch.autograd.grad(reward(end).sum(), end)[0]
            mean = lambda x, t, given=steps.conditioning: policy._step(network, x, t, given).mean  # noqa: E731
            adjoints = lean_adjoints(states, mean, -policy.path.scale * slope)[1]
            means = [policy._step(base, x, t, steps.conditioning).mean for t, x in enumerate(states)]
            std = policy._std()
            targets = torch.stack([m - s**2 * a for m, s, a in zip(means, std, adjoints, strict=True)], 1).detach()
        for t in range(grid.steps - 1):
            x, step = steps.states[:, t], torch.full((ROWS,), t)
            velocity = base(x, grid.levels[step]).detach()
            mean = policy.kernel(x, velocity, step, grid).mean
            unit = policy.kernel(x, velocity + 1, step, grid).mean - mean
            wanted = ((targets[:, t] - mean) / unit).flatten()
            found = torch.linalg.lstsq(torch.stack([x.flatten(), torch.ones(ROWS)], 1), wanted[:, None]).solution
            with torch.no_grad():
                network.slope[t], network.shift[t] = found.flatten()
    sampled(policy, reward, 100)
    return float(policy.model.last.mean()), float(policy.model.last.std())


def test_adjoints_and_targets_are_those_by_hand():
    """v_ref = x / 2 + s / 10, x .4, r = x, levels .8 .6 .3 0, noises .3 and -.2."""
    grid, step_of = flow(torch.tensor([0.8, 0.6, 0.3, 0.0])), kernel("flow_ddim(eta=1.0)")

    def transition(x: Tensor, t: int) -> Any:
        return step_of(x, 0.5 * x + 0.1 * grid.levels[t], torch.tensor([t]), grid)

    states = [torch.tensor([[0.4]])]
    for t, noise in enumerate([0.3, -0.2, 0.0]):
        states.append(transition(states[-1], t).sample(torch.tensor([[noise]])))
    stds = [float(transition(x, t).std) for t, x in enumerate(states[:-1])]
    assert stds == pytest.approx([0.55621489, 0.28749445, 0.0], abs=1e-6)
    assert float(states[-1]) == pytest.approx(0.09372193, abs=1e-6)
    mean = lambda x, t: transition(x, t).mean  # noqa: E731
    means, adjoints = lean_adjoints(states[:-1], mean, torch.tensor([[-1.0]]))
    assert [float(one) for one in adjoints] == pytest.approx([-0.50392857, -0.85, -1.0], abs=1e-6)
    shifts = [-(std**2) * float(one) for std, one in zip(stds, adjoints, strict=True)]
    assert shifts == pytest.approx([0.15590290, 0.07025510, 0.0], abs=1e-6)
    losses = [shift**2 / (2 * std**2) for shift, std in zip(shifts[:2], stds[:2], strict=True)]
    assert losses == pytest.approx([0.03928196, 0.02985842], abs=1e-6)
    assert [float(one) for one in means] == pytest.approx(
        [float(transition(x, t).mean) for t, x in enumerate(states[:3])]
    )
    first = lean_adjoints([states[0], *states[:-1]], lambda x, t: mean(x, max(t - 1, 0)), torch.tensor([[-1.0]]))[1][0]
    assert float(first) == pytest.approx(-0.24566518, abs=1e-6)  # the adjoint before the first step


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_linear_reward_shifts_the_mean_by_the_variance_of_the_samples_and_keeps_it(scale):
    policy = made(10, scale)
    sampled(policy, lambda x: x, 100)
    mean, std = float(policy.model.last.mean()), float(policy.model.last.std())
    assert (mean, std) == pytest.approx((0.4987, 0.4707), abs=0.01)
    found = fit(policy, lambda x: x)
    assert found == pytest.approx((mean + scale * std**2, std), rel=0.02)


@pytest.mark.slow
def test_a_quadratic_reward_needs_the_lean_adjoint():
    """The optimum of -2 x^2 has the mean .2049; with the Jacobian of the trained network it is .28."""
    reward = lambda x: -2 * x.square()  # noqa: E731
    assert fit(made(40), reward)[0] == pytest.approx(0.2118, abs=0.012)
    assert fit(made(40), reward, full=True)[0] > 0.26


def test_the_score_is_the_error_of_the_targets_which_vanishes_at_them_and_has_a_gradient():
    policy = made(4)
    rollout = sampled(policy, lambda x: x, 3, rows=5)
    assert rollout.decisions.loss_mask.tolist() == [[True, True, True, False]] * 5  # the last step draws nothing
    [part] = rollout.steps.split(rollout.decisions.loss_mask, 99)
    score = policy.score(rollout, part, frozenset())["gradient_reward"]
    # mu = mu_ref: std^2 a^2 / 2
    std, growth = policy._std()[:3], rollout.decisions.fields["adjoint_growth"]
    gap = (rollout.steps.targets - rollout.steps.states).flatten(2)
    assert gap.shape == (5, 4, 1) and bool((growth >= 1).all())
    assert bool((score < 0).all()) and len(score) == 15 and float(std.min()) > 0
    (gradient,) = torch.autograd.grad(-score.sum(), policy.network.shift)  # type: ignore[arg-type]
    # A larger velocity leads to a smaller x, and the reward is x.
    assert bool((gradient[:3] > 0).all()) and gradient[3] == 0


def test_without_a_scale_targets_are_the_reference_and_a_growth_bounds_adjoints():
    policy = made(6, 1e-12)
    rollout = sampled(policy, lambda x: x, 3, rows=5)
    [part] = rollout.steps.split(rollout.decisions.loss_mask, 99)
    assert float(policy.score(rollout, part, frozenset())["gradient_reward"].abs().max().detach()) < 1e-9
    states = [torch.ones(2, 1)] * 3
    adjoints = lean_adjoints(states, lambda x, t: 3 * x, torch.tensor([[1.0], [-2.0]]), growth=4.0)[1]
    assert [one.flatten().tolist() for one in adjoints] == [[4.0, -8.0], [3.0, -6.0], [1.0, -2.0]]
