"""From advantages to one optimizer step.

    ratio = exp(log_prob_now - log_prob_then)        [B, T]
    loss  = -min(ratio * A, clip(ratio) * A)         [B, T]
    total = sum(weights * (loss + terms))            weights cover the whole optimizer step, over all ranks

The sum is cut into parts that fit in memory; because the weights are made before, the cut never
changes the gradient. What a data set supplied (rows of origin GIVEN) has an objective of its own, without
a clip, for it was never near the policy. An objective that looks at a whole row or group is not additive over parts:
its gradient with respect to the scores is taken first, on all scores at once, and then carried
through the network part by part (the chain rule, so the same gradient again).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.registry import Bound, bind
from mmgrpo.types import REFERENCE, Decisions, Part, Policy, Rollout

BATCH_NAMES = frozenset(
    {"old_log_probs", "advantages", "loss_mask", "decision_mask", "key", "sampler_log_probs", "off_policy"}
)
"""Inputs of objectives and terms that come from the batch; all others come from ``Policy.score``."""


@dataclass(frozen=True)
class LossRecipe:
    """The bound blocks that make a loss."""

    objective: Bound
    aggregation: Bound
    mismatch: Bound
    terms: tuple[Bound, ...]
    off_policy: Bound
    """The objective of decisions that a data set supplied (rows of origin GIVEN)."""

    @staticmethod
    def of(
        objective: str,
        aggregation: str,
        mismatch: str = "none",
        terms: Sequence[str] = (),
        off_policy: str = "importance",
    ) -> LossRecipe:
        """Bind the config's strings; unknown names and parameters are errors here."""
        return LossRecipe(
            bind(objective, OBJECTIVES, "algorithm.objective"),
            bind(aggregation, AGGREGATIONS, "algorithm.aggregation"),
            bind(mismatch, MISMATCH, "algorithm.mismatch"),
            tuple(bind(term, TERMS, "algorithm.terms") for term in terms),
            bind(off_policy, OFF_POLICY_OBJECTIVES, "algorithm.off_policy"),
        )

    @property
    def scores(self) -> frozenset[str]:
        """Names that the policy has to score."""
        needed = {name for bound in (self.objective, *self.terms) for name in bound.block.needs}
        return frozenset(needed - BATCH_NAMES) | {"log_probs"}

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields (``Decisions.fields``) that the rollout has to bring along."""
        return frozenset((*self.aggregation.block.needs, *self.mismatch.block.needs)) - BATCH_NAMES

    @property
    def needs_reference(self) -> bool:
        """True when something is compared with the network before training."""
        return any(name.startswith("reference_") for name in self.scores)

    @property
    def coupled(self) -> bool:
        """True when entries of a row or group must be seen together."""
        return any(bound.block.level != "decision" for bound in (self.objective, *self.terms))


@dataclass(frozen=True)
class Batch:
    """One round as an optimizer step sees it: this rank's rollouts and everybody's numbers."""

    rollouts: Sequence[Rollout]
    places: Sequence[Int[Tensor, "_"]]
    """For each rollout of this rank, its rows' places in the gathered numbers (redraws may be smaller)."""
    decisions: Decisions
    advantages: Float[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    """Decisions that are trained, after every selection."""


@dataclass
class Tally:
    """Sums over the parts of one optimizer step, on this rank."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    ratio_gap: float = 0.0
    """Largest |ratio - 1| seen."""

    def add(self, name: str, value: Tensor) -> None:
        self.sums[name] += float(value.detach())


def accumulate_gradients(
    policy: Policy,
    batch: Batch,
    rows: Bool[Tensor, "B"],
    loss: LossRecipe,
    *,
    micro_batch_size: int,
    accelerator: Accelerator,
    on_policy: bool,
) -> Tally:
    """Add the gradient of the step's loss over the given rows (of the whole batch) to this rank's parameters.

    ``on_policy`` says that the parameters have not moved since the rollout, so that the present
    log-probabilities are the old ones (it spares a coupled objective its first pass).
    """
    loss_mask = batch.loss_mask & rows[:, None]
    numbers = {
        "sampler_log_probs": batch.decisions.log_probs,  # unless the sampler was another and recorded its own
        **batch.decisions.fields,
        "old_log_probs": batch.decisions.log_probs,
        "advantages": batch.advantages,
        "loss_mask": loss_mask,
        "decision_mask": batch.decisions.decision_mask,
        "off_policy": (batch.decisions.origin == REFERENCE)[:, None].expand_as(loss_mask),
        "key": batch.decisions.keys["prompt"],
    }
    weights = loss.aggregation(numbers) * loss.mismatch(numbers)
    tally = Tally()
    if loss.coupled:
        _coupled(
            policy,
            batch,
            rows,
            loss_mask,
            weights,
            numbers,
            loss,
            micro_batch_size,
            accelerator,
            on_policy,
            tally,
        )
        return tally
    for rollout, place, part in _parts(batch, loss_mask, micro_batch_size):
        scores = policy.score(rollout, part, loss.scores)
        row = place[part.rows]
        seen = {name: _entries(value, row, part.positions) for name, value in numbers.items() if value.dim() == 2}
        total = _total({**seen, **scores}, seen["loss_mask"], _entries(weights, row, part.positions), loss, tally)
        accelerator.backward(total)
    return tally


def _total(inputs: Mapping[str, Tensor], loss_mask: Tensor, weights: Tensor, loss: LossRecipe, tally: Tally) -> Tensor:
    """sum(weights * (objective + terms)) over any set of entries, and what is logged of it."""
    made, off_policy = loss.objective(inputs), inputs["off_policy"]
    values = (
        torch.where(off_policy, loss.off_policy(inputs).values, made.values) if bool(off_policy.any()) else made.values
    )
    for term in loss.terms:
        penalty = term(inputs)
        tally.add(f"term/{term.text.split('(')[0]}", (weights * penalty).sum())
        values = values + penalty
    total = (weights * values).sum()
    tally.add("loss", total)
    own = loss_mask & ~off_policy
    tally.add("entries", own.sum())
    tally.add("clip/low", (made.low & own).sum())
    tally.add("clip/high", (made.high & own).sum())
    gap = (torch.exp(inputs["log_probs"].detach() - inputs["old_log_probs"]) - 1).abs()
    if bool(own.any()):
        tally.ratio_gap = max(tally.ratio_gap, float(gap[own].max()))
    return total


def _coupled(
    policy: Policy,
    batch: Batch,
    rows: Bool[Tensor, "B"],
    loss_mask: Bool[Tensor, "B T"],
    weights: Float[Tensor, "B T"],
    numbers: Mapping[str, Tensor],
    loss: LossRecipe,
    limit: int,
    accelerator: Accelerator,
    on_policy: bool,
    tally: Tally,
) -> None:
    """Two passes: all scores of this rank's rows, the loss's gradient by them, then through the network."""
    local = torch.cat(list(batch.places)) if batch.places else torch.zeros(0, dtype=torch.long)
    chosen = local[rows[local]]
    if chosen.numel() == 0:
        return
    owners = owned(batch.decisions) & rows[:, None]
    dense = {"log_probs": batch.decisions.log_probs.clone()}
    if not (on_policy and loss.scores == {"log_probs"} and not bool(numbers["off_policy"].any())):
        dense = {name: torch.zeros_like(weights) for name in loss.scores}
        with torch.no_grad():
            for rollout, place, part in _parts(batch, owners, limit):
                for name, value in policy.score(rollout, part, loss.scores).items():
                    if name in dense:
                        dense[name][place[part.rows], part.positions] = value.to(dense[name].dtype)
    shared = owner_index(batch.decisions)
    leaves = {name: value.requires_grad_() for name, value in dense.items()}
    spread = {name: value.reshape(-1)[shared][chosen] for name, value in leaves.items()}
    inputs = {**{name: value[chosen] for name, value in numbers.items()}, **spread}
    total = _total(inputs, loss_mask[chosen], weights[chosen], loss, tally)
    names = list(leaves)
    gradients = dict(zip(names, torch.autograd.grad(total, [leaves[n] for n in names], allow_unused=True), strict=True))
    wanted = torch.zeros_like(loss_mask)
    for gradient in gradients.values():
        if gradient is not None:
            wanted |= gradient != 0
    for rollout, place, part in _parts(batch, wanted & owners, limit):
        scores = policy.score(rollout, part, loss.scores)
        row = place[part.rows]
        carried = [
            (_entries(gradients[name], row, part.positions) * scores[name]).sum()  # type: ignore[arg-type]
            for name in names
            if gradients[name] is not None and scores[name].requires_grad
        ]
        accelerator.backward(torch.stack(carried).sum())


def _parts(batch: Batch, loss_mask: Bool[Tensor, "B T"], limit: int) -> Iterator[tuple[Rollout, Tensor, Part]]:
    """The masked entries of this rank's rollouts, cut into parts."""
    for rollout, place in zip(batch.rollouts, batch.places, strict=True):
        width = rollout.decisions.loss_mask.shape[1]
        for part in rollout.steps.split(loss_mask[place][:, :width], limit):
            yield rollout, place, part


def _entries(value: Shaped[Tensor, "B T"], rows: Int[Tensor, "N"], positions: Int[Tensor, "N"]) -> Shaped[Tensor, "N"]:
    return value[rows, positions]


def owner_index(decisions: Decisions) -> Int[Tensor, "B T"]:
    """For every entry, the flat index of the first entry that holds the same decision (itself if unshared)."""
    rows, width = decisions.node.shape
    place = torch.arange(rows * width, device=decisions.node.device)
    flat = torch.where(decisions.decision_mask, decisions.node, -1 - place.view(rows, width)).reshape(-1)
    _, inverse = torch.unique(flat, return_inverse=True)
    first = torch.full((int(inverse.max()) + 1,), rows * width, device=place.device, dtype=torch.long)
    first = first.scatter_reduce(0, inverse, place, "amin")
    return first[inverse].view(rows, width)


def owned(decisions: Decisions) -> Bool[Tensor, "B T"]:
    """True for exactly one entry of every decision."""
    place = torch.arange(decisions.node.numel(), device=decisions.node.device).view_as(decisions.node)
    return decisions.decision_mask & (owner_index(decisions) == place)
