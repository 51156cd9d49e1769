"""A policy whose decisions are sampled noise levels, with the negative flow-matching error as pseudo-log-likelihood.

Samples come from any solver (here the ODE); only their clean latents are stored. A decision is a draw of
(t, noise): x_t = (1 - t) x_0 + t noise, target v* = noise - x_0, and

    log_prob = -error(v(x_t, t) - v*)

which a policy-gradient objective raises for good samples and lowers for bad ones. Of a UNet v is its prediction and v*
the target of its process (``mmgrpo.diffusion.noising``), and t below the scale by which a gap moves the clean estimate.
There is no trajectory, no transition density and no SDE. This is the training of Advantage Weighted Matching (AWM), and
of DiffusionNFT (arXiv:2509.16117) at its first update, where its two branches coincide with the sampling policy and the
gradient becomes (2 rho - 1) = A / 5 times that of the self-normalized error.

All samples of a group share their draws, as in DGPO, so what the group has in common cancels; or each has its own,
as in DiffusionNFT and AWM (``draws_per``).

With ``boundaries`` a draw is of the end of a step of the trajectory in place of the clean sample: a step, and a level
above its end to which it is noised (``mmgrpo.policies.boundaries``), for generators of few steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.conflicts import PROCESS, refuse_values
from mmgrpo.config.ranges import ANY_NUMBER, POSITIVE_FRACTION
from mmgrpo.config.registry import bind, block, networks_of, table_of
from mmgrpo.config.settings import DECLARED
from mmgrpo.diffusion.kernels import no_history, over_latent
from mmgrpo.diffusion.noising import add_noise, clean_scale, target
from mmgrpo.diffusion.ode import DenoisingModel, GivenOutputs, Solver, given_records
from mmgrpo.files import share
from mmgrpo.objectives.matching import SMALLEST, self_normalized
from mmgrpo.policies.boundaries import (
    QUERIES,
    Boundaries,
    Trajectories,
    clean_estimate,
    draw_steps,
    over,
    renoise,
    sample_states,
)
from mmgrpo.policies.exploring import Exploration, explore
from mmgrpo.policies.trajectories import Trajectories as Drawn
from mmgrpo.policies.trajectories import TrajectoryDrawer
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.runtime.networks import REFERENCE_NETWORK, Networks
from mmgrpo.types import GIVEN, OWN, Decisions, Output, Prompt, Record, Request, Rollout, Scores, distinct_prompts

ERRORS = table_of("error")


@block(ERRORS, "velocity")
def velocity_error(gap: Float[Tensor, "N *latent"], time: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """mean((v - v*)^2): the plain flow-matching error."""
    return over_latent(gap.square())


@block(ERRORS, "weighted")
def weighted_error(
    gap: Float[Tensor, "N *latent"], time: Float[Tensor, " N"], power: Annotated[float, ANY_NUMBER] = 1.0
) -> Float[Tensor, " N"]:
    """t^power mean((v - v*)^2): high noise levels count more; power 2 is the error of the clean estimate."""
    return time**power * over_latent(gap.square())


@block(ERRORS, "huber")
def huber_error(
    gap: Float[Tensor, "N *latent"], time: Float[Tensor, " N"], power: Annotated[float, POSITIVE_FRACTION] = 0.25
) -> Float[Tensor, " N"]:
    """(t / p) [(e + c)^p - c^p] with e = mean((v - v*)^2), p the ``power`` and c 1e-10: large errors count less.

    The generalized Huber error of AWM's released recipe, p .25; p .5 is twice its Huber error, 1 ``weighted``. t .6 and
    e .05125: 1.13432798.
    """
    small = 1e-10
    return time / power * ((over_latent(gap.square()) + small) ** power - small**power)


@block(ERRORS, "self_normalized")
def self_normalized_error(gap: Float[Tensor, "N *latent"], time: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """mean((x0 - x_0)^2) / mean|x0 - x_0| with x0 - x_0 = -t (v - v*), the denominator without gradient.

    DiffusionNFT, arXiv:2509.16117, its self-normalized regression.
    """
    scale = over_latent(gap.detach().abs()).clamp_min(SMALLEST)
    return time * over_latent(gap.square()) / scale


JUDGED = frozenset({"regional", "anchored"})
"""Scores of given images: mean(w (v - v*)^2) with the weights w of a row's regions (``mmgrpo.diffusion.regions``), and
mean((v - v*_a)^2) at the same noised image, v*_a = noise - x_a of the best image of its prompt."""

ADDED = 1 << 20
"""The first number of a sample that joins a group, beyond those of the policy's own."""

