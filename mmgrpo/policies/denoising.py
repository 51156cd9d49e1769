"""A policy whose decisions are the Gaussian transitions of a denoising process.

A rollout samples a forest per group: ``plan.roots`` trees, each from one initial noise, that split where
the plan states it; a group that never splits has ``group_size`` trees of one branch each. What branches
share is computed once, stored once and trained once:

    roots --ODE--> x_k --split into G--> x_{k+1} --ODE--> G outputs        (one-step branch)

    forward passes of the network     one per distinct state x_t
    decisions                         one per distinct pair (x_t, x_{t+1}), and stream

The streams of a model (``Streamed``), such as frames and sound, are drawn by one SDE on one grid. Each has a log-prob,
the mean over its own entries, and so a ratio and a clip; the decision of stream s at step t of T has position s T + t.

States are kept in fp32, exactly as they were scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages.select import most_varied
from mmgrpo.config.conflicts import PROCESS, STREAMS, refuse_values
from mmgrpo.config.registry import networks_of
from mmgrpo.config.settings import DECLARED
from mmgrpo.diffusion.completions import OUTPUT, Stage, completion_evaluations, completion_stages, points_to_end
from mmgrpo.diffusion.kernels import (
    History,
    Kernel,
    Transition,
    estimate_of,
    kernel,
    level_table,
    no_history,
    noise_table,
    output_towards,
    over_latent,
    rectifier_table,
    sibling_noise,
)
from mmgrpo.diffusion.ode import DenoisingModel, GivenOutputs, Solver, given_records, stream_views
from mmgrpo.diffusion.plan import Plan
from mmgrpo.diffusion.planners import planner, step_entropy
from mmgrpo.diffusion.schedules import Grid, Sizes, refuse_noise
from mmgrpo.files import share
from mmgrpo.policies.trajectories import Trajectories, TrajectoryDrawer, rescore
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.distributed import join_decisions
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.runtime.networks import REFERENCE_NETWORK, Networks
from mmgrpo.types import OWN, Completions, Decisions, Output, Prompt, Record, Request, Rollout, Scores, distinct_prompts

NODES_PER_WALK = 1 << 32
"""Offset between the decision numbers of different walks of a rollout, so they never coincide."""


def norm_of(velocity: Float[Tensor, "N *latent"]) -> Float[Tensor, " N"]:
    """|v| of every row, over the latent."""
    return velocity.flatten(1).norm(dim=1)


def mean_square(values: Float[Tensor, "N *latent"]) -> Float[Tensor, " N"]:
    """Mean square of every row, over the latent."""
    return over_latent(values.square())


def apart(final: Float[Tensor, "rows *latent"], prompt: Int[Tensor, " rows"]) -> Float[Tensor, "rows *latent"]:
    """Each row's final latent less the mean of those of its prompt (a number on the host): of a pair, half of its
    difference to the other."""
    count = torch.bincount(prompt).clamp_min(1)
    place, count = put(prompt, final.device), put(count, final.device)
    total = final.new_zeros(len(count), *final.shape[1:]).index_add_(0, place, final)
    return final - (total / count.view(-1, *[1] * (final.dim() - 1)))[place]


def normalize(away: Float[Tensor, "N *latent"]) -> Float[Tensor, "N *latent"]:
    """Over its mean square, which 1e-6 keeps from zero."""
    return away / (over_latent(away.square()) + 1e-6).view(-1, *[1] * (away.dim() - 1))


@dataclass(frozen=True)
class Entries:
    """Decisions of one walk that are scored together, and the distinct states that they begin at."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    walk: int
    states: Int[Tensor, "S"]
    """Index of each distinct state in the walk."""
    state: Int[Tensor, "N"]
    """Which of them each decision begins at."""
    entry: Int[Tensor, "S"]
    """One decision that begins at each: all of them have its step and its prompt."""
    entry_rows: Sequence[int]
    """The row of that decision."""


@dataclass(frozen=True)
class Walk:
    """The trees of one plan, as scoring needs them: the states at both ends of every decision."""

    grid: Grid
    std: Float[Tensor, " T"]
    level: Float[Tensor, " T"]
    first_row: int
    """Index of its first row in the rollout; the rows of the fields below count from it."""
    states: Float[Tensor, "S *latent"]
    """Distinct states in fp32; rows that share one refer to the same entry."""
    means: Float[Tensor, "S *latent"]
    """Mean of the transition that drew each state; unused for states that no decision drew."""
    source: Int[Tensor, "rows T"]
    """Index of the state before each decision."""
    target: Int[Tensor, "rows T"]
    """Index of the state after each decision."""
    prompt: Int[Tensor, " rows"]
    """Index of each row's prompt in ``conditioning``, on the host."""
    conditioning: Any
    final: Float[Tensor, "rows *latent"]
    """The latent of each row's output."""

    @cached_property
    def source_on_host(self) -> Int[Tensor, "rows T"]:
        """``source`` where parts are made."""
        return self.source.cpu()


