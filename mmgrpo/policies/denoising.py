"""A policy whose decisions are the Gaussian transitions of a denoising process.

A rollout walks a tree per group: it starts from ``plan.roots`` initial noises and splits where the
plan says so; a group that never splits is ``group_size`` single branches. What branches share is
computed once, stored once and trained once:

    roots --ODE--> x_k --split into G--> x_{k+1} --ODE--> G outputs        (one-step branch)

    forward passes of the network     one per distinct state x_t
    decisions                         one per distinct pair (x_t, x_{t+1})

States are kept in fp32, exactly as they were scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.diffusion.kernels import (
    History,
    Kernel,
    Transition,
    estimate_of,
    kernel,
    level_table,
    no_history,
    noise_table,
    over_latent,
    sibling_noise,
)
from mmgrpo.diffusion.ode import DenoisingModel, Solver
from mmgrpo.diffusion.plan import Plan
from mmgrpo.diffusion.planners import PLANS
from mmgrpo.diffusion.schedules import Grid
from mmgrpo.registry import Bound, bind
from mmgrpo.runtime.distributed import join_decisions
from mmgrpo.runtime.randomness import stream
from mmgrpo.types import OWN, Decisions, Output, Request, Rollout, Scores

NODES_PER_WALK = 1 << 32
"""Decision numbers of different walks of a rollout never meet."""


@dataclass(frozen=True)
class Entries:
    """Decisions of one walk that are scored together."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    walk: int


@dataclass(frozen=True)
class Walk:
    """What is kept of the trees of one plan: the states that decisions lead from and to."""

    grid: Grid
    std: Float[Tensor, " T"]
    level: Float[Tensor, " T"]
    first_row: int
    """Place of its first row in the rollout; the indices below count from there."""
    states: Float[Tensor, "S *latent"]
    means: Float[Tensor, "S *latent"]
    """Mean of the transition that drew each state; unused where no decision did."""
    before: Int[Tensor, "rows T"]
    after: Int[Tensor, "rows T"]
    prompt: Int[Tensor, " rows"]
    conditioning: Any


@dataclass(frozen=True)
class Walks:
    """The walks of a rollout, one for each plan of the round."""

    walks: Sequence[Walk]

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Entries]:
        """Parts of at most ``limit`` distinct states; decisions that lead from one state stay together."""
        for number, walk in enumerate(self.walks):
            own = slice(walk.first_row, walk.first_row + len(walk.before))
            rows, positions = loss_mask[own].nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            _, state = torch.unique(walk.before[rows, positions], return_inverse=True)
            for start in range(0, int(state.max()) + 1, limit):
                chosen = (state >= start) & (state < start + limit)
                yield Entries(rows[chosen] + walk.first_row, positions[chosen], number)


