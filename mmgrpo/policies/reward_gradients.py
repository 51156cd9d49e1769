"""A policy that draws with gradient: the reward of a sample is differentiated through the last steps that made it.

The rollout denoises without gradient and stores one state of every sample; scoring goes on from there with gradient to
pixels, and rewards that have a differentiable form (``RewardEntry.gradient``) score them. A sample is one decision,
whose score ``gradient_reward`` the objective of the same name maximizes. There are no ratios and no advantages, and a
prompt needs one sample only. Where there is guidance, both branches have a gradient: one alone has the cosine .46 with
it (guidance 4.5, one step).

Which steps have a gradient is a path (``sampling.gradient``):

    adjoint every step, by targets of its mean: Adjoint Matching (``mmgrpo.policies.adjoint_matching``)
    ascent  the clean estimate at a late step, towards one that the reward's gradient improves: DiffusionOPSD
            (arXiv:2608.24646)
    consistency  every step of a consistency model, and the divergence of each from the reference's: ROCM
            (arXiv:2503.06171)
    draft   the last K steps of the sampler: DRaFT-K and DRaFT-LV (arXiv:2309.17400), AlignProp (arXiv:2310.03739)
    refl    the clean estimate at a late step, drawn for every sample: ReFL (arXiv:2304.05977)
    srpo    the sample with known noise, one step, and what that leaves after the noise is taken away again; the reward
            is relative, of two descriptions: SRPO (arXiv:2509.06942)

Such rewards are exploited faster than by policy gradients: evaluate others beside them, with weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmgrpo.config.ranges import ANY_TEXT, COUNT_OR_ZERO, FRACTION, POSITIVE, POSITIVE_FRACTION, UPPER_BOUND, one_of
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.diffusion.kernels import Transition, clean_estimate, kernel, like
from mmgrpo.diffusion.noising import add_noise
from mmgrpo.diffusion.ode import DenoisingModel, Solver
from mmgrpo.diffusion.schedules import Grid, Sizes
from mmgrpo.files import share
from mmgrpo.policies.flow_matching import Draws, draws_of
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.runtime.networks import REFERENCE_NETWORK, Networks
from mmgrpo.types import OWN, Decisions, Output, Prompt, Request, Rollout, Scores

PATHS = table_of("gradient")
SMALL = 1e-9
SMALLEST_STEP = 0.05
"""Least noise level from which a last step has a gradient that is worth a reward model's: from .0089, the last level of
SD3's own grid, it has 1/26 of that from .25."""


@dataclass(frozen=True)
class Walk:
    """What a path may do from the stored states of some rows on."""

    state: Float[Tensor, "N *latent"]
    step: Int[Tensor, " N"]
    """The first step with gradient."""
    noise: Float[Tensor, "N draws *latent"]
    place: Float[Tensor, " N"]
    """Uniform in [0, 1), of each sample."""
    grid: Grid
    move: Callable[[Tensor, Tensor], Tensor]
    """One step of the deterministic solver from states at steps."""
    transitions: Callable[[Tensor, int, bool], tuple[Transition, Transition | None]]
    """Of the path's kernel, from states at a step: that of the network and, where asked, that of the reference."""
    clean: Callable[[Tensor, Tensor], Tensor]
    """The clean estimate of states at steps."""
    old: Callable[[Tensor, Tensor], Tensor]
    """Those of the network named old, without gradient; of the trained one where there is no other."""
    velocity: Callable[[Tensor, Tensor], Tensor]
    """The velocity of states at noise levels."""
    reward: Callable[[Tensor, str], Tensor]
    """The reward of latents, for their prompts behind some words."""


@runtime_checkable
class GradientPath(Protocol):
    """Where the gradient of a reward goes."""

    kernels: ClassVar[Mapping[str, str]]
    """By process, the kernel that samples are drawn by, with the noise of each step; none: the deterministic solver."""

    provides: ClassVar[frozenset[str]]
    """The scores that it can give."""

    def noises(self, steps: int) -> int:
        """Noises of each sample that it needs."""
        ...

    def evaluations(self, steps: int) -> int:
        """Network evaluations with gradient of each sample, at most."""
        ...

    def begin(self, grid: Grid, place: Float[Tensor, " N"], shared: float) -> Int[Tensor, " N"]:
        """The first step with gradient of every sample, whose state is stored; the number of steps for the sample
        itself. ``shared`` is uniform in [0, 1), and equal for all of a round. ValueError for a grid that has none."""
        ...

    def scores(self, walk: Walk, names: Collection[str]) -> Scores:
        """``gradient_reward``, the reward of each sample with gradient, and others of ``provides`` that are asked."""
        ...