ERRORS_OF_A_NETWORK = ("gap", "error", "normalized_error", "velocity_norm")
"""Scores of any network at a draw, besides ``log_probs``: v - v* over the latent, its mean square, that over its mean
magnitude (without gradient), and the norm |v|."""


def errors(
    velocity: Float[Tensor, "N *latent"], target: Float[Tensor, "N *latent"], names: Collection[str], prefix: str = ""
) -> Scores:
    """The scores of ``ERRORS_OF_A_NETWORK`` that are asked under this prefix."""
    gap = velocity - target
    ways = {
        "gap": lambda: gap,
        "error": lambda: over_latent(gap.square()),
        "normalized_error": lambda: self_normalized(gap, 1),
        "velocity_norm": lambda: velocity.flatten(1).norm(dim=1),
    }
    return {f"{prefix}{name}": way() for name, way in ways.items() if f"{prefix}{name}" in names}


@dataclass(frozen=True)
class Draws:
    """Entries of a part: decisions that are scored together."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    on_host: Int[Tensor, "N"]
    """``rows`` on the host."""

    def take(self, some: Int[Tensor, "M"]) -> Draws:
        """Some of them, by places on the host."""
        rows = self.on_host[some]
        return Draws(put(rows, self.rows.device), self.positions[put(some, self.rows.device)], rows)


def draws_of(loss_mask: Bool[Tensor, "B T"], limit: int, device: torch.device) -> Iterator[Draws]:
    """The entries of a mask, at most ``limit`` at a time."""
    chosen = loss_mask.cpu().nonzero(as_tuple=True)
    for rows, positions in zip(*(index.split(limit) for index in chosen), strict=True):
        if len(rows):
            yield Draws(put(rows, device), put(positions, device), rows)


@dataclass(frozen=True)
class Matches:
    """Clean samples, and the draws (t, noise) of each group at which their error is evaluated."""

    clean: Float[Tensor, "B *latent"]
    noise: Float[Tensor, "groups T *latent"]
    step: Int[Tensor, "groups T"]
    group: Int[Tensor, " B"]
    """Whose draws a row has: its group's, or its own."""
    drawn: Sequence[tuple[int, ...]]
    """Seed and slot from which the draws of each group come, and the number of the sample whose own they are."""
    conditioning: Any
    trajectories: Trajectories | None = None
    """The states of few-step samples, whose ends of steps are noised in place of the clean samples; ``step`` is then
    of the levels of queries."""

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Draws]:
        """Parts of at most ``limit`` decisions, each of which is one network evaluation."""
        return draws_of(loss_mask, limit, self.group.device)


ESTIMATES = frozenset({"clean", "estimate_error", "boundary"})
"""Further scores at the ends of steps: the clean estimate of the present network at the step's beginning; the
mean square of v - (x_tau - x0) / tau, x0 that of the generator; and the step's number."""
ESTIMATES_OF_A_NETWORK = ("clean", "guided_clean", "direction")
"""Clean estimates of another network at x_tau, also under ``sampling.reference_guidance``, and what a scale of guidance
of 1 more adds."""


@dataclass(frozen=True)
class Matching:
    """At how many noise levels a sample is scored, and by which error (``ERRORS``)."""

    draws: int
    error: str = "velocity"
    noisy_fraction: float = 1.0
    """Levels are drawn from the noisiest part of all."""
    per: str = "prompt"
    """``prompt``: the samples of a group share their draws; ``sample``: each has its own."""
    times: str = "uniform"
    """``uniform``: different levels, all equally likely; ``logit_normal``: independent ones, ``logit_normal_steps``."""


def logit_normal_steps(levels: int, draws: int, generator: torch.Generator) -> Int[Tensor, " draws"]:
    """Steps whose level, before the grid's shift, is sigmoid(n) with standard normal n: floor((1 - sigmoid(n)) levels).

    The training of Stable Diffusion 3 (arXiv:2403.03206, eq. 19, rf/lognorm(0, 1)): half of the draws are of levels
    between .338 and .662, whose n are within .674 of 0.
    """
    level = torch.randn(draws, generator=generator).sigmoid()
    return ((1 - level) * levels).long().clamp(0, levels - 1)


