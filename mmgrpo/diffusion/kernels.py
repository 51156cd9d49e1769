"""One reverse step of a flow or diffusion model: stochastic kernels and deterministic solvers.

A kernel is a pure function ``(x, output, step, grid) -> Transition``, where ``output`` is the
network's prediction for ``x``. Sampling and scoring call the same kernel, so the ratio is one
before the first update. All arithmetic is in fp32 or wider, whatever the network's precision.

    >>> import torch
    >>> from mmgrpo.diffusion.schedules import flow_grid
    >>> grid, step = flow_grid(10), torch.tensor([4])
    >>> x, velocity = torch.zeros(1, 2), torch.ones(1, 2)
    >>> transition = kernel("flow_sde(a=0.7)")(x, velocity, step, grid)
    >>> sample = transition.sample(torch.zeros(1, 2))
    >>> transition.log_prob(sample).shape
    torch.Size([1])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.config.ranges import UPPER_BOUND
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.diffusion.schedules import Grid
from mmgrpo.runtime.devices import put

KERNELS = table_of("kernel")


Latent: TypeAlias = Float[Tensor, "N *latent"]
"""Samples, network outputs and noise: any latent axes behind N."""

Level: TypeAlias = Float[Tensor, "N *ones"]
"""One number per entry, with axes of size one so that it broadcasts against ``Latent``."""

Step: TypeAlias = Int[Tensor, " N"]
"""The step of the grid that each entry is at."""


@dataclass(frozen=True)
class Transition:
    """The Gaussian N(mean, std^2) that one step draws from.

    ``std`` broadcasts against ``mean``; where it is 0 the step is deterministic and has no
    density. With ``scaled=False`` the log-likelihood is the negative squared distance (see ``cps``).
    """

    mean: Latent
    std: Level
    scaled: bool = True
    noisy: bool = False
    """``std`` is known to be above 0, so nobody reads it from a device to see."""

    @property
    def likelihood_std(self) -> Level:
        """The std of the Gaussian whose log-ratios ``log_prob`` gives: ``std``, or sqrt(1/2) if unscaled."""
        return self.std if self.scaled else torch.full_like(self.std, math.sqrt(0.5))

    def part(self, view: slice) -> Transition:
        """The Gaussian of some entries of the first latent axis."""
        return replace(self, mean=self.mean[:, view], std=self.std if self.std.shape[1] == 1 else self.std[:, view])

    def sample(self, noise: Latent) -> Latent:
        """``mean + std * noise``."""
        return self.mean + self.std * noise.to(self.mean.dtype)

    def log_prob(self, x: Latent) -> Float[Tensor, " N"]:
        """MEAN over latent dimensions of ``-(x - mean)^2 / (2 std^2) - ln std - ln(2 pi) / 2``.

        The gradient reaches the mean only: x is a fixed sample. Unscaled: ``-mean((x - mean)^2)``.
        Raises where std is 0 (a deterministic step has no density).
        """
        self.refuse_zero_std("log_prob")
        squared = (x.detach().to(self.mean.dtype) - self.mean).square()
        if not self.scaled:
            return -over_latent(squared)
        return over_latent(-squared / (2 * self.std.square()) - self.std.log() - 0.5 * math.log(2 * math.pi))

    def kl(self, other: Transition) -> Float[Tensor, " N"]:
        """KL(self || other), MEAN over latent dimensions: exact, of the true (always scaled) Gaussians.

        ``ln(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2``. Raises where either std is 0.
        """
        self.refuse_zero_std("kl")
        other.refuse_zero_std("kl")
        ratio = (self.std / other.std).square()
        gap = ((self.mean - other.mean) / other.std).square()
        return over_latent(0.5 * (ratio - 1 - ratio.log() + gap))

    def refuse_zero_std(self, operation: str) -> None:
        if not self.noisy and not bool((self.std > 0).all()):
            raise ValueError(
                f"{operation}: got a deterministic step (std 0), which has no density, expected std above 0; "
                "set the kernel's noise level above 0 and do not train the last step (to sigma 0)"
            )


Kernel: TypeAlias = Callable[[Tensor, Tensor, Tensor, Grid], Transition]
"""(x [N, ...], output [N, ...], step [N], grid) to the transition of each entry."""


@block(KERNELS)
def flow_sde(
    x: Latent, output: Latent, step: Step, grid: Grid, a: float = 0.7, factors: Sequence[float | int] = ()
) -> Transition:
    """Reverse SDE of a flow at noise level ``s_t = a sqrt(s / (1 - s~))``; a = 0 is Euler.

    ``factors``, one for each step of the grid, multiply a (DenseGRPO's calibrated noise, arXiv:2601.20218;
    ``mmgrpo.advantages.step_rewards.calibrate`` makes them).

    s~ = min(s, the grid's second level): in the first step it is the second level, so from s = 1 its std is a.
    Flow-GRPO (arXiv:2505.05470) substitutes at s = 1 only; grids that begin just below 1 (UniPC: 1 - 1e-6, DPM-Solver:
    .9997) have the pole of 1 / (1 - s) in their first step too.
    """
    now, _ = flow_levels(x, step, grid)
    level = a * (now / (1 - now.clamp(max=grid.cap))).sqrt()
    if factors:
        if len(factors) != grid.steps:
            raise ValueError(
                f"sampling.kernel: flow_sde: factors: got {len(factors)} numbers, expected one for each of the "
                f"{grid.steps} steps of the grid"
            )
        level = level * like(torch.tensor(factors, dtype=now.dtype, device=now.device)[step], x)
    return reverse_sde(x, output, step, grid, level)


@block(KERNELS)
def flow_sde_wan(x: Latent, output: Latent, step: Step, grid: Grid, eta: float = 1.0) -> Transition:
    """Reverse SDE of a flow at eta times the level of Flow-GRPO's released code for Wan, ``s_min + (s_max - s_min) s``.

    s_max is the grid's second level and s_min its last one. The paper has one level for all models, ``flow_sde``. It is
    the kernel of Flash-GRPO (arXiv:2605.15980) too, whose code has no eta; UniRL's has.
    """
    now, _ = flow_levels(x, step, grid)
    last = float(grid.levels[-1])
    return reverse_sde(x, output, step, grid, eta * (last + (grid.cap - last) * now))


@block(KERNELS)
def dance(x: Latent, output: Latent, step: Step, grid: Grid, eta: float = 0.3) -> Transition:
    """Reverse SDE of a flow at the constant noise level ``s_t = eta``; DanceGRPO, arXiv:2505.07818."""
    now, _ = flow_levels(x, step, grid)
    return reverse_sde(x, output, step, grid, torch.full_like(now, eta))


def reverse_sde(x: Latent, output: Latent, step: Step, grid: Grid, level: Level) -> Transition:
    """Euler-Maruyama step of the reverse SDE with diffusion coefficient ``level``.

    ``mean = x + v dt + level^2 / (2 s) * x1 * dt``, ``x1 = x + (1 - s) v``, ``std = level sqrt(-dt)``.
    """
    now, then = flow_levels(x, step, grid)
    x, velocity = x.to(now.dtype), output.to(now.dtype)
    dt = then - now
    noise = x + (1 - now) * velocity
    return Transition(x + velocity * dt + level.square() / (2 * now) * noise * dt, level * (-dt).sqrt())


@block(KERNELS)
def cps(x: Latent, output: Latent, step: Step, grid: Grid, a: float = 0.8, scaled: bool = False) -> Transition:
    """Coefficients-preserving sampling: after the step the total noise is exactly s' (a = 0 is Euler).

    ``std = s' sin(a pi / 2)``, ``mean = (1 - s') x0 + s' cos(a pi / 2) x1``; Flow-CPS, arXiv:2509.05952.
    Published likelihood: ``-mean((x' - mean)^2)``, without variance and normalizer, which is why it
    goes with a clip range near 1e-5; ``scaled=True`` gives the true Gaussian log-density instead.
    """
    now, then = flow_levels(x, step, grid)
    clean, noise = estimates(x, output, now)
    angle = a * math.pi / 2
    return Transition((1 - then) * clean + then * math.cos(angle) * noise, then * math.sin(angle), scaled)


@block(KERNELS)
def flow_ddim(x: Latent, output: Latent, step: Step, grid: Grid, eta: float = 0.7) -> Transition:
    """DDIM with noise eta for flows; the total noise after the step is exactly s'.

    ``std = eta s' sqrt(1 - s'^2 (1 - s)^2 / (s^2 (1 - s')^2))``,
    ``mean = (1 - s') x0 + sqrt(s'^2 - std^2) x1``; the solver of DiffusionNFT, arXiv:2509.16117.
    """
    now, then = flow_levels(x, step, grid)
    clean, noise = estimates(x, output, now)
    correlation = then * (1 - now) / (now * (1 - then))  # of the noises at s and s', if eta = 1
    std = eta * then * (1 - correlation.square()).sqrt()
    return Transition((1 - then) * clean + (then.square() - std.square()).sqrt() * noise, std)


@block(KERNELS)
def flow_ddim_damped(x: Latent, output: Latent, step: Step, grid: Grid, eta: float = 0.7) -> Transition:
    """``flow_ddim`` with the noise of Stepwise-Flow-GRPO (arXiv:2603.28718): ``std = eta s' sqrt(1 - s)``.

    No noise leaves s = 1: plans have to leave out the first step (``every_step(skip=1)``). The paper's eta was not
    found; 0.7 is that of ``flow_ddim``.
    """
    now, then = flow_levels(x, step, grid)
    clean, noise = estimates(x, output, now)
    std = eta * then * (1 - now).sqrt()
    return Transition((1 - then) * clean + (then.square() - std.square()).sqrt() * noise, std)


@block(KERNELS)
def edm_churn(x: Latent, output: Latent, step: Step, grid: Grid, gamma: float = 0.0025) -> Transition:
    """Step past s' to ``r = s' / (1 + gamma - gamma s')``, then add noise up to s' and rescale.

    ``mean = (x + (r - s) v) / (1 + gamma r)``, ``std = r sqrt((1 + gamma)^2 - 1) / (1 + gamma r)``;
    EDM churn for flows, arXiv:2603.12893.
    """
    now, then = flow_levels(x, step, grid)
    x, velocity = x.to(now.dtype), output.to(now.dtype)
    past = then / (1 + gamma - gamma * then)
    scale = 1 / (1 + gamma * past)
    return Transition((x + (past - now) * velocity) * scale, past * math.sqrt((1 + gamma) ** 2 - 1) * scale)


@block(KERNELS)
def drawn_velocity(x: Latent, output: Float[Tensor, "N *outputs"], step: Step, grid: Grid) -> Transition:
    """Euler's step along a velocity that the network's own Gaussian draws: ``v ~ N(mu, sigma^2)``.

    ``mean = x + mu (s' - s)``, ``std = sigma (s - s')``, an own sigma for every entry; the output is mu and, stacked
    behind it on the first latent axis, ln sigma. The last step has a density too. F5R-TTS, arXiv:2504.02407.
    """
    now, then = flow_levels(x, step, grid)
    if output.shape[1] != 2 * x.shape[1]:
        raise ValueError(
            f"drawn_velocity: got {output.shape[1]} outputs for {x.shape[1]} latent channels, expected twice as many: "
            "a network that predicts a mean and ln sigma; take the kernel flow_sde for one that predicts a velocity"
        )
    mean, log_sigma = output.to(now.dtype).chunk(2, 1)
    return Transition(x.to(now.dtype) + mean * (then - now), log_sigma.exp() * (now - then))


@block(KERNELS)
def ddim(
    x: Latent,
    output: Latent,
    step: Step,
    grid: Grid,
    prediction: str,
    eta: float = 1.0,
    clip: Annotated[float, UPPER_BOUND] = math.inf,
) -> Transition:
    """DDIM with noise eta for networks that predict ``epsilon``, ``v`` or the clean ``sample``; eta = 0 is the ODE.

    ``var = (1 - abar') / (1 - abar) (1 - abar / abar')``, ``std = eta sqrt(var)``,
    ``mean = sqrt(abar') x0 + sqrt(1 - abar' - std^2) e``; ``clip`` bounds x0 to [-clip, clip] and
    leaves e as it was. DDIM, arXiv:2010.02502, eq. 12 and 16; as a policy: DDPO, arXiv:2305.13301.
    """
    now, then = at(x, step, grid, "diffusion")
    clean, noise = diffusion_estimates(x, output, now, prediction)
    std = eta * ((1 - then) / (1 - now) * (1 - now / then)).sqrt()
    direction = (1 - then - std.square()).clamp(min=0).sqrt()
    return Transition(then.sqrt() * clean.clamp(-clip, clip) + direction * noise, std)


@block(KERNELS)
def consistency(x: Latent, output: Latent, step: Step, grid: Grid, prediction: str) -> Transition:
    """A step of a consistency model of a diffusion process: the clean estimate with fresh noise.

    ``mean = sqrt(abar') x0``, ``std = sqrt(1 - abar')``; multistep sampling of LCM (arXiv:2310.04378), whose c_skip is
    below 1e-7 from timestep 160 on and left out, of TCD with gamma 1, and of models distilled to few steps that way
    (SDXL Turbo). Of flows it is ``cps(a=1.0, scaled=True)``.
    """
    now, then = at(x, step, grid, "diffusion")
    clean, _ = diffusion_estimates(x, output, now, prediction)
    return Transition(then.sqrt() * clean, (1 - then).sqrt())


def diffusion_estimates(x: Latent, output: Latent, now: Level, prediction: str) -> tuple[Latent, Latent]:
    """Clean sample and noise that a prediction of a diffusion process implies at abar."""
    x, output = x.to(now.dtype), output.to(now.dtype)
    signal, spread = now.sqrt(), (1 - now).sqrt()
    if prediction == "epsilon":
        return (x - spread * output) / signal, output
    if prediction == "v":
        return signal * x - spread * output, signal * output + spread * x
    if prediction == "sample":
        return output, (x - signal * output) / spread
    raise ValueError(f"ddim: got a network that predicts '{prediction}', expected epsilon, v or sample")


def clean_estimate(x: Latent, output: Latent, step: Step, grid: Grid, prediction: str) -> Latent:
    """The clean sample that a network's output at x implies: x - s v of a flow."""
    now, _ = at(x, step, grid, grid.process)
    return (
        estimates(x, output, now)[0] if grid.process == "flow" else diffusion_estimates(x, output, now, prediction)[0]
    )


def output_towards(clean: Latent, x: Latent, step: Step, grid: Grid, prediction: str) -> Latent:
    """The output of a network at x whose clean estimate is ``clean``: (x - clean) / s of a flow."""
    now, _ = at(x, step, grid, grid.process)
    if grid.process == "flow":
        if prediction != "flow":
            raise ValueError(f"got a network that predicts '{prediction}', expected the velocity of a flow")
        return (x - clean) / now
    signal, spread = now.sqrt(), (1 - now).sqrt()
    noise = (x - signal * clean) / spread
    return {"epsilon": noise, "v": signal * noise - spread * clean, "sample": clean.to(noise.dtype)}[prediction]


DIFFUSION_KERNELS = ("ddim", "consistency")
"""Kernels of a diffusion process; all others are a flow's."""


def kernel(text: str, prediction: str = "flow") -> Kernel:
    """The kernel that ``name(parameter=value)`` names, with its parameters bound, for a network of this prediction."""
    bound = bind(text, KERNELS, "kernel")
    return lambda x, output, step, grid: bound(
        {"x": x, "output": output, "step": step, "grid": grid, "prediction": prediction}
    )


def noise_table(kernel: Kernel, grid: Grid, outputs: int = 1) -> Float[Tensor, " steps"]:
    """The std of the noise that the kernel injects at each step of a grid; of one that the network predicts (2
    ``outputs`` a latent entry), at sigma = 1."""
    # No kernel's std depends on the state, so any state serves.
    zeros = torch.zeros(grid.steps, outputs, device=grid.levels.device)
    step = torch.arange(grid.steps, device=grid.levels.device)
    return kernel(zeros[:, :1], zeros, step, grid).std.flatten()


def level_table(kernel: Kernel, grid: Grid, outputs: int = 1) -> Float[Tensor, " steps"]:
    """The noise level s_t of each step: its std without the factor sqrt(dt)."""
    dt = grid.dt(torch.arange(grid.steps, device=grid.levels.device))
    return noise_table(kernel, grid, outputs) / dt.sqrt()


def rectifier_table(kernel: Kernel, grid: Grid) -> Float[Tensor, " steps"]:
    """How far the network's output moves each step's mean, in stds, inverted: ``std / |d mean / d output|``; 0 where
    there is no noise. Of a reverse SDE of level c: ``1 / (sqrt(dt) / c + c sqrt(dt) (1 - s) / (2 s))``.

    The gradient of a log-prob is inverse to it (Flash-GRPO, arXiv:2605.15980).
    """
    zeros, step, host = torch.zeros(grid.steps, 1, dtype=torch.float64), torch.arange(grid.steps), grid.to("cpu")
    small = 1e-3  # the mean is linear in the output, unless the clean estimate is clipped
    without, moved = (kernel(zeros, output, step, host) for output in (zeros, zeros + small))
    return put((small * without.std / (moved.mean - without.mean).abs()).flatten().float(), grid.levels.device)


def sibling_noise(shared: Latent, own: Latent, scale: float) -> Latent:
    """Noise of siblings at a split: ``(shared + s own) / sqrt(1 + s^2)``; s = inf leaves them independent.

    Each is N(0, I); the correlation of two siblings is 1 / (1 + s^2). BranchGRPO, arXiv:2509.06040.
    """
    return own if math.isinf(scale) else (shared + scale * own) / math.sqrt(1 + scale**2)


@dataclass(frozen=True)
class History:
    """The state of a multistep solver: the clean estimate of the previous step, and its level."""

    clean: Latent
    level: Float[Tensor, " N"]


def no_history(x: Latent) -> History:
    """The state before the first step. Its level 1 marks it as absent, so the first step is Euler's."""
    return History(torch.zeros_like(x), torch.ones_like(x.flatten(1)[:, 0]))


def estimate_of(x: Latent, output: Latent, step: Step, grid: Grid) -> History:
    """The clean estimate at a step that another kernel takes, for a multistep solver that continues from it."""
    now, _ = flow_levels(x, step, grid)
    return History(estimates(x, output, now)[0], now.flatten())


def euler(x: Latent, output: Latent, step: Step, grid: Grid) -> Latent:
    """``x + v (s' - s)``: one step of the flow's ODE. A step to s' = 0 gives the clean estimate."""
    now, then = flow_levels(x, step, grid)
    return x.to(now.dtype) + output.to(now.dtype) * (then - now)


def dpmpp_2m(x: Latent, output: Latent, step: Step, grid: Grid, history: History) -> tuple[Latent, History]:
    """Second-order multistep DPM-Solver++ for flows; a step without history and the step to s' = 0 are Euler's.

    With l(s) = ln((1 - s) / s), h = l(s') - l(s): ``x' = euler - (1 - s') (exp(-h) - 1) D / 2``,
    ``D = (x0 - x0_before) h / h_before``. DPM-Solver++, arXiv:2211.01095, algorithm 2.
    """
    now, then = flow_levels(x, step, grid)
    clean, _ = estimates(x, output, now)
    before = like(history.level.to(now.dtype), now)
    h, h_before = log_snr(then) - log_snr(now), log_snr(now) - log_snr(before)
    slope = (clean - history.clean.to(clean.dtype)) * h / h_before
    correction = -0.5 * (1 - then) * torch.expm1(-h) * slope
    first_order = (then <= 0) | (before >= 1)  # where a log-SNR is infinite
    after = euler(x, output, step, grid) + torch.where(first_order, torch.zeros_like(correction), correction)
    return after, History(clean, now.flatten())


def over_latent(values: Latent) -> Float[Tensor, " N"]:
    """Mean over the latent dimensions of each entry."""
    return values.flatten(1).mean(1)


def log_snr(sigma: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """ln((1 - s) / s), half the log-SNR of a flow at level s."""
    return ((1 - sigma) / sigma).log()


def like(values: Float[Tensor, " N"], x: Latent) -> Level:
    """Append axes of size one until it broadcasts against x."""
    return values.reshape(-1, *[1] * (x.ndim - 1))


def at(x: Latent, step: Step, grid: Grid, process: str) -> tuple[Level, Level]:
    """Levels before and after each step, shaped to broadcast against x, in fp32 or wider."""
    if grid.process != process:
        raise ValueError(
            f"got a noise grid of a {grid.process} process, this kernel or solver expected one of a {process} "
            "process; flows take the kernels flow_sde, flow_sde_wan, dance, cps, flow_ddim, flow_ddim_damped and "
            "edm_churn and the solvers euler and dpmpp_2m, diffusion models take ddim and consistency"
        )
    levels = grid.levels.to(torch.promote_types(x.dtype, grid.levels.dtype))
    return like(levels[step], x), like(levels[step + 1], x)


def flow_levels(x: Latent, step: Step, grid: Grid) -> tuple[Level, Level]:
    return at(x, step, grid, "flow")


def estimates(x: Latent, output: Latent, now: Level) -> tuple[Latent, Latent]:
    """Clean sample ``x - s v`` and noise ``x + (1 - s) v`` that a velocity implies."""
    x, velocity = x.to(now.dtype), output.to(now.dtype)
    return x - now * velocity, x + (1 - now) * velocity