class RewardPath:
    """What paths have in common that go along the deterministic solver and give rewards alone."""

    kernels: ClassVar[Mapping[str, str]] = {}
    provides: ClassVar[frozenset[str]] = frozenset({"gradient_reward"})

    def rewards(self, walk: Walk) -> Float[Tensor, " N"]:
        """The reward of each sample, with gradient."""
        raise NotImplementedError

    def scores(self, walk: Walk, names: Collection[str]) -> Scores:
        return {"gradient_reward": self.rewards(walk)}


@dataclass(frozen=True)
class Draft(RewardPath):
    """The last steps of the sampler (``draft``)."""

    last: int
    least: int
    draws: int
    checkpointing: bool

    def noises(self, steps: int) -> int:
        return self.draws

    def evaluations(self, steps: int) -> int:
        return (self.last or steps) + self.draws

    def begin(self, grid: Grid, place: Tensor, shared: float) -> Tensor:
        last = self.last or grid.steps
        least = self.least or last
        if not least <= last <= grid.steps:
            raise ValueError(
                f"sampling.gradient: draft: got last {self.last} and least {self.least}, expected least <= last <= "
                f"{grid.steps}, the number of steps"
            )
        level = float(grid.levels[grid.steps - 1])
        if least == 1 and grid.process == "flow" and level < SMALLEST_STEP:
            raise ValueError(
                f"sampling.gradient: draft: got last {self.last} on a grid whose last step begins at the noise level "
                f"{level:.4f}, expected at least {SMALLEST_STEP}, since one such step has next to no gradient; set "
                "sampling.grid=shifted_linspace(shift=3.0), or last=2"
            )
        steps = least + int(shared * (last - least + 1))
        return torch.full((len(place),), grid.steps - steps)

    def rewards(self, walk: Walk) -> Tensor:
        steps, x = walk.grid.steps, walk.state
        first = int(walk.step[0])
        for t in range(first, steps):
            at = torch.full((len(x),), t, device=x.device)
            x = checkpoint(walk.move, x, at, use_reentrant=False) if self.checkpointing else walk.move(x, at)
        total = walk.reward(x, "")
        at = torch.full((len(x),), steps - 1, device=x.device)
        for draw in range(self.draws):
            renoised = add_noise(x.detach(), walk.noise[:, draw], walk.grid.levels[at], walk.grid)
            total = total + walk.reward(walk.move(renoised, at), "")
        return total / (1 + self.draws)


@dataclass(frozen=True)
class LateStep(RewardPath):
    """What paths have in common that begin at one step, drawn for every sample from the fraction ``first`` to ``last``
    of all."""

    first: float
    last: float

    def noises(self, steps: int) -> int:
        return 0

    def evaluations(self, steps: int) -> int:
        return 1

    def begin(self, grid: Grid, place: Tensor, shared: float) -> Tensor:
        low, high = (min(int(share * grid.steps), grid.steps - 1) for share in (self.first, self.last))
        if low > high:
            raise ValueError(f"sampling.gradient: got first {self.first} and last {self.last}, expected first <= last")
        return low + (place * (high - low + 1)).long()


@dataclass(frozen=True)
class Refl(LateStep):
    """The clean estimate at one step (``refl``)."""

    def rewards(self, walk: Walk) -> Tensor:
        return walk.reward(walk.clean(walk.state, walk.step), "")


