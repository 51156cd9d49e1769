"""Noise levels of a reverse process: computed once, stored in fp32, and indexed by step.

Rectified flows (SD3, FLUX, Wan, ...): ``x_s = (1 - s) x0 + s e`` with level s from 1 (noise) to 0
(data); the network predicts ``v = e - x0``. Denoising diffusion (SD1.x, SDXL):
``x_t = sqrt(abar_t) x0 + sqrt(1 - abar_t) e`` with level ``abar``, which grows towards 1.

On the way from noise to data x_s has an RMS of about 1: noise has exactly 1, latents of published autoencoders are
scaled to 1, and pixels lie within [-1, 1]. A kernel whose noise is many times that, or a network whose predictions are,
makes outputs of which a reward learns nothing, although every number is finite: both are errors (``refuse_noise``,
``Sizes``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from mmgrpo.config.ranges import COUNT, POSITIVE, within
from mmgrpo.config.registry import block, table_of
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import TooLarge

GRIDS = table_of("grid")
"""Grids of flows by name, as alternatives to the checkpoint's own."""


@dataclass(frozen=True)
class Grid:
    """The noise levels of T steps; step i leads from ``levels[i]`` to ``levels[i + 1]``."""

    levels: Float[Tensor, " points"]
    """T + 1 levels, the final one included: sigma for flows, cumulative alpha for diffusion."""
    times: Real[Tensor, " T"]
    """T inputs of the network: sigma itself for flows, integer timesteps for diffusion."""
    process: Literal["flow", "diffusion"]
    cap: float
    """The second level of the whole grid, which bounds sigma in denominators 1 - sigma."""
    shift: float = 1.0
    """The time shift of the levels, which a re-spaced tail uses too."""

    @property
    def steps(self) -> int:
        return self.times.shape[0]

    def network_time(self, step: Int[Tensor, " N"]) -> Real[Tensor, " N"]:
        """The network's time input at each step."""
        return self.times[step]

    def dt(self, step: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Length of each step, positive: sigma - sigma' for flows, 1 for diffusion."""
        if self.process == "flow":
            return self.levels[step] - self.levels[step + 1]
        return torch.ones_like(self.levels[step])

    def pick(self, points: Sequence[int]) -> Grid:
        """The grid that visits only these points (indices into ``levels``, ascending)."""
        index = put(torch.tensor(points), self.levels.device)
        return replace(self, levels=self.levels[index], times=self.times[index[:-1]])

    def with_tail(self, start: int, steps: int) -> Grid:
        """Go from point ``start`` to sigma 0 in ``steps`` steps, evenly spaced before the shift.

        The levels up to and including ``start`` stay as they are and the last level is exactly 0,
        for any length (MixGRPO-Flash, arXiv:2507.21802).
        """
        if self.process != "flow":
            raise ValueError(
                f"tail_steps: got a grid of a {self.process} process, expected a flow; use tail_steps=0 (tail_ratio=1)"
            )
        head = inverse_time_shift(self.levels[start].double().cpu(), self.shift)
        even = head * torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        tail = time_shift(even, self.shift)[1:].to(self.levels)
        levels = torch.cat([self.levels[: start + 1], tail])
        return replace(self, levels=levels, times=levels[:-1])

    def to(self, device: torch.device | str) -> Grid:
        return replace(self, levels=self.levels.to(device), times=self.times.to(device))


def time_shift(sigma: Float[Tensor, "*shape"], shift: float) -> Float[Tensor, "*shape"]:
    """Time shift ``s * sigma / (1 + (s - 1) * sigma)``; exact at 0 and 1 (SD3, arXiv:2403.03206, eq. 23)."""
    return shift / (shift + (1 / sigma - 1))


def inverse_time_shift(sigma: Float[Tensor, "*shape"], shift: float) -> Float[Tensor, "*shape"]:
    """The inverse of ``time_shift``."""
    return time_shift(sigma, 1 / shift)


def flow(levels: Float[Tensor, " points"], shift: float = 1.0) -> Grid:
    """A grid of flow levels, strictly decreasing from at most 1 to 0."""
    falling = bool((levels[1:] < levels[:-1]).all())
    if levels.shape[0] < 2 or not falling or levels[0] > 1 or levels[-1] != 0:
        raise ValueError(
            f"flow levels: got {levels.tolist()}, expected at least two that decrease strictly from at most 1 to 0"
        )
    return Grid(levels, levels[:-1], "flow", float(levels[1]), shift)


@block(GRIDS, "shifted_linspace")
def flow_grid(steps: int, shift: Annotated[float, POSITIVE] = 3.0) -> Grid:
    """``linspace(1, 0, T + 1)``, then the time shift.

    It differs from the grids of diffusers' pipelines, whose last level above 0 is smaller: e.g. .0089, here .25, with
    shift 3 and 10 steps. Shift 3 is used for SD3, FLUX and Wan images, 5 for HunyuanVideo, 7 for SkyReels (DanceGRPO,
    arXiv:2505.07818; MixGRPO, arXiv:2507.21802).
    """
    at_least_one(steps)
    even = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return flow(time_shift(even, shift).float(), shift)


def flux_shift(image_tokens: int) -> float:
    """FLUX's dynamic shift ``exp(mu)``; mu is linear in the image tokens, 0.5 at 256 and 1.15 at 4096."""
    return math.exp(0.5 + (image_tokens - 256) * (1.15 - 0.5) / (4096 - 256))


@block(GRIDS, "flux")
def flux_grid(steps: int, *, image_tokens: Annotated[int, COUNT]) -> Grid:
    """``linspace(1, 1/T, T)`` with FLUX's dynamic shift, then 0: the grid of diffusers' FLUX pipeline."""
    at_least_one(steps)
    shift = flux_shift(image_tokens)
    even = torch.linspace(1, 1 / steps, steps, dtype=torch.float64)
    return flow(torch.cat([time_shift(even, shift), torch.zeros(1)]).float(), shift)


@block(GRIDS, "sway")
def sway_grid(steps: int, s: Annotated[float, within("[-1, 1.75]")] = -1.0) -> Grid:
    """Sway sampling: ``1 - sigma = t + s (cos(pi t / 2) - 1 + t)`` for T + 1 even t from 0 (noise) to 1 (data).

    s < 0 takes small steps near the noise, s = 0 even ones, s > 0 small ones near the data. F5-TTS, arXiv:2410.06885,
    section 3.3, whose models sample with s = -1: ``sigma = cos(pi t / 2)``.
    """
    at_least_one(steps)
    return _sway(torch.linspace(0, 1, steps + 1, dtype=torch.float64), s)


EPSS: Mapping[int, tuple[int, ...]] = {
    5: (0, 2, 4, 8, 16, 32),
    6: (0, 2, 4, 6, 8, 16, 32),
    7: (0, 2, 4, 6, 8, 16, 24, 32),
    10: (0, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32),
    12: (0, 2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32),
    16: (*range(9), 10, 12, 14, 16, 20, 24, 28, 32),
}
"""Times of F5-TTS's empirically pruned steps, in 1/32, by their number (SWivid/F5-TTS, get_epss_timesteps)."""


def pruned_sway_grid(steps: int, s: float = -1.0) -> Grid:
    """``sway_grid`` at the times with which F5-TTS samples in 5, 6, 7, 10, 12 or 16 steps (``EPSS``), which are those
    of 32 steps with some left out, more of them near the data; even times for any other number."""
    at_least_one(steps)
    if steps not in EPSS:
        return sway_grid(steps, s)
    return _sway(torch.tensor(EPSS[steps], dtype=torch.float64) / 32, s)


def _sway(t: Float[Tensor, " points"], s: float) -> Grid:
    levels = 1 - t - s * ((math.pi / 2 * t).cos() - 1 + t)
    return flow(torch.cat([levels[:-1], torch.zeros(1)]).float())


def ddim_grid(
    alphas_cumprod: Float[Tensor, " train"],
    steps: int,
    spacing: str = "leading",
    offset: int = 1,
    clean_end: bool = False,
) -> Grid:
    """Integer timesteps of DDIM and their cumulative alphas (arXiv:2010.02502).

    ``leading`` with ``offset=1`` is Stable Diffusion's (981, 961, ..., 1 for 50 of 1000 steps);
    ``trailing`` starts at the last timestep; ``linspace`` reaches from the last to the first. A step
    leads to the level of the next timestep, also where rounding makes their distances uneven; diffusers
    then steps by ``train // steps`` to a level between timesteps. The final level is the first entry of
    ``alphas_cumprod`` as in Stable Diffusion and DDPO, or exactly 1 with ``clean_end``.
    """
    at_least_one(steps)
    train = alphas_cumprod.shape[0]
    if steps > train:
        raise ValueError(f"got steps={steps}, expected at most the {train} timesteps that the network was trained with")
    if spacing == "leading":
        times = torch.arange(steps - 1, -1, -1) * (train // steps) + offset
    elif spacing == "trailing":
        times = torch.arange(train, 0, -train / steps, dtype=torch.float64)[:steps].round().long() - 1
    elif spacing == "linspace":
        times = torch.linspace(train - 1, 0, steps, dtype=torch.float64).round().long()
    else:
        raise ValueError(f"ddim_grid: got spacing '{spacing}', expected 'leading', 'trailing' or 'linspace'")
    return diffusion_grid(alphas_cumprod, times.clamp(0, train - 1), clean_end)


def diffusion_grid(alphas_cumprod: Float[Tensor, " train"], times: Int[Tensor, " T"], clean_end: bool) -> Grid:
    """Falling integer timesteps and their cumulative alphas; the final level is the first of all, or exactly 1."""
    final = torch.ones(1) if clean_end else alphas_cumprod[:1]
    levels = torch.cat([alphas_cumprod.cpu()[times], final.to("cpu", alphas_cumprod.dtype)]).float()
    return Grid(levels, times, "diffusion", float(levels[1]))


def variance_exploding_grid(sigmas: Float[Tensor, " points"]) -> Grid:
    """The process x = x0 + sigma e of EDM (arXiv:2206.00364) as that of ``ddim``; the levels ``sigmas`` end at 0.

    Divided by sqrt(1 + sigma^2), which is how such a scheduler scales the network's input, x is a sample at
    abar = 1 / (1 + sigma^2); a network of sigma_data 1 whose c_out is -sigma / sqrt(1 + sigma^2) predicts v. Its time
    is 2 / pi atan(sigma), the angle between data and noise (Stable Audio Open, arXiv:2407.14358). The first-order step
    of SDE-DPM-Solver++ is ``ddim(eta=1)``, and Euler's step of the ODE ``ddim(eta=0)``.
    """
    if sigmas.shape[0] < 2 or not bool((sigmas[1:] < sigmas[:-1]).all()) or sigmas[-1] != 0:
        raise ValueError(f"sigmas: got {sigmas.tolist()}, expected at least two that decrease strictly to 0")
    levels = (1 / (1 + sigmas.double().square())).float()
    return Grid(levels, sigmas[:-1].float().atan() * (2 / math.pi), "diffusion", float(levels[1]))


def exponential_sigmas(steps: int, lowest: float, highest: float) -> Float[Tensor, " points"]:
    """``steps`` levels in geometric progression from ``highest`` to ``lowest``, then 0, as diffusers computes them."""
    at_least_one(steps)
    rising = torch.linspace(math.log(lowest), math.log(highest), steps).exp()
    return torch.cat([rising.flip(0), torch.zeros(1)])


def at_least_one(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"got steps={steps}, expected at least 1")


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
    drawn = torch.tensor([value if draws else 1.0 for value, draws in zip(std.tolist(), stochastic, strict=True)])
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
    """The RMS of the states that a walk along a grid passes, read once at its end, so its steps do not wait."""

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
