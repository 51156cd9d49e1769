"""A policy whose decisions are which of a group's samples a deterministic step comes nearest to: Neighbor GRPO.

The samples of a group begin at neighbouring noises, e_i = sqrt(1 - spread^2) e* + spread d_i, and follow the ODE. At a
trained step t one of them, the anchor k, takes the step again with the present weights to x; the policy of that step is

    pi(i) = softmax_i( -|x_i(t + 1) - x|^2 / temperature )

over the G members, so one network evaluation gives a ratio for each of their advantages. A decision of row i is a
pair of step and anchor, and its log-prob is ln pi(i). There is no SDE and no density of a transition.

Neighbor GRPO, arXiv:2511.16955, equations 7 to 11: spread .3, 4 anchors of 12 samples, 8 steps, of which 4 were derived
from its numbers of evaluations. The distance is a sum over the latent; no scale was found, and at the size of image
latents a temperature of 1 leaves the anchor alone, with a probability of 1 and no gradient: watch
``rollout/neighbor_entropy`` (ln G is the largest). The paper draws rollouts with DPM-Solver++, here both are
first-order steps, so the ratio begins at one without a further evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.config.registry import networks_of
from mmgrpo.diffusion.ode import DenoisingModel, Solver
from mmgrpo.diffusion.schedules import Sizes
from mmgrpo.files import share
from mmgrpo.policies.denoising import norm_of
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.runtime.networks import Networks
from mmgrpo.types import OWN, Decisions, Output, Request, Rollout, Scores


def nearness(
    members: Float[Tensor, "N G *latent"], x: Float[Tensor, "N *latent"], temperature: float
) -> Float[Tensor, "N G"]:
    """ln pi of every member: the log-softmax of -|x_i - x|^2 / temperature, a sum over the latent.

    Members (0, 0), (.3, .1), (-.2, .4) and x = (.05, .02): pi = .363426, .340214, .296360.
    """
    distance = (members - x[:, None]).flatten(2).square().sum(2)
    return (-distance / temperature).log_softmax(1)


@dataclass(frozen=True)
class Nearest:
    """Entries of a part, and the steps of anchors (network evaluations) that they need."""

    rows: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]
    group: Int[Tensor, "E"]
    """Group of each evaluation."""
    position: Int[Tensor, "E"]
    """Position of its decisions."""
    evaluation: Int[Tensor, "N"]
    """Which of them each entry needs."""
    groups: Sequence[int]
    """``group`` on the host."""


@dataclass(frozen=True)
class Trajectories:
    """The states of all samples, and the steps and anchors of each group's decisions."""

    states: Float[Tensor, "points rows *latent"]
    step: Int[Tensor, "groups T"]
    anchor: Int[Tensor, "groups T"]
    """Row of the sample that takes the step again."""
    members: Int[Tensor, "groups G"]
    group: Int[Tensor, " rows"]
    """On the host."""
    conditioning: Any

    def split(self, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[Nearest]:
        """Parts of at most ``limit`` network evaluations; the members of a group share that of an anchor."""
        (rows, positions), width = loss_mask.cpu().nonzero(as_tuple=True), self.step.shape[1]
        distinct, number = torch.unique(self.group[rows] * width + positions, return_inverse=True)
        for start in range(0, len(distinct), limit):
            chosen, evaluations = (number // limit == start // limit).nonzero()[:, 0], distinct[start : start + limit]
            group = evaluations // width
            parts = rows[chosen], positions[chosen], group, evaluations % width, number[chosen] - start
            yield Nearest(*(put(tensor, self.step.device) for tensor in parts), groups=group.tolist())


class NeighborPolicy:
    """Samples of neighbouring noises by the ODE, and the softmax of their distances to an anchor's step."""

    provides = frozenset({"log_probs", "reference.log_probs", "velocity_norm"})
    fields = frozenset({"neighbor_entropy"})
    keys = frozenset({"prompt"})
    kind = "neighbors"

    def __init__(
        self,
        model: DenoisingModel,
        *,
        steps: int,
        draws: int,
        anchors: int,
        spread: float,
        temperature: float,
        evaluation_steps: int,
        forward_batch_size: int,
        device: torch.device | str = "cpu",
        evaluation: DenoisingModel | None = None,
    ) -> None:
        """``draws`` steps of every group are trained, with ``anchors`` of its samples each."""
        if not 1 <= draws <= steps:
            raise ValueError(f"sampling.draws: got {draws}, expected 1 to sampling.steps={steps}")
        self.model = model
        self.network, self.networks = model.network, Networks(model)
        self.settings: Any = None
        self.device = torch.device(device)
        self.grid = model.grid(steps).to(self.device)
        self.evaluation_grid = (evaluation or model).grid(evaluation_steps).to(self.device)
        self.solver = Solver(model, forward_batch_size, self.device)
        self.evaluation = Solver(evaluation, forward_batch_size, self.device) if evaluation else self.solver
        self.draws, self.anchors, self.spread, self.temperature = draws, anchors, spread, temperature

    @torch.no_grad()
    def rollout(self, request: Request) -> Rollout:
        """``group_size`` samples per prompt, and the steps and anchors of each group."""
        size, groups = request.group_size, len(request.prompts)
        if not 1 <= self.anchors <= size:
            raise ValueError(f"sampling.anchors: got {self.anchors}, expected 1 to the group size {size}")
        group = torch.arange(groups).repeat_interleave(size)
        conditioning = self.model.encode(request.prompts).take(group)
        x = put(torch.cat([self.noises(request, slot) for slot in request.slots]), self.device)
        states, sizes = [x], Sizes(self.grid)
        for t in range(self.grid.steps):
            step = torch.full((len(x),), t, device=self.device)
            x = self.advance(self.network, x, step, conditioning)[0]
            sizes.see(x, "the deterministic solver", t)
            states.append(x)
        sizes.refuse()
        streams = [stream(request.seed, "neighbors", slot) for slot in request.slots]
        chosen = torch.stack([torch.randperm(self.grid.steps, generator=s)[: self.draws] for s in streams])
        anchors = torch.stack([torch.randperm(size, generator=s)[: self.anchors] for s in streams])
        members = torch.arange(groups * size, device=self.device).view(groups, size)
        steps = Trajectories(
            torch.stack(states),
            put(chosen.repeat_interleave(self.anchors, 1), self.device),
            members.gather(1, put(anchors, self.device)).repeat(1, self.draws),
            members,
            group,
            conditioning,
        )
        # The anchor's own next state is its step with the weights of the rollout.
        later = steps.states[1:].transpose(0, 1)
        at_step = later[steps.anchor, steps.step].flatten(0, 1)
        around = later[members[:, None], steps.step[..., None]].flatten(0, 1)
        log_probs = nearness(around, at_step, self.temperature).view(groups, -1, size)
        entropy = -(log_probs.exp() * log_probs).sum(2)[put(group, self.device)]
        mask = torch.ones(len(group), log_probs.shape[1], dtype=torch.bool, device=self.device)
        decisions = Decisions(
            log_probs=log_probs.transpose(1, 2).reshape(len(group), -1).contiguous(),
            loss_mask=mask,
            decision_mask=mask,
            node=torch.arange(mask.numel(), device=self.device).view(mask.shape),
            origin=torch.full((len(group),), OWN, device=self.device),
            keys={"prompt": put(torch.tensor(request.slots)[group], self.device)},
            fields={"neighbor_entropy": entropy},
        )
        latents = refuse_nonfinite(x, "the sampled latents")
        return Rollout(
            prompts=[request.prompts[index] for index in group.tolist()],
            outputs=list(self.model.decode(latents, conditioning)),
            decisions=decisions,
            steps=steps,
            evaluations=len(group) * self.grid.steps * self.model.evaluations_per_row,
        )

    def noises(self, request: Request, slot: int) -> Float[Tensor, "G *latent"]:
        """sqrt(1 - spread^2) e* + spread d_i, of unit variance, from the prompt's own random stream."""
        drawn = torch.randn(
            1 + request.group_size, *self.model.latent_shape(), generator=stream(request.seed, "start", slot)
        )
        return math.sqrt(1 - self.spread**2) * drawn[:1] + self.spread * drawn[1:]

    def advance(self, network: nn.Module, x: Tensor, step: Tensor, conditioning: Any) -> tuple[Tensor, Tensor]:
        """The states after a step without noise, and the network's output."""
        output = self.solver.predict(network, x, step, conditioning, self.grid)
        return self.solver.step(x, output, step, self.grid), output

    def score(self, rollout: Rollout, part: Nearest, names: frozenset[str]) -> Scores:
        """ln pi of the part's decisions again; one forward pass per step and anchor."""
        steps: Trajectories = rollout.steps  # type: ignore[assignment]
        group, position, inverse = part.group, part.position, part.evaluation
        step, anchor = steps.step[group, position], steps.anchor[group, position]
        x, around = steps.states[step, anchor], steps.states[step[:, None] + 1, steps.members[group]]
        first = torch.tensor(part.groups) * steps.members.shape[1]  # the conditioning of an anchor is its group's
        conditioning, place = steps.conditioning.take(first), part.rows - steps.members[group[inverse], 0]

        def log_probs(after: Tensor) -> Tensor:
            return nearness(around, after, self.temperature)[inverse, place]

        after, output = self.advance(self.network, x, step, conditioning)
        norm = norm_of(output)[inverse]
        scores: Scores = {"log_probs": log_probs(after)}
        scores["velocity_norm"] = norm if "velocity_norm" in names else norm.detach()
        for other in networks_of(names):
            tasks = [rollout.prompts[row].task for row in first.tolist()]
            original = self.networks.evaluate(
                other,
                tasks,
                lambda network, i: self.advance(
                    network, x[put(i, x.device)], step[put(i, x.device)], conditioning.take(i)
                )[0],
            )
            scores[f"{other}.log_probs"] = log_probs(original)
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
