"""Grids, worked numbers and plans that the tests of diffusion share."""

from __future__ import annotations

import torch

from mmgrpo.diffusion.plan import Plan
from mmgrpo.diffusion.planners import planner
from mmgrpo.diffusion.schedules import Grid, flow, time_shift

FLOW_KERNELS = ["flow_sde", "flow_sde_wan(eta=0.7)", "dance", "cps", "cps(scaled=True)", "flow_ddim"]
FLOW_KERNELS += ["flow_ddim_damped", "edm_churn(gamma=0.1)"]
NOISE_FREE = [
    "flow_sde(a=0.0)",
    "dance(eta=0.0)",
    "cps(a=0.0)",
    "flow_ddim(eta=0.0)",
    "flow_ddim_damped(eta=0.0)",
    "edm_churn(gamma=0.0)",
]


def real(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flow_like(levels: torch.Tensor) -> Grid:
    return flow(levels.double())


def worked(output: float = 0.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Grid]:
    """x = 1, v = 0.5, sigma 0.8 to 0.6: x0 = 1 - 0.8 * 0.5 = 0.6, x1 = 1 + 0.2 * 0.5 = 1.1, dt = -0.2."""
    return real(1)[:, None], real(output)[:, None], torch.tensor([1]), flow_like(real(1, 0.8, 0.6, 0))


def even_grid(steps: int, shift: float = 1.0) -> Grid:
    return flow_like(time_shift(torch.linspace(1, 0, steps + 1, dtype=torch.float64), shift))


def fine_ddim_grid(steps: int) -> Grid:
    """A cosine process in fine double-precision steps; the network times do not matter here."""
    angle = torch.linspace(1.5, 0.02, steps + 1, dtype=torch.float64)
    levels = angle.cos().square()
    return Grid(levels, torch.arange(steps), "diffusion", float(levels[1]))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one(text: str, steps: int = 20, group_size: int = 16, round: int = 0, seed: int = 0) -> Plan:
    [plan] = planner(text)(steps, group_size, round, seeded(seed))
    return plan


def where(flags: tuple[bool, ...]) -> list[int]:
    return [step for step, flag in enumerate(flags) if flag]
