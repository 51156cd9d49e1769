"""States between the steps of a few-step trajectory, noised again: what TDM and TDM-R1 train at.

Step k of a deterministic solver leads from level s to s'. Its end x' is a sample of level s', which noise brings to a
level tau above (arXiv:2503.06674 and 2603.07700):

    x_tau = alpha x' + b e,  alpha = (1 - tau) / (1 - s'),  b = sqrt(tau^2 - (s' alpha)^2)
    v*    = -x' / (1 - s') + (e / b) (tau + s'^2 alpha / (1 - s'))      the velocity that made x_tau of x' and e

At s' = 0, the end of the last step, these are x_tau = (1 - tau) x0 + tau e and v* = e - x0. For s' = .5 and tau = .8:
alpha .4, b .77459667.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.diffusion.ode import Solver
from mmgrpo.diffusion.schedules import Grid, Sizes
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.types import Output, Request

QUERIES = 100
"""Noise levels among which those of renoised states are drawn. How the papers draw them was not found: here uniformly
among these."""

Latent = Float[Tensor, "N *latent"]


@dataclass(frozen=True)
class Boundaries:
    """Draws are of ends of steps, at noise levels of at least ``least_level``; clean estimates that are asked for with
    guidance have the scale ``guidance``."""

    least_level: float = 0.0
    guidance: float = 1.0


@dataclass(frozen=True)
class Trajectories:
    """The states of samples at every level of their grid, and the step of each draw of their groups."""

    states: Float[Tensor, "B points *latent"]
    step: Int[Tensor, "groups T"]
    """The step whose end is noised again."""


@torch.no_grad()
def sample_states(
    solver: Solver, network: nn.Module, request: Request, grid: Grid
) -> tuple[list[Output], Float[Tensor, "rows points *latent"], Any]:
    """Outputs of all rows of a request, their states at every level, and the conditioning of each row."""
    prompt = torch.arange(len(request.prompts)).repeat_interleave(request.group_size)
    conditioning = solver.model.encode(request.prompts).take(prompt)
    states, sizes = [solver.initial_noise(request, request.group_size)], Sizes(grid)
    for t in range(grid.steps):
        step = torch.full((len(states[0]),), t, device=solver.device)
        x = solver.step(states[-1], solver.predict(network, states[-1], step, conditioning, grid), step, grid)
        sizes.see(x, "the deterministic solver", t)
        states.append(x)
    sizes.refuse()
    outputs = solver.model.decode(refuse_nonfinite(states[-1], "the sampled latents"), conditioning)
    return list(outputs), torch.stack(states, 1), conditioning


def draw_steps(
    grid: Grid, queries: Grid, count: int, least: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """``count`` different steps of a grid, and for each a level of ``queries`` above its end and at least ``least``, as
    an index."""
    steps = torch.randperm(grid.steps, generator=generator)[:count]
    ends, levels = grid.levels[1:].cpu()[steps], queries.levels[:-1].cpu()
    allowed = ((levels > ends[:, None]) & (levels >= least)).sum(1).clamp_min(1)
    return steps, (torch.rand(count, generator=generator) * allowed).long()


def renoise(end: Latent, noise: Latent, low: Float[Tensor, " N"], level: Float[Tensor, " N"]) -> tuple[Latent, Latent]:
    """x_tau of ends of level ``low`` at the levels tau, and the velocity that a network is to predict there."""
    low, level = over(low, end), over(level, end)
    alpha = (1 - level) / (1 - low)
    spread = (level.square() - (low * alpha).square()).sqrt()
    velocity = -end / (1 - low) + noise / spread * (level + low.square() * alpha / (1 - low))
    return alpha * end + spread * noise, velocity


def clean_estimate(states: Float[Tensor, "N two *latent"], level: Tensor, low: Tensor) -> Latent:
    """The clean estimate x - s v by which a step of Euler led from the first state to the second."""
    start, end = states[:, 0], states[:, 1]
    return start + over(level / (level - low), start) * (end - start)


def over(values: Float[Tensor, " N"], latent: Latent) -> Tensor:
    """A number per entry, to be multiplied with latents."""
    return values.view(-1, *[1] * (latent.dim() - 1))
