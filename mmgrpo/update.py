"""From advantages to one optimizer step.

    ratio = exp(log_prob_now - log_prob_then)        [B, T]
    loss  = -min(ratio * A, clip(ratio) * A)         [B, T]
    total = sum(weights * (factor * loss + terms))   weights cover the whole optimizer step, over all ranks

``factor`` is the mismatch correction, one where sampler and trainer are one.

The sum is cut into parts that fit in memory; because the weights are made before, the cut never
changes the gradient. What a data set supplied (rows of origin REFERENCE) has an objective of its own, without
a clip, for it was never near the policy. An objective that looks at a whole row or group is not additive over parts:
its gradient with respect to the scores is taken first, on all scores at once, and then carried
through the network part by part (the chain rule, so the same gradient again).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.registry import Bound, bind
from mmgrpo.runtime.distributed import sum_over_ranks
from mmgrpo.types import REFERENCE, Decisions, Policy, Rollout, Scores

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
    """The objective of decisions that a data set supplied (rows of origin REFERENCE)."""

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
        """Names that the policy has to score under the present parameters."""
        bounds = (self.objective, self.off_policy, self.mismatch, *self.terms)
        return frozenset(name for bound in bounds for name in bound.block.needs) - BATCH_NAMES | {"log_probs"}

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields (``Decisions.fields``) that the rollout has to bring along."""
        return frozenset(self.aggregation.block.needs) - BATCH_NAMES

    @property
    def needs_reference(self) -> bool:
        """True when the loss compares with the network as it was before training, which then has to be kept."""
        return any(name.startswith("reference_") for name in self.scores)

    @property
    def factor_follows_policy(self) -> bool:
        """True when the mismatch factor looks at present scores, so that it changes with every update."""
        return not BATCH_NAMES.issuperset(self.mismatch.block.needs)

    @property
    def coupled(self) -> bool:
        """True when present scores of a row or group must be seen together."""
        bounds = (self.objective, *self.terms, *([self.mismatch] if self.factor_follows_policy else []))
        return any(bound.block.level != "decision" for bound in bounds)


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