@dataclass(frozen=True)
class Ascent(LateStep):
    """The clean estimate at one step, and a better one (``ascent``)."""

    step: float
    beta: float

    def rewards(self, walk: Walk) -> Tensor:
        before = walk.old(walk.state, walk.step)
        at = before.clone().requires_grad_()
        (slope,) = torch.autograd.grad(walk.reward(at, "").sum(), at)
        gap = self.beta * (walk.clean(walk.state, walk.step) - before) - ascent_step(before, slope, self.step)
        flat = gap.flatten(1)
        return -flat.square().mean(1) / flat.detach().abs().mean(1).clamp_min(SMALL)


@dataclass(frozen=True)
class Srpo(RewardPath):
    """One step from known noise (``srpo``)."""

    wanted: str
    unwanted: str
    k: float
    inverse: float
    low: float
    high: float
    jump: float

    def noises(self, steps: int) -> int:
        return 1

    def evaluations(self, steps: int) -> int:
        return 1

    def begin(self, grid: Grid, place: Tensor, shared: float) -> Tensor:
        if grid.process != "flow":
            raise ValueError(
                f"sampling.gradient: got srpo with a network of a {grid.process} process, expected a flow; choose "
                "draft or refl"
            )
        if not self.low + self.jump <= self.high < 1:
            raise ValueError(
                f"sampling.gradient: srpo: got low {self.low}, jump {self.jump} and high {self.high}, expected low + "
                "jump <= high < 1"
            )
        return torch.full((len(place),), grid.steps)

    def rewards(self, walk: Walk) -> Tensor:
        place, share = walk.place, self.inverse
        back = place < share
        # The rest of the uniform number is uniform in [0, 1) too, on either side.
        share = torch.where(back, place / max(share, SMALL), (place - share) / max(1 - share, SMALL))
        near = self.low + share * (self.high - self.low - self.jump)
        start = torch.where(back, near, near + self.jump)
        end = torch.where(back, near + self.jump, near)
        estimate = recover_clean(walk.state, walk.noise[:, 0], start, end, walk.velocity)
        wanted, unwanted = walk.reward(estimate, self.wanted), walk.reward(estimate, self.unwanted)
        if torch.equal(wanted, unwanted):
            raise ValueError(
                f"sampling.gradient: srpo: the rewards are equal for the words '{self.wanted}' and '{self.unwanted}', "
                "expected rewards that read the text of a prompt, e.g. clip_score, hpsv2 or pickscore"
            )
        return torch.where(back, relative(unwanted, wanted, self.k), relative(wanted, unwanted, self.k))


@dataclass(frozen=True)
class Consistency:
    """Every step of a consistency model (``consistency``)."""

    divergence: str
    checkpointing: bool
    kernels: ClassVar[Mapping[str, str]] = {"flow": "cps(a=1.0, scaled=True)", "diffusion": "consistency"}
    provides: ClassVar[frozenset[str]] = frozenset({"gradient_reward", "reference.divergence"})

    def noises(self, steps: int) -> int:
        return steps

    def evaluations(self, steps: int) -> int:
        return steps

    def begin(self, grid: Grid, place: Tensor, shared: float) -> Tensor:
        return torch.zeros(len(place), dtype=torch.long)

    def scores(self, walk: Walk, names: Collection[str]) -> Scores:
        with_divergence, x = "reference.divergence" in names, walk.state
        apart = x.new_zeros(len(x))

        def step(x: Tensor, t: int) -> tuple[Tensor, Tensor]:
            compared = with_divergence and t < walk.grid.steps - 1  # the last step has no noise
            trained, reference = walk.transitions(x, t, compared)
            value = apart if reference is None else DIVERGENCES[self.divergence](*distance(trained, reference))
            return trained.sample(walk.noise[:, t]), value

        total = apart
        for t in range(walk.grid.steps):
            x, value = checkpoint(step, x, t, use_reentrant=False) if self.checkpointing else step(x, t)
            total = total + value
        scores = {"gradient_reward": walk.reward(x, "")}
        return scores | {"reference.divergence": total} if with_divergence else scores


@dataclass(frozen=True)
class Adjoint:
    """Targets of all steps from the gradient at the end (``adjoint``)."""

    scale: float
    growth: float = math.inf

    def evaluations(self, steps: int) -> int:
        return steps