class DenoisingPolicy:
    """Samples by a plan and a kernel, and scores the same transitions again."""

    provides = frozenset(
        {"log_probs", "shift", "std", "dt", "level"}
        | {"reference_log_probs", "reference_shift", "reference_velocity_gap"}
    )
    fields = frozenset({"std", "level", "dt"})
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
    ) -> None:
        self.model = model
        self.network = model.network
        self.settings: Any = None
        self.device = torch.device(device)
        self.grid = model.grid(steps).to(self.device)
        self.evaluation_grid = model.grid(evaluation_steps).to(self.device)
        self.kernel: Kernel = kernel(kernel_text)
        self.planner: Bound = bind(plan, PLANS, "sampling.plan")
        self.solver = Solver(model, forward_batch_size, self.device)

    def plans(self, group_size: int, round: int, seed: int) -> list[Plan]:
        """The plans of a round: the same on all ranks."""
        inputs = {
            "steps": self.grid.steps,
            "group_size": group_size,
            "round": round,
            "generator": stream(seed, "plan"),
        }
        return self.planner(inputs)

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """One group per prompt and plan; the prompt key numbers (slot, plan)."""
        plans = self.plans(request.group_size, request.round, request.seed)
        conditioning = self.model.encode(request.prompts)
        walks: list[Walk] = []
        finals: list[Tensor] = []
        previews: dict[str, list[Output]] = {}
        decisions: list[Decisions] = []
        for number, plan in enumerate(plans):
            first_row = sum(len(final) for final in finals)
            walk, made, end, history = self._walk(request, plan, number, len(plans), first_row, conditioning)
            rows = conditioning.take(walk.prompt)
            if plan.tail == "dpmpp_2m":
                finals.append(self.solver.denoise_multistep(self.network, end, rows, walk.grid, plan.end, history))
            else:
                finals.append(self.solver.denoise(self.network, end, rows, walk.grid, plan.end))
            for interval in plan.intervals[1:]:
                coarse = self.solver.denoise(self.network, end, rows, walk.grid.pick(plan.points(interval)))
                previews.setdefault(f"interval{interval}", []).extend(self.model.decode(coarse))
            walks.append(walk)
            decisions.append(made)
        prompts = [request.prompts[i] for walk in walks for i in walk.prompt.tolist()]
        evaluations = len(request.prompts) * sum(plan.evaluations for plan in plans)
        return Rollout(
            prompts=prompts,
            outputs=list(self.model.decode(torch.cat(finals))),
            decisions=join_decisions(decisions),
            steps=Walks(walks),
            previews=previews,
            evaluations=evaluations * self.model.evaluations_per_row,
        )

    def _walk(
        self, request: Request, plan: Plan, number: int, plans: int, first_row: int, conditioning: Any
    ) -> tuple[Walk, Decisions, Float[Tensor, "rows *latent"], History]:
        """Walk the trees of all prompts to the plan's last stochastic step.

        Also the samples after it and, for a tail by ``dpmpp_2m``, the clean estimates that it drew them from.
        """
        groups, rows = len(request.prompts), len(request.prompts) * plan.rows
        grid = plan.grid(self.grid)
        std, level = noise_table(self.kernel, grid), level_table(self.kernel, grid)
        streams = [stream(request.seed, "noise", slot, number) for slot in request.slots]
        x = self.solver.initial_noise(request, plan.roots)
        states, means = [x], [x]
        count, here = len(x), torch.arange(len(x), device=self.device)
        before, after = (torch.zeros(rows, plan.steps, dtype=torch.long, device=self.device) for _ in range(2))
        log_probs = torch.zeros(rows, plan.steps, device=self.device)
        kept, history = True, no_history(x)
        for t in range(plan.end):
            forwards, edges = plan.forwards[t], plan.edges[t]
            step = torch.full((len(x),), t, device=self.device)
            prompt = torch.arange(groups, device=self.device).repeat_interleave(forwards)
            output = self.solver.predict(self.network, x, step, conditioning.take(prompt), grid)
            if not plan.stochastic[t]:
                x, kept = self.solver.step(x, output, step, grid), False
                continue
            if not kept:
                states.append(x)
                means.append(x)
                here = torch.arange(count, count + len(x), device=self.device)
                count += len(x)
            before[:, t] = here.repeat_interleave(rows // len(here))
            drawn = self.kernel(x, output, step, grid)
            children = torch.arange(len(x), device=self.device).repeat_interleave(plan.branches[t])
            drawn = Transition(drawn.mean[children], drawn.std[children], drawn.scaled)
            if t == plan.end - 1 and plan.tail == "dpmpp_2m":
                history = estimate_of(x[children], output[children], step[children], grid)
            x = drawn.sample(self._noise(streams, plan, forwards, edges))
            states.append(x)
            means.append(drawn.mean)
            here = torch.arange(count, count + len(x), device=self.device)
            count, kept = count + len(x), True
            after[:, t] = here.repeat_interleave(rows // len(here))
            log_probs[:, t] = drawn.log_prob(x).repeat_interleave(rows // len(here))
        walk = Walk(
            grid=grid,
            std=std,
            level=level,
            first_row=first_row,
            states=torch.cat(states),
            means=torch.cat(means),
            before=before,
            after=after,
            prompt=torch.arange(groups, device=self.device).repeat_interleave(plan.rows),
            conditioning=conditioning,
        )
        stochastic = torch.tensor(plan.stochastic, device=self.device).expand(rows, -1)
        loss_mask = torch.cat([plan.loss_mask(stream(request.seed, "subset", slot, number)) for slot in request.slots])
        slots = torch.tensor(list(request.slots), device=self.device)
        steps = torch.arange(plan.steps, device=self.device)
        trees = (
            (slots * plans + number)[:, None] * plan.roots + torch.arange(plan.roots, device=self.device)
        ).flatten()
        made = Decisions(
            log_probs=log_probs,
            loss_mask=loss_mask.to(self.device),
            decision_mask=stochastic,
            node=torch.where(stochastic, after + number * NODES_PER_WALK, 0),
            origin=torch.full((rows,), OWN, device=self.device),
            keys={
                "prompt": (slots * plans + number).repeat_interleave(plan.rows),
                "tree": trees.repeat_interleave(plan.rows // plan.roots),
            },
            fields={
                "std": std.expand(rows, -1),
                "level": level.expand(rows, -1),
                "dt": grid.dt(steps).expand(rows, -1),
            },
        )
        return walk, made, x, history

    def score(self, rollout: Rollout, part: Entries, names: frozenset[str]) -> Scores:
        """Score the part's transitions again; one forward pass per distinct state."""
        walk: Walk = rollout.steps.walks[part.walk]  # type: ignore[attr-defined]
        rows = part.rows - walk.first_row
        before, after = walk.before[rows, part.positions], walk.after[rows, part.positions]
        distinct, inverse = torch.unique(before, return_inverse=True)
        # Any decision that leads from a state tells its step and its prompt.
        some = torch.empty_like(distinct).scatter_(0, inverse, torch.arange(len(before), device=before.device))
        step, conditioning = part.positions[some], walk.conditioning.take(walk.prompt[rows[some]])
        x, reached = walk.states[distinct], walk.states[after]

        def transition(output: Tensor) -> Transition:
            made = self.kernel(x, output, step, walk.grid)
            return Transition(made.mean[inverse], made.std[inverse], made.scaled)

        output = self.solver.predict(self.network, x, step, conditioning, walk.grid)
        now = transition(output)
        scores: Scores = {"log_probs": now.log_prob(reached)}
        if "shift" in names:
            scores["shift"] = over_latent((now.mean - walk.means[after]).square())
        if "std" in names:
            scores["std"] = walk.std[part.positions]
        if "level" in names:
            scores["level"] = walk.level[part.positions]
        if "dt" in names:
            scores["dt"] = walk.grid.dt(part.positions)
        if any(name.startswith("reference_") for name in names):
            with torch.no_grad(), self.model.reference() as network:
                original = self.solver.predict(network, x, step, conditioning, walk.grid)
            reference = transition(original)
            scores["reference_log_probs"] = reference.log_prob(reached)
            scores["reference_shift"] = over_latent((now.mean - reference.mean).square())
            scores["reference_velocity_gap"] = over_latent((output - original).square())[inverse]
        return scores

    def sample(self, request: Request) -> list[Output]:
        """Draw by the deterministic solver, from noise that depends on the seed and the slot."""
        return self.solver.sample(self.network, request, self.evaluation_grid)[0]

    def keep_reference(self) -> None:
        """Keep the network as it is now, for terms that compare with it."""
        self.model.reference.keep()

    def save(self, folder: Path) -> None:
        """Write the network in its family's own format."""
        self.model.save(folder, self.network)

    def _noise(
        self, streams: Sequence[torch.Generator], plan: Plan, forwards: int, edges: int
    ) -> Float[Tensor, "edges *latent"]:
        """Noise of one stochastic step, each prompt from its own stream; siblings share some of it."""
        shape = self.model.latent_shape()
        drawn = []
        for generator in streams:
            own = torch.randn(edges, *shape, generator=generator)
            if edges > forwards:
                shared = torch.randn(forwards, *shape, generator=generator)
                own = sibling_noise(shared.repeat_interleave(edges // forwards, 0), own, plan.sibling_scale)
            drawn.append(own)
        return torch.cat(drawn).to(self.device)