@dataclass(frozen=True)
class Step:
    """One optimizer step on this rank: whose decisions, with what weights, and by what means they are scored."""

    policy: Policy
    batch: Batch
    rows: Bool[Tensor, "B"]
    """Rows of this step, on whatever rank."""
    loss: LossRecipe
    inputs: Mapping[str, Tensor]
    """What blocks need of the batch (``BATCH_NAMES``), of the step's rows and of the others."""
    weights: Float[Tensor, "B T"]
    micro_batch_size: int
    accelerator: Accelerator
    tally: Tally

    def scored(self, entries: Bool[Tensor, "B T"]) -> Iterator[tuple[tuple[Tensor, Tensor], Scores]]:
        """This rank's share of the entries, part by part: their (rows, positions) in the batch, and their scores."""
        for rollout, place in zip(self.batch.rollouts, self.batch.places, strict=True):
            width = rollout.decisions.loss_mask.shape[1]
            for part in rollout.steps.split(entries[place][:, :width], self.micro_batch_size):
                scores = self.policy.score(rollout, part, self.loss.scores)
                yield (place[part.rows], part.positions), scores

    def total(self, inputs: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """sum(weights * (factor * objective + terms)) over any set of entries, and what is logged of it."""
        loss, tally = self.loss, self.tally
        off_policy = inputs["off_policy"]
        value, low, high = loss.objective(inputs)
        factor = loss.mismatch(inputs) if loss.factor_follows_policy else inputs["factor"]
        values = factor * value
        if bool(off_policy.any()):
            # No sampler drew these decisions, so none can disagree with the trainer about them.
            values = torch.where(off_policy, loss.off_policy(inputs).values, values)
        for term in loss.terms:
            penalty = term(inputs)
            tally.add(f"term/{term.text.split('(')[0]}", (weights * penalty).sum())
            values = values + penalty
        total = (weights * values).sum()
        tally.add("loss", total)
        own = inputs["loss_mask"] & ~off_policy
        tally.add("entries", own.sum())
        tally.add("clip/low", (low & own).sum())
        tally.add("clip/high", (high & own).sum())
        gap = (torch.exp(inputs["log_probs"].detach() - inputs["old_log_probs"]) - 1).abs()
        if bool(own.any()):
            tally.ratio_gap = max(tally.ratio_gap, float(gap[own].max()))
        return total


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
    log-probabilities are the old ones (it spares a coupled objective its first pass). A parameter that no gradient
    reaches is left without one; ``sum_gradients`` makes it zero.
    """
    decisions = batch.decisions
    loss_mask = batch.loss_mask & rows[:, None]
    inputs = {
        "sampler_log_probs": decisions.log_probs,  # unless the sampler was another and recorded its own
        **decisions.fields,
        "old_log_probs": decisions.log_probs,
        "advantages": batch.advantages,
        "loss_mask": loss_mask,
        "decision_mask": decisions.decision_mask,
        "off_policy": (decisions.origin == REFERENCE)[:, None].expand_as(loss_mask),
        "key": decisions.keys["prompt"],
    }
    if not loss.factor_follows_policy:
        inputs["factor"] = loss.mismatch(inputs)
    weights = loss.aggregation(inputs)
    step = Step(policy, batch, rows, loss, inputs, weights, micro_batch_size, accelerator, Tally())
    if loss.coupled:
        _coupled(step, on_policy)
    else:
        _elementwise(step)
    return step.tally


def _elementwise(step: Step) -> None:
    """One pass: the sum over a part is a part of the sum."""
    for at, scores in step.scored(step.inputs["loss_mask"]):
        inputs = {name: value[at] for name, value in step.inputs.items() if value.dim() == 2}
        step.accelerator.backward(step.total({**inputs, **scores}, step.weights[at]))


def _coupled(step: Step, on_policy: bool) -> None:
    """Two passes: all scores of the step's rows and the loss's gradient by them, then through the network.

    d total / d parameters = sum over decisions of (d total / d score) (d score / d parameters). A row's loss needs
    all scores of the row, perhaps of its group or of the whole step (``kl_hinge``), while the activations behind them
    do not fit in memory together. The scores themselves are a few numbers a decision: the first factor is taken from
    all of them at once, on every rank alike, the second part by part, by each rank for its own decisions.
    """
    batch, rows, loss = step.batch, step.rows, step.loss
    # A row's ratio is over all its decisions, also those that another row owns or that are not trained. What several
    # rows share is scored once, at the first of them, and read from there by all: its gradient is the sum of theirs.
    owners = owned(batch.decisions) & rows[:, None]
    shared = owner_index(batch.decisions)
    # Before the first update of a round the present log-probs are those of the rollout, bit for bit or nearly, and the
    # pass that would compute them again is spared. Of decisions that a data set supplied the rollout has none, and
    # other scores (entropy, reference_log_probs, ...) it does not keep.
    if on_policy and loss.scores == {"log_probs"} and not bool(step.inputs["off_policy"].any()):
        dense = {"log_probs": batch.decisions.log_probs.clone()}
    else:
        dense = {name: torch.zeros_like(step.weights) for name in sorted(loss.scores)}  # one order on all ranks
        with torch.no_grad():
            for at, scores in step.scored(owners):
                for name, value in dense.items():
                    value[at] = scores[name].to(value.dtype)
        # A decision is of one rank, so that the sum is what that rank found.
        dense = {name: sum_over_ranks(value, step.accelerator) for name, value in dense.items()}
    leaves = {name: value.requires_grad_() for name, value in dense.items()}
    inputs = {name: value[rows] for name, value in step.inputs.items()}
    inputs |= {name: value.reshape(-1)[shared][rows] for name, value in leaves.items()}
    # All ranks find the same total; one of them counts it, since tallies are summed.
    counted = step if step.accelerator.is_main_process else replace(step, tally=Tally())
    total = counted.total(inputs, step.weights[rows])
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    gradients = {name: gradient for name, gradient in zip(leaves, found, strict=True) if gradient is not None}
    # Where the gradient is zero (clipped rows, say) a second pass would add nothing. If it is zero everywhere, no part
    # is scored and the parameters keep no gradient: for the optimizer that is a zero, see ``sum_gradients``.
    moving = torch.zeros_like(owners)
    for gradient in gradients.values():
        moving |= gradient != 0
    for at, scores in step.scored(moving & owners):
        # The gradient of this sum by the parameters is the chain rule's; the sum itself means nothing.
        carried = [(g[at] * scores[name]).sum() for name, g in gradients.items() if scores[name].requires_grad]
        step.accelerator.backward(torch.stack(carried).sum())


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