def ascent_step(
    latents: Float[Tensor, "N *latent"], slope: Float[Tensor, "N *latent"], step: float
) -> Float[Tensor, "N *latent"]:
    """What to add to latents: along the slope, ``step`` times their own norm."""
    size, norm = (tensor.flatten(1).norm(dim=1) for tensor in (latents, slope))
    return like(step * size / norm.clamp_min(SMALL), slope) * slope


def recover_clean(
    clean: Float[Tensor, "N *latent"],
    noise: Float[Tensor, "N *latent"],
    start: Float[Tensor, " N"],
    end: Float[Tensor, " N"],
    velocity: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "N *latent"]:
    """(y - s' e) / (1 - s') with y = x + (s' - s) v(x, s) and x = (1 - s) x0 + s e: one step from s to s' and the known
    noise taken away. With the exact v = e - x0 it is x0. Direct-Align, arXiv:2509.06942."""
    now, then = like(start, clean), like(end, clean)
    x = (1 - now) * clean + now * noise
    return (x + (then - now) * velocity(x, start) - then * noise) / (1 - then)


def distance(trained: Transition, reference: Transition) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """|mean - mean_ref|^2, a sum over the latent, and the variance, which both have."""
    return (trained.mean - reference.mean).square().flatten(1).sum(1), trained.std.square().flatten()


def jensen_shannon(squared: Float[Tensor, " N"], variance: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """ln 2 - E ln(1 + exp(u z - u^2 / 2)) over z ~ N(0, 1), u = d / s, by 64 nodes of Gauss and Hermite: the
    distributions differ along one line only."""
    nodes, weights = (torch.from_numpy(array).to(squared) for array in np.polynomial.hermite_e.hermegauss(64))
    u = (squared / variance).clamp_min(SMALL).sqrt()[:, None]
    return math.log(2) - (nn.functional.softplus(u * nodes - u.square() / 2) * weights).sum(1) / math.sqrt(2 * math.pi)


DIVERGENCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": lambda squared, variance: squared / (2 * variance),
    "hellinger": lambda squared, variance: -torch.expm1(-squared / (8 * variance)),
    "jensen_shannon": jensen_shannon,
    "fisher": lambda squared, variance: squared / variance.square(),
}
"""Of two Gaussians of one variance, from the squared distance of their means: KL, squared Hellinger distance,
Jensen-Shannon divergence (nats) and Fisher divergence."""


def relative(first: Float[Tensor, " N"], second: Float[Tensor, " N"], k: float) -> Float[Tensor, " N"]:
    """(1 + k) r(first words) - r(second words); SRPO, arXiv:2509.06942. It trains the first where a step removes noise;
    where it adds noise, v moves the estimate the other way, and the words are swapped."""
    return (1 + k) * first - second


@block(PATHS)
def draft(
    last: Annotated[int, COUNT_OR_ZERO] = 1,
    least: Annotated[int, COUNT_OR_ZERO] = 0,
    draws: Annotated[int, COUNT_OR_ZERO] = 0,
    checkpointing: bool = True,
) -> GradientPath:
    """The ``last`` K steps of the sampler (0: all) and the decoder: DRaFT-K, arXiv:2309.17400.

    With ``least`` K is drawn for every round, uniformly from least to last (AlignProp, arXiv:2310.03739). ``draws``
    adds so many times the reward of the sample noised afresh to the last level and denoised by one step, and takes the
    mean of all (DRaFT-LV). With ``checkpointing`` every step, and the decoder, is computed again in the backward pass:
    memory is that of one step, whatever K is, and the numbers are the same. The gradient of long chains grows: of 8
    steps it was 26, and rewards fell, where of 1 to 3 it was .2 to .4.
    """
    return Draft(last, least, draws, checkpointing)


@block(PATHS)
def refl(first: Annotated[float, FRACTION] = 0.75, last: Annotated[float, FRACTION] = 0.975) -> GradientPath:
    """The clean estimate x - s v at a step drawn for every sample: ReFL, arXiv:2304.05977, 30 to 39 of 40 steps.

    ``first`` and ``last`` are fractions of the steps. At the last step it is ``draft(last=1)``. Differences from the
    released code: steps are drawn for each sample and not for each batch; samples are denoised to their end, whose
    reward is logged; its loss map relu(2 - r) / 1000 is ``reward_gradient(scale=1e-3, margin=2)``.
    """
    return Refl(first, last)