@dataclass(frozen=True)
class Walks:
    """The walks of a rollout, one per plan of the round."""

    walks: Sequence[Walk]

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Entries]:
        """Parts of at most ``limit`` distinct source states; decisions with one source state stay together."""
        mask = loss_mask.cpu()
        for number, walk in enumerate(self.walks):
            rows, positions = mask[walk.first_row : walk.first_row + len(walk.source)].nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            # The limit counts forward passes: all decisions from one state share its network output.
            step = positions % walk.source.shape[1]
            states, state = torch.unique(walk.source_on_host[rows, step], return_inverse=True)
            rows, device = rows + walk.first_row, walk.source.device
            for chosen in (state // limit).argsort(stable=True).split((state // limit).bincount().tolist()):
                first = int(state[chosen[0]]) // limit * limit
                part_states, place = states[first : first + limit], state[chosen] - first
                entry = torch.empty_like(part_states).scatter_(0, place, torch.arange(len(chosen)))
                yield Entries(
                    walk=number,
                    rows=put(rows[chosen], device),
                    positions=put(positions[chosen], device),
                    states=put(part_states, device),
                    state=put(place, device),
                    entry=put(entry, device),
                    entry_rows=rows[chosen][entry].tolist(),
                )


class DenoisingPolicy:
    """Samples with a plan and a kernel, and scores the same transitions again."""

    provides = frozenset(
        {"log_probs", "shift", "std", "dt", "level", "place", "progress"}
        | {"reference.log_probs", "reference.shift", "reference.velocity_gap", "reference.kl"}
        | {"velocity_norm", "reference.velocity_norm", "displacement", "drift"}
    )
    fields = frozenset({"std", "level", "dt", "rectifier"})
    keys = frozenset({"prompt", "tree"})
    kind = "gaussian"

    def __init__(
        self,
        model: DenoisingModel,
        *,
        steps: int,
        kernel_text: str,
        plan: str,
        evaluation_steps: int,
        forward_batch_size: int,
        device: torch.device | str = "cpu",
        drawing: DenoisingModel | None = None,
        evaluation: DenoisingModel | None = None,
        completion_steps: int = 0,
        plan_per: str = "round",
        reward_drift: str = "",
    ) -> None:
        """``drawing`` and ``evaluation`` are the same network with other inputs (another scale of guidance; evaluation
        also another size), by which rollouts and evaluation samples are drawn. The old log-probs of what ``drawing``
        drew are those of ``model``, which is the policy; those of ``drawing`` are the field ``sampler_log_probs``.
        With ``completion_steps`` the states around decisions are completed in at most so many steps without noise, and
        rollouts have the fields of ``mmgrpo.advantages.step_rewards``. ``plan_per`` "prompt" draws plans anew for each
        prompt. ``reward_drift`` moves what is drawn (``mmgrpo.policies.reward_drift``).
        """
        self.model = model
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.device = torch.device(device)
        self.grid = model.grid(steps).to(self.device)
        self.evaluation_grid = (evaluation or model).grid(evaluation_steps).to(self.device)
        self.kernel: Kernel = kernel(kernel_text, model.prediction)
        self.kernel_text = kernel_text
        self.outputs = 2 if model.prediction == "drawn" else 1
        if self.outputs == 2:
            # Its std is another at every entry of the latent, where a term or an aggregation expects one per step.
            self.provides, self.fields = self.provides - {"std", "level"}, frozenset({"dt"})
        self.views = stream_views(model)
        if len(self.views) > 1:
            self.fields = self.fields | {"stream"}
        self.planner = planner(plan, lambda step, span: step_entropy(self.kernel, self.grid, step, span))
        self.plan_per = plan_per
        self.solver = Solver(model, forward_batch_size, self.device)
        self.drawing = Solver(drawing, forward_batch_size, self.device) if drawing else self.solver
        self.evaluation = Solver(evaluation, forward_batch_size, self.device) if evaluation else self.solver
        if self.drawing is not self.solver:
            self.fields = self.fields | {"sampler_log_probs"}
        self.engine: TrajectoryDrawer | None = None
        self.reward_drift = None
        if reward_drift:
            from mmgrpo.policies.reward_drift import drift_of

            self.reward_drift = drift_of(reward_drift, model)
        self.completion_steps = completion_steps
        if completion_steps:
            self.fields = self.fields | {"step_rewards", "step_values"}
        refuse_values(self.used, DECLARED)

    @property
    def used(self) -> dict[str, Any]:
        """The settings for which it stands, as far as others exclude them."""
        return {
            PROCESS: self.grid.process,
            STREAMS: "several" if len(self.views) > 1 else "",
            "sampling.policy": "transitions",
            "sampling.completion_steps": self.completion_steps,
            "sampling.rollout_guidance": "another" if self.drawing is not self.solver else 0.0,
            "rollout.engine": type(self.engine).__name__ if self.engine else "policy",
        }

    def plans(self, group_size: int, round: int, generator: torch.Generator) -> list[Plan]:
        """The plans that a generator draws for a round."""
        return self.planner(self.grid.steps, group_size, round, generator)

    def draw_plans(self, request: Request) -> tuple[list[tuple[int, Plan, list[int]]], int]:
        """The plans of a request, each with its number among a prompt's own and the places of its prompts, and how many
        plans a prompt has.

        Those of a round are equal on all ranks, since no slot enters their random stream; those of a prompt do not
        depend on the other prompts, since its slot does.
        """
        everywhere = list(range(len(request.prompts)))
        if self.plan_per == "round":
            plans = self.plans(request.group_size, request.round, stream(request.seed, "plan"))
            return [(number, plan, everywhere) for number, plan in enumerate(plans)], len(plans)
        groups: dict[tuple[int, Plan], list[int]] = {}
        count = 0
        for place, slot in enumerate(request.slots):
            plans = self.plans(request.group_size, request.round, stream(request.seed, "plan", slot))
            count = len(plans)
            for numbered in enumerate(plans):
                groups.setdefault(numbered, []).append(place)
        return [(number, plan, places) for (number, plan), places in groups.items()], count

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """One group per prompt and plan; the key ``prompt`` numbers the pairs (slot, plan).

        Raises ValueError for a kernel whose noise exceeds what the noise levels allow, before anything is sampled, and
        ``TooLarge`` for states that do.
        """
        planned, count = self.draw_plans(request)
        for _, plan, _ in planned:
            self._refuse_plan(plan)
            grid = plan.grid(self.grid)
            refuse_noise(self.kernel_text, noise_table(self.kernel, grid, self.outputs), plan.stochastic, grid)
        conditioning = self.model.encode(request.prompts)
        trajectories = self.engine.draw(request) if self.engine else [None] * len(planned)
        walks: list[Walk] = []
        previews: dict[str, list[Output]] = {}
        decisions: list[Decisions] = []
        prompt, evaluations = list[Tensor](), 0
        for index, ((number, plan, places), ready) in enumerate(zip(planned, trajectories, strict=True)):
            part, encoded, at = self._part(request, conditioning, places)
            # Rows count on over the walks of all plans, and so do nodes: equal ones are one shared decision.
            first_row = sum(len(walk.final) for walk in walks)
            if ready is None:
                walk, log_probs, drawn, end, alive = self._walk_to_end(part, plan, number, first_row, encoded)
            else:
                walk, log_probs, drawn, end, alive = self._retrace(part, plan, first_row, encoded, ready)
            prompt.append(at[walk.prompt])
            evaluations += len(places) * self._evaluations(plan)
            rows = encoded.take(walk.prompt)
            for interval in plan.intervals[1:]:
                coarse = self.drawing.denoise(self.network, end, rows, walk.grid.pick(plan.points(interval)))
                previews.setdefault(f"interval{interval}", []).extend(self.model.decode(coarse, rows))
            walks.append(walk)
            of_walk = self._decisions(part, plan, number, count, walk, log_probs, drawn, alive)
            first_node = torch.where(of_walk.decision_mask, index * NODES_PER_WALK, 0)
            decisions.append(replace(of_walk, node=of_walk.node + first_node))
        order = torch.cat(prompt)
        latents = refuse_nonfinite(torch.cat([walk.final for walk in walks]), "the sampled latents")
        return Rollout(
            prompts=[request.prompts[i] for i in order.tolist()],
            outputs=list(self.model.decode(latents, conditioning.take(order))),
            decisions=join_decisions(decisions),
            steps=Walks(walks),
            previews=previews,
            evaluations=evaluations,
            completions=self._completions([plan for _, plan, _ in planned], walks) if self.completion_steps else None,
        )

    def _refuse_plan(self, plan: Plan) -> None:
        """ValueError for a plan that prunes, or has previews, beside what reads whole groups only."""
        beside = "rollout.engine" if self.engine else "sampling.completion_steps" if self.completion_steps else ""
        if beside and (plan.prune or (self.engine and len(plan.intervals) > 1)):
            does = "prunes" if plan.prune else "has previews"
            raise ValueError(f"sampling.plan: got one that {does} with {beside}; leave out one of them")

    @torch.no_grad()
    def trajectories(self, request: Request, version: int) -> list[Trajectories]:
        """The trajectories of a request, one of each plan; of no use are plans that prune or have previews."""
        conditioning, drawn = self.model.encode(request.prompts), []
        for number, plan, places in self.draw_plans(request)[0]:
            part, encoded, _ = self._part(request, conditioning, places)
            walk, log_probs, _, _, _ = self._walk_to_end(part, plan, number, 0, encoded)
            drawn.append(Trajectories(walk.states, walk.source, walk.target, log_probs, walk.final, version))
        return drawn

    def draw_with(self, engine: TrajectoryDrawer) -> None:
        """Let an engine draw the trajectories of rollouts; evaluations stay the network's own. Old log-probs are those
        of the network, and the engine's are the field ``sampler_log_probs``."""
        self.engine, self.fields = engine, self.fields | {"sampler_log_probs"}
        refuse_values(self.used, DECLARED)

    def _part(self, request: Request, conditioning: Any, places: Sequence[int]) -> tuple[Request, Any, Tensor]:
        """The request and the conditioning of some of its prompts, and their places (on the host)."""
        at = torch.tensor(places)
        if len(places) == len(request.prompts):
            return request, conditioning, at
        of_prompts = {"prompts": [request.prompts[i] for i in places], "slots": [request.slots[i] for i in places]}
        return replace(request, **of_prompts), conditioning.take(at), at

    def _walk_to_end(
        self, request: Request, plan: Plan, number: int, first_row: int, conditioning: Any
    ) -> tuple[Walk, Float[Tensor, "rows T"], Float[Tensor, "rows T"], Float[Tensor, "rows *latent"], Int[Tensor, "_"]]:
        """``_walk`` to the end of the grid; without the history."""
        walk, log_probs, drawn, end, history, alive = self._walk(request, plan, number, first_row, conditioning)
        rows = conditioning.take(walk.prompt)
        if plan.tail == "dpmpp_2m":
            final = self.drawing.denoise_multistep(self.network, end, rows, walk.grid, plan.end, history)
        else:
            final = self.drawing.denoise(self.network, end, rows, walk.grid, plan.end)
        return replace(walk, final=final), log_probs, drawn, end, alive

    def _retrace(
        self, request: Request, plan: Plan, first_row: int, conditioning: Any, drawn: Trajectories
    ) -> tuple[Walk, Float[Tensor, "rows T"], Float[Tensor, "rows T"], Float[Tensor, "rows *latent"], Int[Tensor, "_"]]:
        """As ``_walk_to_end``, of what the engine drew."""
        assert self.engine is not None
        groups, grid = len(request.prompts), plan.grid(self.grid)
        self.engine.refuse(drawn, self.model.latent_shape(), groups * plan.rows, plan.steps)
        tensors = {name: value.to(self.device) for name, value in vars(drawn).items() if name != "version"}
        drawn = replace(drawn, **tensors)
        prompt = torch.arange(groups).repeat_interleave(plan.rows)
        means, log_probs = rescore(
            drawn,
            plan.stochastic,
            lambda x, step, row: self.solver.predict(self.network, x, step, conditioning.take(prompt[row.cpu()]), grid),
            lambda x, output, step, child: self._transition(x, output, step, grid, child),
        )
        real = torch.tensor(plan.stochastic, device=self.device).expand(len(prompt), -1)
        self.engine.compare(drawn.log_probs, log_probs, real)
        std, level = (table(self.kernel, grid, self.outputs) for table in (noise_table, level_table))
        ends = drawn.source, drawn.target, prompt
        walk = Walk(grid, std, level, first_row, drawn.states, means, *ends, conditioning, drawn.final)
        return walk, log_probs, drawn.log_probs, drawn.final, torch.arange(len(prompt), device=self.device)

    def _evaluations(self, plan: Plan) -> int:
        """Network evaluations of a prompt's group under a plan, those of completions included."""
        drawn = plan.evaluations
        if self.completion_steps:
            drawn += completion_evaluations(plan, self.completion_steps)
        scored = plan.stochastic_evaluations if self.drawing is not self.solver else 0
        return drawn * self.drawing.model.evaluations_per_row + scored * self.model.evaluations_per_row

    def _completions(self, plans: Sequence[Plan], walks: Sequence[Walk]) -> Completions:
        """The completions of the walks' states; every distinct state is completed once, by the model that draws."""
        numbered = [
            (plan, walk, *completion_stages(plan, self.completion_steps))
            for plan, walk in zip(plans, walks, strict=True)
        ]
        total = sum(len(walk.source) for walk in walks)
        rows, before, after = [], *(torch.full((total, max(plan.steps for plan in plans)), -1) for _ in range(2))
        first = 0
        for plan, walk, stages, around in numbered:
            row_numbers = walk.first_row + torch.arange(len(walk.source))
            columns = []
            for stage in stages:
                stride = plan.rows // stage.width  # rows that share a state are adjacent
                rows.append(row_numbers[::stride])
                columns.append(first + torch.arange(len(row_numbers)) // stride)
                first += len(rows[-1])
            for step, (earlier, later) in around.items():
                before[row_numbers, step] = columns[earlier]
                after[row_numbers, step] = columns[later] if later != OUTPUT else -2 - row_numbers
        after = torch.where(after < -1, first - 2 - after, after)  # outputs are numbered behind all completions

        def parts() -> Iterator[Sequence[Output]]:
            for plan, walk, stages, _ in numbered:
                for stage in stages:
                    yield self._complete(plan, walk, stage)

        numbers = (torch.cat(rows) if rows else torch.zeros(0, dtype=torch.long), before, after)
        passing, before, after = (numbers.to(self.device) for numbers in numbers)
        return Completions(parts, passing, before, after)

    @torch.no_grad()
    def _complete(self, plan: Plan, walk: Walk, stage: Stage) -> Sequence[Output]:
        chosen = slice(None, None, plan.rows // stage.width)
        states = walk.states[(walk.target if stage.after else walk.source)[chosen, stage.step]]
        rows = walk.conditioning.take(walk.prompt[chosen])
        grid = walk.grid.pick(points_to_end(stage.point, plan.steps, self.completion_steps))
        latents = self.drawing.denoise(self.network, states, rows, grid)
        return self.model.decode(refuse_nonfinite(latents, "the completed latents"), rows)

    def _walk(
        self, request: Request, plan: Plan, number: int, first_row: int, conditioning: Any
    ) -> tuple[
        Walk, Float[Tensor, "rows T"], Float[Tensor, "rows T"], Float[Tensor, "rows *latent"], History, Int[Tensor, "_"]
    ]:
        """Sample the trees of all prompts up to the plan's last stochastic step.

        Returns the walk, the log-prob of each decision under the policy and under what drew it, the states after that
        step, the history from which a tail by ``dpmpp_2m`` continues, and the rows of the plan that were not pruned,
        of which all of these are.

        ``x`` holds the distinct states of the current step, in the order of the rows that descend from them: with n
        states for ``rows`` leaves, state i belongs to the leaves i * rows / n to (i + 1) * rows / n.
        """
        groups, rows = len(request.prompts), len(request.prompts) * plan.rows
        grid = plan.grid(self.grid)
        # One stream per prompt and plan, so a group's noise depends neither on its rank nor on other groups.
        streams = [stream(request.seed, "noise", slot, number) for slot in request.slots]
        states: list[Tensor] = []
        means: list[Tensor] = []

        def store(x: Tensor, mean: Tensor) -> Int[Tensor, "n"]:
            """Append states and return their indices."""
            first = sum(map(len, states))
            states.append(x)
            means.append(mean)
            return torch.arange(first, first + len(x), device=self.device)

        def per_leaf(values: Tensor) -> Tensor:
            """The value of each leaf's state, from those of the distinct states."""
            return values.repeat_interleave(len(alive) // len(values), 0)

        x = self.solver.initial_noise(request, plan.roots)
        index, history = store(x, x), no_history(x)
        source, target = (torch.zeros(rows, plan.steps, dtype=torch.long, device=self.device) for _ in range(2))
        shape = rows, len(self.views), plan.steps
        log_probs, drawn_log_probs = (torch.zeros(shape, device=self.device) for _ in range(2))
        after_ode, alive, prune = False, torch.arange(rows, device=self.device), dict(plan.prune)
        going = torch.arange(rows)  # ``alive`` on the host
        sizes, predicted = Sizes(grid), list[Tensor]()
        for t in range(plan.end):
            # Noise is drawn for pruned rows too, so those that go on are those of a rollout without pruning.
            forwards, edges = (plan.rows, plan.rows) if prune else (plan.forwards[t], plan.edges[t])
            step = torch.full((len(x),), t, device=self.device)
            prompt = torch.arange(groups).repeat_interleave(forwards)
            prompt = prompt[going] if prune else prompt
            # Before the split, so the children of a state share one network evaluation.
            output = self.drawing.predict(self.network, x, step, conditioning.take(prompt), grid)
            if t in prune:
                rows_now = conditioning.take(prompt)
                chosen = self._survivors(request, x, output, step, grid, prompt, rows_now, prune[t])
                prompt, going, on_device = prompt[chosen], going[chosen], put(chosen, self.device)
                x, output, step, index, alive = (values[on_device] for values in (x, output, step, index, alive))
            if not plan.stochastic[t]:
                x, after_ode = self.solver.step(x, self.solver.mean(output), step, grid), True
                sizes.see(x, "the deterministic solver", t)
                continue
            if after_ode:
                # States along the ODE are never scored, so only the last one before a decision is stored.
                index, after_ode = store(x, x), False
            source[alive, t] = per_leaf(index)
            children = torch.arange(len(x), device=self.device).repeat_interleave(plan.branches[t])
            drawn = self._transition(x, output, step, grid, children)
            transition = drawn
            if self.drawing is not self.solver:
                trained = self.solver.predict(self.network, x, step, conditioning.take(prompt), grid)
                transition = self._transition(x, trained, step, grid, children)
            if t == plan.end - 1 and plan.tail == "dpmpp_2m":
                # The tail's first step needs the clean estimate of this one, whose network output ends here.
                history = estimate_of(x[children], self.solver.mean(output)[children], step[children], grid)
            predicted += [side.std.min() for side in (drawn, transition) if self.outputs == 2]
            noise = self._noise(streams, plan, forwards, edges)
            before, x = x, drawn.sample(noise[alive] if prune else noise)
            if self.reward_drift and t >= self.reward_drift.first:
                prompts = [request.prompts[i] for i in prompt.tolist()]
                arguments = before, self.solver.mean(output), step, grid, conditioning.take(prompt), prompts
                x = x + drawn.std.square() * self.reward_drift(self.model, *arguments, request.gradient)[children]
            sizes.see(x, f"sampling.kernel {self.kernel_text}", t)
            # The mean is stored too, since ``shift`` measures how far it has moved since the rollout.
            index = store(x, transition.mean)
            target[alive, t] = per_leaf(index)
            log_probs[alive, :, t] = of_leaves = per_leaf(self._log_probs(transition, x))
            drawn_log_probs[alive, :, t] = of_leaves if drawn is transition else per_leaf(self._log_probs(drawn, x))
        if predicted:
            least = torch.stack(predicted)
            Transition(least, least).refuse_zero_std("log_prob")
        sizes.refuse()
        walk = Walk(
            grid=grid,
            std=noise_table(self.kernel, grid, self.outputs),
            level=level_table(self.kernel, grid, self.outputs),
            first_row=first_row,
            states=torch.cat(states),
            means=torch.cat(means),
            source=source[alive],
            target=target[alive],
            prompt=torch.arange(groups).repeat_interleave(plan.rows)[going],
            conditioning=conditioning,
            final=x,  # until the rest of the steps are taken
        )
        return walk, log_probs[alive].flatten(1), drawn_log_probs[alive].flatten(1), x, history, alive

    def _log_probs(self, transition: Transition, x: Float[Tensor, "n *latent"]) -> Float[Tensor, "n streams"]:
        """The log-prob of each stream."""
        return torch.stack([transition.part(view).log_prob(x[:, view]) for view in self.views], 1)

    def _survivors(
        self,
        request: Request,
        x: Tensor,
        output: Tensor,
        step: Tensor,
        grid: Grid,
        prompt: Tensor,
        rows: Any,
        count: int,
    ) -> Int[Tensor, "_"]:
        """Places of the ``count`` states of each prompt that go on, judged by their clean estimates; places and prompts
        are on the host."""
        if request.judge is None:
            raise ValueError("sampling.plan: it prunes samples by their rewards, of which this request has none")
        to_end = grid.pick([int(step[0]), grid.steps])
        clean = self.solver.step(x, self.solver.mean(output), torch.zeros_like(step), to_end)
        outputs = self.model.decode(refuse_nonfinite(clean, "the clean estimates"), rows)
        values = request.judge([request.prompts[i] for i in prompt.tolist()], outputs).double().cpu()
        return most_varied(values, prompt, count)

    def _transition(self, x: Tensor, output: Tensor, step: Tensor, grid: Grid, children: Tensor) -> Transition:
        """The transitions of the children of states, from the network's output for the states. No std is read here:
        ``refuse_noise`` has seen it, or ``_walk`` sees at its end what the network predicted. A later prediction of 0
        has a log-prob that is not finite, which no update takes."""
        parents = self.kernel(x, output, step, grid)
        return Transition(parents.mean[children], parents.std[children], parents.scaled, noisy=True)

    def _slope(self, x: Tensor, output: Tensor, step: Tensor, grid: Grid, children: Tensor) -> Tensor:
        """d mean / d output of the children's transitions, in which every kernel is linear."""
        zero = torch.zeros_like(output)
        unit, none = (self._transition(x, outputs, step, grid, children).mean for outputs in (zero + 1, zero))
        return unit - none

    def _decisions(
        self,
        request: Request,
        plan: Plan,
        number: int,
        plans: int,
        walk: Walk,
        log_probs: Float[Tensor, "rows T"],
        drawn_log_probs: Float[Tensor, "rows T"],
        alive: Int[Tensor, " rows"],
    ) -> Decisions:
        """The decisions of a walk, the ``number``-th of ``plans`` in the round, of its rows ``alive``."""
        rows, streams = len(log_probs), len(self.views)
        stochastic = put(torch.tensor(plan.stochastic * streams), self.device).expand(rows, -1)
        loss_mask = torch.cat([plan.loss_mask(stream(request.seed, "subset", slot, number)) for slot in request.slots])
        # Each plan explores another step, so the samples of a prompt under several plans are separate groups.
        groups = put(torch.tensor(request.slots), self.device) * plans + number
        trees = (groups[:, None] * plan.roots + torch.arange(plan.roots, device=self.device)).flatten()
        dt = walk.grid.dt(torch.arange(plan.steps, device=self.device))
        per_step = {"std": walk.std, "level": walk.level, "dt": dt, **self._rectifier(walk.grid)}
        per_step = {name: value.repeat(streams) for name, value in per_step.items()}
        per_step |= {"sampler_log_probs": drawn_log_probs, "stream": self._stream(plan.steps)}
        return Decisions(
            log_probs=log_probs,
            loss_mask=put(loss_mask, self.device)[alive].repeat(1, streams),
            decision_mask=stochastic,
            node=torch.where(stochastic, self._nodes(walk), 0),
            origin=torch.full((rows,), OWN, device=self.device),
            keys={
                "prompt": groups.repeat_interleave(plan.rows)[alive],
                "tree": trees.repeat_interleave(plan.rows // plan.roots)[alive],
            },
            fields={name: value.expand(rows, -1) for name, value in per_step.items() if name in self.fields},
        )

    def _stream(self, steps: int) -> Float[Tensor, " T"]:
        """The number of the stream at each position."""
        return torch.arange(len(self.views), device=self.device).repeat_interleave(steps).float()

    def _nodes(self, walk: Walk) -> Int[Tensor, "rows T"]:
        """Numbers of decisions: rows that share a transition share the state that it drew, of which every stream is one
        decision."""
        streams = len(self.views)
        return walk.target.repeat(1, streams) * streams + self._stream(walk.target.shape[1]).long()

    def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> Scores:
        """Score the part's transitions again; one forward pass per distinct state."""
        walk: Walk = rollout.steps.walks[part.walk]  # type: ignore[attr-defined]
        rows, inverse, steps = part.rows - walk.first_row, part.state, walk.source.shape[1]
        places, streams = part.positions % steps, part.positions // steps
        target = walk.target[rows, places]
        prompt = walk.prompt[torch.tensor(part.entry_rows) - walk.first_row]
        step, conditioning = places[part.entry], walk.conditioning.take(prompt)

        def of_stream(measure: Callable[..., Float[Tensor, " N"]], *given: Tensor | Transition) -> Float[Tensor, " N"]:
            """What is measured of each decision's own stream in what is given."""
            parts = [[t.part(v) if isinstance(t, Transition) else t[:, v] for t in given] for v in self.views]
            values = [measure(*part) for part in parts]
            return values[0] if len(values) == 1 else torch.stack(values, 1).gather(1, streams[:, None])[:, 0]

        x, next_state = walk.states[part.states], walk.states[target]

        output = self.solver.predict(self.network, x, step, conditioning, walk.grid)
        now = self._transition(x, output, step, walk.grid, inverse)
        scores: Scores = {"log_probs": of_stream(Transition.log_prob, now, next_state)}
        if "shift" in names:
            scores["shift"] = of_stream(mean_square, now.mean - walk.means[target])
        if "displacement" in names or "drift" in names:
            moved = (now.mean - walk.means[target]) / self._slope(x, output, step, walk.grid, inverse)
            away = apart(walk.final, walk.prompt)[rows]
            scores["displacement"] = of_stream(lambda move, other: over_latent(move * normalize(other)), moved, away)
            scores["drift"] = of_stream(mean_square, moved)
        if "std" in names:
            scores["std"] = walk.std[places]
        if "level" in names:
            scores["level"] = walk.level[places]
        if "place" in names or "progress" in names:
            passed = rollout.decisions.decision_mask[part.rows, :steps]
            before = passed.cumsum(1).gather(1, places[:, None])[:, 0] - 1
            last = passed.sum(1) - 1
            scores["place"] = before.float()
            scores["progress"] = torch.where(last > 0, before / last.clamp(min=1), 1.0)
        if "dt" in names:
            scores["dt"] = walk.grid.dt(places)
        norm = of_stream(lambda v: norm_of(v)[inverse], self.solver.mean(output))
        scores["velocity_norm"] = norm if "velocity_norm" in names else norm.detach()  # for the metric velocity/norm
        for other in networks_of(names):
            tasks = [rollout.prompts[row].task for row in part.entry_rows]
            original = self.networks.evaluate(
                other,
                tasks,
                lambda network, i: self.solver.predict(
                    network, x[put(i, x.device)], step[put(i, x.device)], conditioning.take(i), walk.grid
                ),
            )
            transition = self._transition(x, original, step, walk.grid, inverse)
            scores[f"{other}.log_probs"] = of_stream(Transition.log_prob, transition, next_state)
            scores[f"{other}.shift"] = of_stream(mean_square, now.mean - transition.mean)
            scores[f"{other}.velocity_gap"] = of_stream(lambda v: mean_square(v)[inverse], output - original)
            if f"{other}.velocity_norm" in names or other == REFERENCE_NETWORK:  # for the metric velocity/norm_ratio
                scores[f"{other}.velocity_norm"] = of_stream(lambda v: norm_of(v)[inverse], self.solver.mean(original))
            if f"{other}.kl" in names:
                scores[f"{other}.kl"] = of_stream(Transition.kl, now, transition)
        return scores

    @property
    def answer_kind(self) -> str:
        """What the samples are; empty where no image or video can be given."""
        return self.model.kind if isinstance(self.model, GivenOutputs) and self.outputs == 1 else ""

    def pack(self, rollout: Rollout, rows: Sequence[int]) -> list[Record]:
        """Some trajectories: the states at both ends of their decisions, with means, log-probs and levels.

        A decision that several rows share is trained with each of them once it is stored.
        """
        walks: Walks = rollout.steps  # type: ignore[assignment]
        decisions, records = rollout.decisions, []
        trained = torch.isin(decisions.node, decisions.node[decisions.loss_mask]) & decisions.decision_mask
        for row in rows:
            walk = next(walk for walk in walks.walks if walk.first_row <= row < walk.first_row + len(walk.source))
            place, steps = row - walk.first_row, walk.grid.steps
            mask = decisions.decision_mask[row, :steps]
            ends = torch.stack([walk.source[place], walk.target[place]])
            distinct, index = torch.unique(ends[:, mask], return_inverse=True)
            numbers = {"states": walk.states[distinct], "means": walk.means[distinct], "final": walk.final[place]}
            numbers |= {"ends": torch.zeros_like(ends).masked_scatter(mask.expand(2, -1), index)}
            numbers |= {"levels": walk.grid.levels, "times": walk.grid.times, "decision_mask": mask}
            everywhere = slice(steps * len(self.views))
            numbers["log_probs"] = decisions.log_probs[row, everywhere]
            numbers["loss_mask"] = trained[row, everywhere]
            numbers |= {name: v[row, everywhere] for name, v in decisions.fields.items() if name in self.fields}
            records.append({name: value.detach().cpu().clone() for name, value in numbers.items()})
        return records

    def answers(self, prompts: Sequence[Prompt], count: int = 1) -> list[list[Record]]:
        """The latents of the best ``count`` images or videos that each prompt is given."""
        return given_records(self.model, prompts, count)

    @torch.no_grad()
    def unpack(
        self, prompts: Sequence[Prompt], records: Sequence[Record], slots: Sequence[int], origin: int, request: Request
    ) -> Rollout:
        """A rollout of stored trajectories, one per prompt. A given output gets one that the kernel draws towards it
        (``_towards``)."""
        (distinct, places), device = distinct_prompts(prompts), self.device
        encoded = self.model.encode(distinct)
        whole = [
            self._towards(record["clean"], stream(request.seed, "towards", slot, row)) if "clean" in record else record
            for row, (record, slot) in enumerate(zip(records, slots, strict=True))
        ]
        runs: list[list[int]] = []  # adjacent rows of one grid are scored together
        for row, record in enumerate(whole):
            names = ("levels", "times")
            if not runs or any(not torch.equal(record[name], whole[runs[-1][0]][name]) for name in names):
                runs.append([])
            runs[-1].append(row)
        walks: list[Walk] = []
        decisions: list[Decisions] = []
        for run in runs:
            some = [{name: value.to(device) for name, value in whole[row].items()} for row in run]
            grid = replace(self.grid, levels=some[0]["levels"], times=some[0]["times"])
            first = torch.tensor([0, *(len(record["states"]) for record in some)]).cumsum(0).tolist()
            ends = torch.stack([record["ends"] + start for record, start in zip(some, first)])
            walk = Walk(
                grid=grid,
                std=noise_table(self.kernel, grid, self.outputs),
                level=level_table(self.kernel, grid, self.outputs),
                first_row=run[0],
                states=torch.cat([record["states"] for record in some]),
                means=torch.cat([record["means"] for record in some]),
                source=ends[:, 0],
                target=ends[:, 1],
                prompt=torch.tensor([places[row] for row in run]),
                conditioning=encoded,
                final=torch.stack([record["final"] for record in some]),
            )
            mask = torch.stack([record["decision_mask"] for record in some]).repeat(1, len(self.views))
            keys = torch.tensor([slots[row] for row in run], device=device)
            zeros = torch.zeros(mask.shape[1], device=device)
            fields = {name for name in self.fields if all(name in record for record in some)}
            of_walk = Decisions(
                log_probs=torch.stack([record.get("log_probs", zeros) for record in some]),
                loss_mask=torch.stack([record["loss_mask"] for record in some]),
                decision_mask=mask,
                node=torch.where(mask, self._nodes(walk) + len(walks) * NODES_PER_WALK, 0),
                origin=torch.full((len(run),), origin, device=device),
                keys={"prompt": keys, "tree": keys},
                fields={name: torch.stack([record[name] for record in some]) for name in fields},
            )
            decisions.append(of_walk)
            walks.append(walk)
        final, rows = torch.cat([walk.final for walk in walks]), encoded.take(torch.tensor(places))
        return Rollout(list(prompts), list(self.model.decode(final, rows)), join_decisions(decisions), Walks(walks))

    def _towards(self, clean: Float[Tensor, "*latent"], generator: torch.Generator) -> Record:
        """A trajectory of every step of the grid that ends in a given latent: the network's output is replaced by the
        one whose clean estimate is that latent, and the kernel draws as ever.

        Its transitions are those of the process given its end, so their likelihood is, up to a constant, the
        error of the network's output, weighed as the kernel weighs it.
        """
        end, shape = self.grid.steps, clean.shape
        clean, x = clean.to(self.device)[None], torch.randn(1, *shape, generator=generator).to(self.device)
        states, means = [x], [x]
        for t in range(end):
            step = torch.tensor([t], device=self.device)
            output = output_towards(clean, x, step, self.grid, self.model.prediction)
            if t == end - 1:
                x = self.solver.step(x, output, step, self.grid)
                continue
            drawn = self.kernel(x, output, step, self.grid)
            x = drawn.sample(torch.randn(1, *shape, generator=generator).to(self.device))
            states.append(x)
            means.append(drawn.mean)
        drawn = torch.arange(end, device=self.device) < end - 1
        at = torch.arange(end, device=self.device)
        std, level = (table(self.kernel, self.grid) for table in (noise_table, level_table))
        record = {"states": torch.cat(states), "means": torch.cat(means), "final": x[0], "decision_mask": drawn}
        record |= {"ends": torch.stack([at, at + 1]) * drawn, "loss_mask": drawn & (std > 0)}
        record |= {"levels": self.grid.levels, "times": self.grid.times}
        return record | {"std": std, "level": level, "dt": self.grid.dt(at), **self._rectifier(self.grid)}

    def _rectifier(self, grid: Grid) -> dict[str, Tensor]:
        return {"rectifier": rectifier_table(self.kernel, grid)} if "rectifier" in self.fields else {}

    def sample(self, request: Request) -> list[Output]:
        """Sample with the deterministic solver from noise that depends on the seed and the slot."""
        return self.evaluation.sample(self.network, request, self.evaluation_grid)[0]

    def keep_reference(self) -> None:
        """Store the present network as the reference of KL terms."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)
        share(folder)

    def _noise(
        self, streams: Sequence[torch.Generator], plan: Plan, forwards: int, edges: int
    ) -> Float[Tensor, "edges *latent"]:
        """Noise of one stochastic step, each prompt's from its own stream; correlated among the children of a split."""
        shape = self.model.latent_shape()
        noises = []
        for generator in streams:
            noise = torch.randn(edges, *shape, generator=generator)  # on the CPU, so devices do not matter
            if edges > forwards:
                shared = torch.randn(forwards, *shape, generator=generator)
                noise = sibling_noise(shared.repeat_interleave(edges // forwards, 0), noise, plan.sibling_scale)
            noises.append(noise)
        return put(torch.cat(noises), self.device)