@dataclass(frozen=True)
class Views:
    """The network of a policy with other inputs than those of which its errors are; None: with the same."""

    drawing: DenoisingModel | None = None
    """By which rollouts are drawn, with another scale of guidance."""
    evaluation: DenoisingModel | None = None
    """By which evaluation samples are drawn, also in another size."""
    referring: DenoisingModel | None = None
    """Of which the errors of the reference are; with ``boundaries`` it makes the clean estimates with guidance."""


SAME = Views()


class FlowMatchingPolicy:
    """Samples with the ODE and scores with the flow-matching error at sampled noise levels."""

    provides = frozenset(
        {"log_probs", "time", *ERRORS_OF_A_NETWORK, *JUDGED, "reference.log_probs", "reference.velocity_gap"}
        | {f"reference.{name}" for name in ERRORS_OF_A_NETWORK}
    )
    fields: frozenset[str] = frozenset()
    keys = frozenset({"prompt"})
    kind = "matching"

    def __init__(
        self,
        model: DenoisingModel,
        *,
        steps: int,
        matching: Matching,
        evaluation_steps: int,
        forward_batch_size: int,
        device: torch.device | str = "cpu",
        views: Views = SAME,
        solver: str = "euler",
        exploration: Exploration | None = None,
        boundaries: Boundaries | None = None,
        draw_dtype: str = "",
    ) -> None:
        """``solver`` (``euler`` or ``dpmpp_2m``) draws the rollouts, in the precision ``draw_dtype``, or what
        exploration compares of them; empty: that of the model."""
        self.model = model
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.device = torch.device(device)
        self.grid = model.grid(steps).to(self.device)
        self.evaluation_grid = (views.evaluation or model).grid(evaluation_steps).to(self.device)
        self.solver = Solver(model, forward_batch_size, self.device)
        self.drawing, self.evaluation, self.referring = (
            Solver(other, forward_batch_size, self.device) if other else self.solver
            for other in (views.drawing, views.evaluation, views.referring)
        )
        self.multistep = solver == "dpmpp_2m"
        self.engine: TrajectoryDrawer | None = None
        self.draw_dtype = draw_dtype
        self.error = bind(matching.error, ERRORS, "sampling.error")
        self.draws, self.draws_per, self.times = matching.draws, matching.per, matching.times
        self.exploration, self.boundaries = exploration, boundaries
        if exploration:
            self.explore_grid = (views.drawing or model).grid(exploration.steps).to(self.device)
            self.fields = self.fields | {"explored_reward"}
        self.queries = model.grid(QUERIES).to(self.device) if boundaries else None
        if boundaries:
            estimates = {f"{REFERENCE_NETWORK}.{name}" for name in ESTIMATES_OF_A_NETWORK}
            self.provides, self.fields = self.provides | ESTIMATES | estimates, self.fields | {"boundary_weight"}
        refuse_values(self.used, DECLARED)
        self.levels = round(matching.noisy_fraction * steps)
        if not 1 <= self.draws <= self.levels:
            raise ValueError(f"sampling.draws must lie between 1 and sampling.steps={steps}, got {self.draws}")

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` ODE samples per prompt, and the draws of each group."""
        size, explored, states = request.group_size, {}, None
        if self.queries is not None:
            outputs, states, conditioning = sample_states(self.drawing, self.network, request, self.grid)
            clean = states[:, -1]
            steps = len(clean) * self.grid.steps
        elif self.exploration is None:
            outputs, clean, conditioning = self._samples(request)
            steps = len(clean) * self.grid.steps
        else:
            keep = self.exploration.keep
            if size < keep:
                raise ValueError(f"sampling.explore_keep: got {keep} of groups of {size}, expected at most that")
            outputs, clean, conditioning, explored["explored_reward"] = explore(
                self.drawing, self.network, request, self.explore_grid, self.grid, keep, self.cheaply()
            )
            steps = len(request.prompts) * size * self.explore_grid.steps + len(clean) * self.grid.steps
            size = keep
        rollout = self._match(request, [size] * len(request.prompts), outputs, clean, conditioning, OWN, states)
        sampling = steps * self.drawing.model.evaluations_per_row
        if self.engine is not None:
            explored["age"] = torch.full((len(clean),), float(self.engine.age(request)), device=self.device)
        decisions = replace(rollout.decisions, fields={**rollout.decisions.fields, **explored})
        return replace(rollout, decisions=decisions, evaluations=sampling + rollout.evaluations)

    def _samples(self, request: Request) -> tuple[Sequence[Output], Float[Tensor, "rows *latent"], Any]:
        """Outputs, latents and the conditioning of each row, by the engine where there is one."""
        prompt = torch.arange(len(request.prompts)).repeat_interleave(request.group_size)
        conditioning = self.drawing.model.encode(request.prompts).take(prompt)
        if self.engine is None:
            clean = self._latents(request, conditioning)
        else:
            [drawn] = self.engine.draw(request)
            self.engine.refuse(drawn, self.model.latent_shape(), len(prompt), 0)
            clean = drawn.final.to(self.device)
        outputs = self.drawing.model.decode(refuse_nonfinite(clean, "the sampled latents"), conditioning)
        return list(outputs), clean, conditioning

    def _latents(self, request: Request, conditioning: Any) -> Float[Tensor, "rows *latent"]:
        """The latents of a request's samples."""
        noise = self.drawing.initial_noise(request, request.group_size)
        rows = self.network, noise, conditioning, self.grid
        with self.cheaply():
            if self.multistep:
                return self.drawing.denoise_multistep(*rows, 0, no_history(noise))
            return self.drawing.denoise(*rows)

    def cheaply(self) -> AbstractContextManager[Any]:
        """A context in which the network computes as samples are drawn: scores never do."""
        if not self.draw_dtype:
            return nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.draw_dtype))

    @property
    def used(self) -> dict[str, Any]:
        """The settings for which it stands, as far as others exclude them."""
        return {
            PROCESS: self.grid.process,
            "sampling.policy": "matching",
            "sampling.solver": "dpmpp_2m" if self.multistep else "euler",
            "sampling.explore_steps": self.exploration.steps if self.exploration else 0,
            "sampling.boundaries": self.queries is not None,
            "rollout.engine": type(self.engine).__name__ if self.engine else "policy",
        }

    def draw_with(self, engine: TrajectoryDrawer) -> None:
        """Let an engine draw the samples of rollouts, of which the loss has no likelihood: latents are all that it
        sends, and how many rounds before the weights were those that drew is the field ``age`` of each row."""
        self.engine, self.fields = engine, self.fields | {"age"}
        refuse_values(self.used, DECLARED)

    def begin(self, request: Request) -> None:
        """Let the engine begin to draw the samples that ``rollout`` will be asked for."""
        if self.engine is not None:
            self.engine.begin(request)

    @torch.no_grad()
    def trajectories(self, request: Request, version: int) -> list[Drawn]:
        """The latents of a request's samples, as trajectories without decisions."""
        prompt = torch.arange(len(request.prompts)).repeat_interleave(request.group_size)
        clean = self._latents(request, self.drawing.model.encode(request.prompts).take(prompt))
        none = torch.zeros(len(clean), 0, dtype=torch.long, device=clean.device)
        return [Drawn(clean[:0], none, none, none.float(), clean, version)]

    @property
    def answer_kind(self) -> str:
        """What the samples are."""
        return self.model.kind if isinstance(self.model, GivenOutputs) else ""

    @torch.no_grad()
    def rollout_of_answers(self, request: Request) -> Rollout:
        """The media of the prompts' answers as samples, and the draws of each group."""
        if not isinstance(self.model, GivenOutputs):
            raise ValueError("data.offline: this family does not encode given images or videos; choose another family")
        media = [answer.media for prompt in request.prompts for answer in prompt.answers]
        latents, outputs = self.model.latents([medium for medium in media if medium is not None])
        counts = [len(prompt.answers) for prompt in request.prompts]
        conditioning = self.model.encode(request.prompts).take(self._prompt(counts))
        return self._match(request, counts, outputs, latents.to(self.device).float(), conditioning, GIVEN)

    def _prompt(self, counts: Sequence[int]) -> Int[Tensor, " rows"]:
        """The prompt of each row, from the number of rows of each prompt, on the host."""
        return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))

    def _match(
        self,
        request: Request,
        counts: Sequence[int],
        outputs: Sequence[Output],
        clean: Tensor,
        conditioning: Any,
        origin: int,
        states: Tensor | None = None,
    ) -> Rollout:
        """Rows of clean samples with the draws of their groups and their log-probs there."""
        rows, prompt = len(clean), self._prompt(counts)
        group = put(prompt, self.device)
        # Noise and levels are those of a group, so its samples are compared at the same ones, or of each sample.
        drawn: list[tuple[int, ...]] = [(request.seed, slot) for slot in request.slots]
        if self.draws_per == "sample":
            drawn = [(*drawn[index], member) for index, count in enumerate(counts) for member in range(count)]
            group = torch.arange(rows, device=self.device)
        matches = self._matches(clean, drawn, group, conditioning, states)
        mask = torch.ones(rows, self.draws, dtype=torch.bool, device=self.device)
        log_probs = torch.zeros(rows, self.draws, device=self.device)
        for part in matches.split(torch.ones(rows, self.draws, dtype=torch.bool), self.solver.forward_batch_size):
            log_probs[part.rows, part.positions] = self._log_probs(
                matches, part, self._velocity(self.network, matches, part)
            )
        decisions = Decisions(
            log_probs=log_probs,
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(rows * self.draws, device=self.device).view(rows, self.draws),
            origin=torch.full((rows,), origin, device=self.device),
            keys={"prompt": put(torch.tensor(request.slots)[prompt], self.device)},
        )
        if matches.trajectories is not None:
            weight = (matches.trajectories.step[group] + 1) / self.grid.steps
            decisions = replace(decisions, fields={"boundary_weight": weight})
        return Rollout(
            prompts=[request.prompts[index] for index in prompt.tolist()],
            outputs=outputs,
            decisions=decisions,
            steps=matches,
            evaluations=rows * self.draws * self.model.evaluations_per_row,
        )

    def _matches(
        self,
        clean: Tensor,
        drawn: Sequence[tuple[int, ...]],
        group: Int[Tensor, " rows"],
        conditioning: Any,
        states: Tensor | None = None,
    ) -> Matches:
        """Clean samples with the draws (t, noise) of their groups; with ``states`` these are of ends of steps."""
        streams, trajectories = [stream(seed, "matching", *of) for seed, *of in drawn], None
        if self.queries is not None and states is None:
            raise ValueError(
                "sampling.boundaries: got true with stored or given samples, whose states at the ends of steps are not "
                "known; set false, or train on the policy's own samples only"
            )
        if states is None:
            step = torch.stack([self._steps(s) for s in streams])
        else:
            assert self.queries is not None and self.boundaries is not None
            least = self.boundaries.least_level
            pairs = [draw_steps(self.grid, self.queries, self.draws, least, s) for s in streams]
            ends, step = (put(torch.stack(tensors), self.device) for tensors in zip(*pairs, strict=True))
            trajectories = Trajectories(states, ends)
        noise = torch.stack([torch.randn(self.draws, *self.model.latent_shape(), generator=s) for s in streams])
        noise, step = put(noise, self.device), step if states is not None else put(step, self.device)
        return Matches(clean, noise, step, group, drawn, conditioning, trajectories)

    def _steps(self, generator: torch.Generator) -> Int[Tensor, " draws"]:
        if self.times == "logit_normal":
            return logit_normal_steps(self.levels, self.draws, generator)
        return torch.randperm(self.levels, generator=generator)[: self.draws]

    def pack(self, rollout: Rollout, rows: Sequence[int]) -> list[Record]:
        """Some samples: their latents and log-probs, and the seeds of their draws in place of the noise."""
        matches: Matches = rollout.steps  # type: ignore[assignment]
        decisions, records = rollout.decisions, []
        for row in rows:
            numbers = {"clean": matches.clean[row], "log_probs": decisions.log_probs[row]}
            numbers |= {name: value[row] for name, value in decisions.fields.items() if name in self.fields}
            record = {name: value.detach().cpu().clone() for name, value in numbers.items()}
            records.append({**record, "drawn": torch.tensor(matches.drawn[int(matches.group[row])])})
        return records

    def answers(self, prompts: Sequence[Prompt], count: int = 1) -> list[list[Record]]:
        """The latents of the best ``count`` images or videos that each prompt is given."""
        return given_records(self.model, prompts, count)

    @torch.no_grad()
    def unpack(
        self, prompts: Sequence[Prompt], records: Sequence[Record], slots: Sequence[int], origin: int, request: Request
    ) -> Rollout:
        """A rollout of stored samples, one per prompt, at the draws of their round; one without log-probs gets those of
        its group, which are those of the policy's own samples under the request's seed, or with draws per sample its
        own, and log-probs of 0."""
        keys: list[tuple[int, ...]] = []
        for place, (record, slot) in enumerate(zip(records, slots, strict=True)):
            fresh = (request.seed, slot) if self.draws_per == "prompt" else (request.seed, slot, ADDED + place)
            keys.append(tuple(record["drawn"].tolist()) if "log_probs" in record else fresh)
        drawn, (distinct, place) = list(dict.fromkeys(keys)), distinct_prompts(prompts)
        group = torch.tensor([drawn.index(key) for key in keys], device=self.device)
        clean = torch.stack([record["clean"] for record in records]).to(self.device)
        conditioning = self.model.encode(distinct).take(torch.tensor(place))
        matches = self._matches(clean, drawn, group, conditioning)
        mask = torch.ones(len(clean), self.draws, dtype=torch.bool, device=self.device)
        zeros = torch.zeros(self.draws)
        fields = {name for name in self.fields if all(name in record for record in records)}
        decisions = Decisions(
            log_probs=torch.stack([record.get("log_probs", zeros) for record in records]).to(self.device),
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel(), device=self.device).view(mask.shape),
            origin=torch.full((len(clean),), origin, device=self.device),
            keys={"prompt": torch.tensor(list(slots), device=self.device)},
            fields={name: torch.stack([record[name] for record in records]).to(self.device) for name in fields},
        )
        return Rollout(list(prompts), list(self.model.decode(clean, conditioning)), decisions, matches)

    def score(self, rollout: Rollout, part: Draws, names: frozenset[str]) -> Scores:
        """The negative errors at the part's draws, under the present parameters."""
        matches: Matches = rollout.steps  # type: ignore[assignment]
        with torch.set_grad_enabled(torch.is_grad_enabled() and "clean" not in names):
            velocity = self._velocity(self.network, matches, part)
        noisy, wanted, level, _ = self._at(matches, part)
        scores: Scores = {"log_probs": self._log_probs(matches, part, velocity)}
        scores |= errors(velocity, wanted, names)
        if "time" in names:
            scores["time"] = clean_scale(level, self.model.prediction)
        estimates = {name for name in names if name.endswith((".guided_clean", ".direction"))}
        if names & JUDGED:
            scores |= self._region_scores(rollout, part, velocity - wanted)
        if self.queries is not None:
            scores |= self._estimates(matches, part, names, noisy, velocity)
        for other in networks_of(names - estimates):
            original = self._of_network(rollout, part, other)
            scores[f"{other}.log_probs"] = self._log_probs(matches, part, original)
            scores[f"{other}.velocity_gap"] = over_latent((velocity - original).square())
            scores |= errors(original, wanted, names, f"{other}.")
            if f"{other}.clean" in names:
                scores[f"{other}.clean"] = noisy - over(level, noisy) * original
            if other == REFERENCE_NETWORK:  # for the metric velocity/norm_ratio
                scores.setdefault(f"{other}.velocity_norm", original.flatten(1).norm(dim=1))
        for other in networks_of(estimates):
            guided = self._of_network(rollout, part, other, self.referring)
            scores[f"{other}.guided_clean"] = noisy - over(level, noisy) * guided
            if f"{other}.direction" in names:
                added = guided - self._of_network(rollout, part, other)
                guidance = self.boundaries.guidance if self.boundaries else 1.0
                apart = guidance - 1 if guidance != 1 else 1.0  # without guidance the difference is zero
                scores[f"{other}.direction"] = -over(level, noisy) * added / apart
        scores.setdefault("velocity_norm", velocity.detach().flatten(1).norm(dim=1))  # for the metric velocity/norm
        return scores

    def _region_scores(self, rollout: Rollout, part: Draws, gap: Float[Tensor, "N *latent"]) -> Scores:
        """The scores of ``JUDGED``; ValueError for samples of the policy's own, and for latents without places."""
        from mmgrpo.diffusion.regions import region_weights, regions_of

        matches: Matches = rollout.steps  # type: ignore[assignment]
        shape = tuple(matches.clean.shape[1:])
        if len(shape) != 3 or self.model.prediction != "flow":
            raise ValueError(
                f"algorithm.objective: got latents of shape {shape} and predictions of {self.model.prediction}, "
                "expected channels, height and width of a flow, whose regions can be weighed; choose another family"
            )
        key = rollout.decisions.keys["prompt"]
        best = (key[:, None] == key[None]).int().argmax(1)[part.rows]  # the answers of a prompt begin with the best
        moved = matches.clean[best] - matches.clean[part.rows]
        maps = [region_weights(*regions_of(rollout.prompts[row]), *shape[1:]) for row in part.on_host.tolist()]
        weights = put(torch.stack(maps), gap.device)[:, None]
        return {
            "regional": over_latent(weights * gap.square()),
            "anchored": over_latent((gap + moved).square()),
        }

    def _of_network(self, rollout: Rollout, part: Draws, name: str, solver: Solver | None = None) -> Tensor:
        """The output of the network of this name at a part's draws, with each task's own."""
        matches: Matches = rollout.steps  # type: ignore[assignment]
        return self.networks.evaluate(
            name,
            [rollout.prompts[row].task for row in part.on_host.tolist()],
            lambda network, some: self._velocity(network, matches, part.take(some), name, solver),
        )

    def _estimates(
        self, matches: Matches, part: Draws, names: frozenset[str], noisy: Tensor, velocity: Tensor
    ) -> Scores:
        """The scores of ``ESTIMATES`` that are asked for."""
        assert matches.trajectories is not None
        _, _, level, _ = self._at(matches, part)
        group = matches.group[part.rows]
        step = matches.trajectories.step[group, part.positions]
        states = matches.trajectories.states[part.rows[:, None], torch.stack([step, step + 1], 1)]
        scores: Scores = {"boundary": step.to(noisy.dtype)} if "boundary" in names else {}
        if "clean" in names:
            conditioning = matches.conditioning.take(part.on_host)
            output = self.solver.predict(self.network, states[:, 0], step, conditioning, self.grid)
            scores["clean"] = states[:, 0] - over(self.grid.levels[step], output) * output
        if "estimate_error" in names:
            clean = clean_estimate(states, self.grid.levels[step], self.grid.levels[step + 1])
            scores["estimate_error"] = over_latent((velocity - (noisy - clean) / over(level, noisy)).square())
        return scores

    def sample(self, request: Request) -> list[Output]:
        """Sample with the deterministic solver."""
        return self.evaluation.sample(self.network, request, self.evaluation_grid)[0]

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def _velocity(
        self, network: Any, matches: Matches, part: Draws, name: str = "", solver: Solver | None = None
    ) -> Float[Tensor, "N *latent"]:
        noisy, _, _, step = self._at(matches, part)
        if solver is None:
            solver = self.referring if name == REFERENCE_NETWORK and self.queries is None else self.solver
        grid = self.queries or self.grid
        return solver.predict(network, noisy, step, matches.conditioning.take(part.on_host), grid)

    def _log_probs(self, matches: Matches, part: Draws, velocity: Tensor) -> Float[Tensor, " N"]:
        _, wanted, level, _ = self._at(matches, part)
        return -self.error({"gap": velocity - wanted, "time": clean_scale(level, self.model.prediction)})

    def _at(self, matches: Matches, part: Draws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of a part's draws: the noised states, what a network is to predict there, the levels and their steps."""
        clean, noise, step = self._draws(matches, part)
        if self.queries is None or matches.trajectories is None:
            level = self.grid.levels[step]
            return (
                add_noise(clean, noise, level, self.grid),
                target(clean, noise, level, self.model.prediction),
                level,
                step,
            )
        end = matches.trajectories.step[matches.group[part.rows], part.positions] + 1
        level, low = self.queries.levels[step], self.grid.levels[end]
        return (*renoise(matches.trajectories.states[part.rows, end], noise, low, level), level, step)

    def _draws(self, matches: Matches, part: Draws) -> tuple[Tensor, Tensor, Tensor]:
        group = matches.group[part.rows]
        return matches.clean[part.rows], matches.noise[group, part.positions], matches.step[group, part.positions]