@block(PATHS)
def ascent(
    *,
    step: Annotated[float, POSITIVE],
    beta: Annotated[float, POSITIVE] = 1.0,
    first: Annotated[float, FRACTION] = 0.75,
    last: Annotated[float, FRACTION] = 0.975,
) -> GradientPath:
    """Distillation of the clean estimate y at a late step into y_old + h, h along the reward's gradient at y_old and
    ``step`` times as long as y_old: DiffusionOPSD, arXiv:2608.24646, with one step of ascent.

    ``gradient_reward`` is -mean(d^2) / mean|d| of d = ``beta`` (y - y_old) - h, where the divisor has no gradient and
    y_old is of the network ``old``, a moving average. The branches to y_old + h and from y_old - h (DiffusionNFT's)
    have the gaps d and -d, so their loss 5 (w + 1 - w) L does not depend on the weight w of a sample in its group:
    one sample per prompt does. The network is differentiated once, in y.
    """
    return Ascent(first, last, step, beta)


@block(PATHS)
def srpo(
    *,
    wanted: Annotated[str, ANY_TEXT],
    unwanted: Annotated[str, ANY_TEXT],
    k: Annotated[float, POSITIVE] = 0.2,
    inverse: Annotated[float, FRACTION] = 0.5,
    low: Annotated[float, FRACTION] = 0.1,
    high: Annotated[float, FRACTION] = 0.9,
    jump: Annotated[float, POSITIVE_FRACTION] = 0.1,
) -> GradientPath:
    """A sample noised with known noise, one step over ``jump``, and the estimate that remains: SRPO, arXiv:2509.06942.

    Its reward is (1 + k) r(wanted) - r(unwanted), of the prompt behind these words; a fraction ``inverse`` of the
    samples steps towards noise, with the words swapped. Of the released code are k (.1 to .25 there), the jump of a
    tenth of the band of levels and the margin .7 of the objective; the band, from ``low`` to ``high``, is ours.
    """
    return Srpo(wanted, unwanted, k, inverse, low, high, jump)


@block(PATHS)
def consistency(divergence: Annotated[str, one_of(*DIVERGENCES)] = "kl", checkpointing: bool = True) -> GradientPath:
    """Every step of a consistency model and the decoder, noise included: ROCM, arXiv:2503.06171.

    For networks that are distilled to few steps: a step draws N((1 - s') x0, s'^2) of a flow. The term
    ``reference_divergence(coef=beta)`` adds beta times the ``divergence`` of each step's Gaussian from the reference's
    at the same state, summed over the steps and the latent: r - beta sum D is the objective of the paper, whose beta
    was not found. One step and no term is DRaFT-1.
    """
    return Consistency(divergence, checkpointing)


@block(PATHS)
def adjoint(*, scale: Annotated[float, POSITIVE], growth: Annotated[float, UPPER_BOUND] = 3.0) -> Adjoint:
    """Adjoint Matching (arXiv:2409.08861): every step of a memoryless sampler is regressed on a target that the lean
    adjoint of the reward gives it (``mmgrpo.policies.adjoint_matching``).

    The optimum weighs the samples of the reference by exp(``scale`` r): 1 / beta of a KL. Adjoints grow backwards and
    are heavy-tailed: one that exceeds ``growth`` times the norm at the end is scaled to it, which is ours (inf: none).
    """
    return Adjoint(scale, growth)


@runtime_checkable
class Decoding(Protocol):
    """A model whose decoder has a gradient."""

    @property
    def kind(self) -> str:
        """``image`` or ``video``."""
        ...

    def pixels(self, latents: Float[Tensor, "N *latent"], conditioning: Any) -> Float[Tensor, "N 3 H W"]:
        """Pixels of latents, with gradient; values outside of [0, 1] are not clamped."""
        ...


