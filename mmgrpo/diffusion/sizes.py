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
    """ValueError if the kernel ``text`` injects noise of a std above ``MOST_NOISE``, or none, at a stochastic step of
    the grid."""
    drawn = torch.tensor([one if draws else 1.0 for one, draws in zip(std.tolist(), stochastic, strict=True)])
    if bool((drawn <= 0).any()):
        raise ValueError(
            f"sampling.kernel: {text} adds no noise at step {int((drawn <= 0).int().argmax()) + 1} of {grid.steps}, "
            "whose samples then have no density; set its noise level above 0, and do not train the last step, which "
            "ends without noise"
        )
    if bool((drawn <= MOST_NOISE).all()):
        return
    step = int(drawn.nan_to_num(nan=torch.inf).argmax())
    raise ValueError(
        f"sampling.kernel: {text} adds noise of std {float(drawn[step]):.4g} at step {step + 1} of {grid.steps} (level "
        f"{float(grid.levels[step]):.7g} to {float(grid.levels[step + 1]):.7g}), expected at most {MOST_NOISE:g}, "
        "since states have a size of about 1; lower the noise level of the kernel, take another kernel (cps, "
        "flow_ddim), another sampling.grid or more sampling.steps"
    )


class Sizes:
    """The RMS of the states that a walk along a grid passes, read once at its end, so that its steps do not wait."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.most = MOST_RMS if grid.process == "flow" else MOST_RMS_OF_DIFFUSION
        self.passed: list[tuple[str, int, Float[Tensor, " N"]]] = []

    def see(self, x: Float[Tensor, "N *latent"], by: str, step: int) -> None:
        """The states that ``by`` made in a step."""
        flat = x.detach().float().flatten(1)
        rms = torch.linalg.vector_norm(flat, dim=1) / flat.shape[1] ** 0.5  # in one pass, without copies
        self.passed.append((by, step, rms))

    def refuse(self) -> None:
        """``TooLarge`` of the first step after which the RMS of a state exceeds what the schedule allows.

        NaN passes, which is an error of its own where the sample is complete.
        """
        largest = torch.stack([rms.nan_to_num().max() for _, _, rms in self.passed]).tolist() if self.passed else []
        for (by, step, rms), size in zip(self.passed, largest, strict=True):
            if size > self.most:
                now, then = self.grid.levels[step : step + 2].tolist()
                raise TooLarge(
                    f"{by}: {int((rms > self.most).sum())} of {len(rms)} states have an RMS of up to {size:.4g} after "
                    f"step {step + 1} of {self.grid.steps} (level {now:.7g} to {then:.7g}), expected at most "
                    f"{self.most:g}, since noise and latents have about 1: the weights have diverged (lower optim.lr "
                    "and go back with --resume-from), or kernel, noise levels and network do not belong together "
                    "(sampling.kernel, sampling.grid, the checkpoint's scheduler)"
                )
