"""The forward process: clean samples with noise, what a network is to predict of them, and how much that moves x0.

    process     x_t                                 level    network predicts    target        scale
    flow        (1 - t) x0 + t e                    t        v                   e - x0        t
    diffusion   sqrt(abar) x0 + sqrt(1 - abar) e    abar     epsilon             e             b / a
                                                             v                   a e - b x0    b
                                                             sample              x0            1

with a = sqrt(abar) and b = sqrt(1 - abar). The scale is that of the gap of a prediction in the clean estimate,
|x0_hat - x0| = scale |prediction - target| at a given x_t, so what is said of clean estimates holds for all.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.diffusion.schedules import Grid

Latent = Float[Tensor, "N *latent"]


def add_noise(clean: Latent, noise: Latent, level: Float[Tensor, " N"], grid: Grid) -> Latent:
    """x_t of clean samples at their levels."""
    share, rest = _over_latent(level, clean), _over_latent(1 - level, clean)
    if grid.process == "flow":
        return rest * clean + share * noise
    return share.sqrt() * clean + rest.sqrt() * noise


def target(clean: Latent, noise: Latent, level: Float[Tensor, " N"], prediction: str) -> Latent:
    """What a network that predicts ``flow``, ``epsilon``, ``v`` or ``sample`` would predict at x_t if it knew both."""
    if prediction == "v":
        abar = _over_latent(level, clean)
        return abar.sqrt() * noise - (1 - abar).sqrt() * clean
    return {"flow": noise - clean, "epsilon": noise, "sample": clean}[prediction]


def clean_scale(level: Float[Tensor, "*shape"], prediction: str) -> Float[Tensor, "*shape"]:
    """|x0_hat - x0| / |prediction - target| at each level."""
    if prediction == "flow":
        return level
    ways = {"epsilon": lambda: (1 / level - 1).sqrt(), "v": lambda: (1 - level).sqrt()}
    return ways[prediction]() if prediction in ways else torch.ones_like(level)


def _over_latent(values: Float[Tensor, " N"], latent: Latent) -> Tensor:
    return values.view(-1, *[1] * (latent.dim() - 1))