def gradient_of(request: Request) -> Callable[[Sequence[Prompt], Float[Tensor, "N 3 H W"]], Float[Tensor, "N"]]:
    """The differentiable reward of a request; ValueError for one without."""
    if request.gradient is None:
        raise ValueError(
            "sampling.policy: got gradients without a differentiable reward; set algorithm.objective to "
            "reward_gradient, e.g. by the presets draft and adjoint_matching"
        )
    return request.gradient


def refuse_undecodable(model: DenoisingModel, setting: str = "sampling.policy: got gradients") -> None:
    """ValueError for a model without pixels of images that have a gradient."""
    if not isinstance(model, Decoding) or model.kind != "image":
        raise ValueError(
            f"{setting}, which this family does not have: rewards have gradients with respect to the pixels of images; "
            "leave it out"
        )


@dataclass(frozen=True)
class States:
    """One state of every sample, from which scoring goes on."""

    state: Float[Tensor, "B *latent"]
    step: Int[Tensor, " B"]
    noise: Float[Tensor, "B draws *latent"]
    place: Float[Tensor, " B"]
    conditioning: Any
    reward: Callable[[Sequence[Prompt], Tensor], Tensor]

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Draws]:
        """Parts of at most ``limit`` samples."""
        return draws_of(loss_mask, limit, self.step.device)


