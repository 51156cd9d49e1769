"""The sizes that noise and states may have: what a schedule allows, and errors where a sampler leaves it.

On the way from noise to data x_s = (1 - s) x0 + s e has an RMS of about 1: noise has exactly 1, latents of published
autoencoders are scaled to 1, and pixels lie within [-1, 1]. A kernel whose noise is many times that, or a network whose
predictions are, makes outputs of which a reward learns nothing, although every number is finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.diffusion.schedules import Grid
from mmgrpo.runtime.finite import TooLarge

MOST_NOISE = 2.0
"""The largest std that a step may inject; Flow-GRPO's first step has a = 0.7, the largest a of its kind is 1.2."""

MOST_RMS = 10.0
"""The largest RMS of a state of a flow, ten times that of noise and data."""

MOST_RMS_OF_DIFFUSION = 150.0
"""The same of a diffusion process: with a network that predicts no noise x grows by 1 / sqrt(abar), 14.6 from Stable
Diffusion's first level to its last one, and this is ten times that."""


def refuse_noise(text: str, std: Float[Tensor, " T"], stochastic: Sequence[bool], grid: Grid) -> None:
    """ValueError if the kernel ``text`` injects noise of a std above ``MOST_NOISE`` at a stochastic step of the
    grid."""
    drawn = torch.where(torch.tensor(stochastic, device=std.device), std, torch.zeros_like(std))
    if bool((drawn <= MOST_NOISE).all()):
        return
    step = int(drawn.nan_to_num(nan=torch.inf).argmax())
    raise ValueError(
        f"sampling.kernel: {text} adds noise of std {float(drawn[step]):.4g} at step {step + 1} of {grid.steps} (level "
        f"{float(grid.levels[step]):.7g} to {float(grid.levels[step + 1]):.7g}), expected at most {MOST_NOISE:g}, "
        "since states have a size of about 1; lower the noise level of the kernel, take another kernel (cps, "
        "flow_ddim), another sampling.grid or more sampling.steps"
    )


def refuse_rms(x: Float[Tensor, "N *latent"], by: str, step: int, grid: Grid) -> None:
    """``TooLarge`` if the RMS of one of the states that ``by`` made in this step exceeds what the schedule allows.

    NaN passes, which is an error of its own where the sample is complete.
    """
    most = MOST_RMS if grid.process == "flow" else MOST_RMS_OF_DIFFUSION
    flat = x.detach().float().flatten(1)
    rms = torch.linalg.vector_norm(flat, dim=1) / flat.shape[1] ** 0.5  # in one pass, without copies
    if not bool((rms > most).any()):
        return
    largest = float(rms.nan_to_num().max())
    raise TooLarge(
        f"{by}: {int((rms > most).sum())} of {len(rms)} states have an RMS of up to {largest:.4g} "
        f"after step {step + 1} of {grid.steps} (level {float(grid.levels[step]):.7g} to "
        f"{float(grid.levels[step + 1]):.7g}), expected at most {most:g}, since noise and latents have about 1: the "
        "weights have diverged (lower optim.lr and go back with --resume-from), or kernel, noise levels and network do "
        "not belong together (sampling.kernel, sampling.grid, the checkpoint's scheduler)"
    )