class GradientPolicy:
    """What policies that train by the gradient of a reward have in common: the model, grids, evaluation and saving."""

    provides = frozenset({"log_probs", "gradient_reward"})
    fields: frozenset[str] = frozenset()
    keys = frozenset({"prompt"})
    kind = "gradients"

    def __init__(
        self,
        model: DenoisingModel,
        *,
        steps: int,
        evaluation_steps: int,
        forward_batch_size: int,
        device: torch.device | str = "cpu",
        evaluation: DenoisingModel | None = None,
        kernels: Mapping[str, str] | None = None,
    ) -> None:
        """``kernels``, by process, draw samples in place of the deterministic solver; the reference is then the network
        as it is now."""
        refuse_undecodable(model)
        self.model: Any = model
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.device = torch.device(device)
        self.grid = model.grid(steps).to(self.device)
        self.evaluation_grid = (evaluation or model).grid(evaluation_steps).to(self.device)
        self.solver = Solver(model, forward_batch_size, self.device)
        self.evaluation = Solver(evaluation, forward_batch_size, self.device) if evaluation else self.solver
        self.kernel = kernel(kernels[self.grid.process], model.prediction) if kernels else None
        if self.kernel:
            model.reference.keep()

    def sample(self, request: Request) -> list[Output]:
        """Sample with the deterministic solver."""
        return self.evaluation.sample(self.network, request, self.evaluation_grid)[0]

    def _step(self, network: Any, x: Tensor, t: int | Tensor, conditioning: Any) -> Transition:
        """The transitions of the kernel from states at step t, or each at its own."""
        assert self.kernel is not None
        step = torch.full((len(x),), t, device=x.device) if isinstance(t, int) else t
        output = self.solver.predict(network, x, step, conditioning, self.grid)
        return self.kernel(x, self.solver.mean(output), step, self.grid)

    def keep_reference(self) -> None:
        """Store the present network as the reference."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)


class RewardGradientPolicy(GradientPolicy):
    """Samples of the deterministic solver, and their rewards with gradient."""

    def __init__(self, model: DenoisingModel, *, path: GradientPath, **settings: Any) -> None:
        """``path`` is that of ``gradient_path``; ``settings`` are those of ``GradientPolicy``."""
        super().__init__(model, kernels=path.kernels, **settings)
        self.path, self.provides = path, path.provides | {"log_probs"}
        self.path.begin(self.grid, torch.zeros(1), 0.0)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` samples per prompt, and the state of each at which its gradient begins."""
        reward = gradient_of(request)
        size = request.group_size
        prompt = torch.arange(len(request.prompts)).repeat_interleave(size)
        conditioning = self.model.encode(request.prompts).take(prompt)
        x = self.solver.initial_noise(request, size)
        streams = [stream(request.seed, "gradient", slot, n) for slot in request.slots for n in range(size)]
        place = torch.tensor([float(torch.rand((), generator=generator)) for generator in streams])
        shared = float(torch.rand((), generator=stream(request.seed, "gradient")))
        step = put(self.path.begin(self.grid, place, shared), self.device)
        shape = self.path.noises(self.grid.steps), *self.model.latent_shape()
        noise = put(torch.stack([torch.randn(shape, generator=generator) for generator in streams]), self.device)
        first = step.view(-1, *[1] * (x.dim() - 1))
        state, sizes = x, Sizes(self.grid)
        for t in range(self.grid.steps):
            # Each sample keeps the state from which it is computed again, with gradients.
            state = torch.where(first == t, x, state)
            if self.kernel:
                x = self._step(self.network, x, t, conditioning).sample(noise[:, t])
            else:
                x = self._move(x, torch.full((len(x),), t, device=x.device), conditioning)
            sizes.see(x, "sampling.gradient" if self.kernel else "the deterministic solver", t)
        sizes.refuse()
        state = torch.where(first == self.grid.steps, x, state)
        outputs = self.model.decode(refuse_nonfinite(x, "the sampled latents"), conditioning)
        ones = torch.ones(len(x), 1, dtype=torch.bool, device=self.device)
        return Rollout(
            prompts=[request.prompts[index] for index in prompt.tolist()],
            outputs=list(outputs),
            decisions=Decisions(
                log_probs=torch.zeros(len(x), 1, device=self.device),
                loss_mask=ones,
                decision_mask=ones,
                node=torch.arange(len(x), device=self.device)[:, None],
                origin=torch.full((len(x),), OWN, device=self.device),
                keys={"prompt": put(torch.tensor(request.slots)[prompt], self.device)},
            ),
            steps=States(state, step, noise, put(place, self.device), conditioning, reward),
            evaluations=len(x) * self.grid.steps * self.model.evaluations_per_row,
        )

    def score(self, rollout: Rollout, part: Draws, names: frozenset[str]) -> Scores:
        """The rewards of the part's samples, with gradient."""
        states: States = rollout.steps  # type: ignore[assignment]
        conditioning = states.conditioning.take(part.on_host)
        prompts = [rollout.prompts[row] for row in part.on_host.tolist()]

        def reward(latents: Tensor, words: str) -> Tensor:
            pixels = checkpoint(self.model.pixels, latents, conditioning, use_reentrant=False)
            reworded = [replace(prompt, text=words + prompt.text) for prompt in prompts] if words else prompts
            return states.reward(reworded, pixels.float().clamp(0, 1)).to(self.device)

        def transitions(x: Tensor, t: int, compared: bool) -> tuple[Transition, Transition | None]:
            trained = self._step(self.network, x, t, conditioning)
            if not compared:
                return trained, None
            with self.networks(REFERENCE_NETWORK) as reference:
                return trained, self._step(reference, x, t, conditioning)

        @torch.no_grad()
        def old(x: Tensor, step: Tensor) -> Tensor:
            with self.networks("old") as network:
                return self._clean(x, step, conditioning, network)

        walk = Walk(
            states.state[part.rows],
            states.step[part.rows],
            states.noise[part.rows],
            states.place[part.rows],
            self.grid,
            lambda x, step: self._move(x, step, conditioning),
            transitions,
            lambda x, step: self._clean(x, step, conditioning, self.network),
            old,
            lambda x, level: self.model.predict(self.network, x, level, conditioning).float(),
            reward,
        )
        return {"log_probs": torch.zeros(len(prompts), device=self.device), **self.path.scores(walk, names)}

    def _output(self, x: Tensor, step: Tensor, conditioning: Any, network: nn.Module) -> Tensor:
        return self.solver.mean(self.solver.predict(network, x, step, conditioning, self.grid))

    def _move(self, x: Tensor, step: Tensor, conditioning: Any) -> Tensor:
        return self.solver.step(x, self._output(x, step, conditioning, self.network), step, self.grid)

    def _clean(self, x: Tensor, step: Tensor, conditioning: Any, network: nn.Module) -> Tensor:
        output = self._output(x, step, conditioning, network)
        return clean_estimate(x, output, step, self.grid, self.model.prediction)


def gradient_path(text: str) -> GradientPath | Adjoint:
    """The path of ``name(parameter=value)``."""
    return bind(text, PATHS, "sampling.gradient")({})
