"""From advantages to one optimizer step.

    ratio = exp(log_prob_now - log_prob_then)        [B, T]
    loss  = -min(ratio * A, clip(ratio) * A)         [B, T]
    total = sum(weights * (factor * loss + terms))   weights cover the whole optimizer step, over all ranks

``factor`` is the mismatch correction, one where the sampler is the trainer's own policy.

While the weights are those of the rollout, the ratio of a decision that the policy drew is one by construction, in any
precision and however a step is split: the old log-probs are the present ones, detached. The difference to the stored
ones (rounding, or a sampler that computes something else) is measured, and no part of the loss. Where it matters,
``rescore`` makes them the old ones of the further updates of the round as well, as TRL and verl do.

The sum is split into parts that fit in memory; since the weights are computed before, the split never changes the
gradient. Reference answers (rows of origin REFERENCE) have an objective of their own, without a clip, since they are
off policy from the start. An objective of whole rows or groups is not additive over parts: its gradient with respect
to the scores is computed first, from all scores at once, and then backpropagated through the network part by part
(the chain rule, so the gradient is the same).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.parts import PartLines, read_parts
from mmgrpo.config.registry import Bound, bind_scheduled
from mmgrpo.config.schedules import Schedule, schedules_of
from mmgrpo.config.settings import Optim
from mmgrpo.data.perturbations import check_changes
from mmgrpo.objectives import AGGREGATIONS, MISMATCH, OBJECTIVES, OFF_POLICY_OBJECTIVES, TERMS
from mmgrpo.objectives.origins import LIKELIHOODS, REPLAYS, likelihood, weights_by_origin
from mmgrpo.prompts.added import ADDITIONS
from mmgrpo.prompts.hints import HINTS
from mmgrpo.prompts.judging import JUDGINGS
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.distributed import backward, in_step, scoring_weights, sum_over_ranks
from mmgrpo.runtime.metrics import Tally
from mmgrpo.runtime.networks import REFERENCE_NETWORK, bind_networks, name_of
from mmgrpo.types import (
    HINTED,
    OWN,
    RECORDS,
    REFERENCE,
    REPLAYED,
    SUPERVISED,
    Batch,
    Part,
    Policy,
    Rollout,
    Scores,
    of_kinds,
)

BATCH_NAMES = frozenset(
    {"old_log_probs", "advantages", "loss_mask", "decision_mask", "key", "sampler_log_probs", "off_policy", "drawn"}
    | {"foreign", "supervised", "drawn_certainty"}
)
"""Inputs of blocks that come from the batch; all others come from ``Policy.score``."""


VELOCITY_METRICS = ("velocity/norm", "velocity/norm_ratio")
"""Metrics of denoising runs, whose zero stands for none."""


@dataclass(frozen=True)
class LossRecipe:
    """The bound blocks of a loss."""

    objective: Bound
    aggregation: Bound
    mismatch: Bound
    terms: tuple[Bound, ...]
    off_policy: Bound
    """The objective of reference answers (rows of origin REFERENCE)."""
    replay: Bound
    supervised: Bound
    hint: Bound
    added: Bound
    """Which rows of other origins a round has, and what they count (``mmgrpo.rounds``)."""
    networks: tuple[Bound, ...] = ()
    """The networks of the run besides the present one and the reference before training, and how they change."""
    parts: tuple[PartLoss, ...] = ()
    """Losses of the parts of rows with decisions of several kinds, in place of the objective, aggregation and terms."""
    judging: tuple[Bound, ...] = ()
    """What the policy is asked about its own samples."""

    @staticmethod
    def of(
        objective: str,
        aggregation: str,
        mismatch: str = "none",
        terms: Sequence[str] = (),
        off_policy: str = "importance",
        networks: Sequence[str] = (),
        replay: str = "none",
        supervised: str = "none",
        hint: str = "none",
        added: str = "none",
        parts: Sequence[str] = (),
        judging: Sequence[str] = (),
    ) -> LossRecipe:
        """Bind the text of a configuration; unknown names and parameters are errors here, before the run."""
        loss = LossRecipe(
            bind_scheduled(objective, OBJECTIVES, "algorithm.objective"),
            bind_scheduled(aggregation, AGGREGATIONS, "algorithm.aggregation"),
            bind_scheduled(mismatch, MISMATCH, "algorithm.mismatch"),
            tuple(bind_scheduled(term, TERMS, "algorithm.terms") for term in terms),
            bind_scheduled(off_policy, OFF_POLICY_OBJECTIVES, "algorithm.off_policy"),
            bind_scheduled(replay, REPLAYS, "algorithm.replay"),
            bind_scheduled(supervised, LIKELIHOODS, "algorithm.supervised"),
            bind_scheduled(hint, HINTS, "algorithm.hint"),
            bind_scheduled(added, ADDITIONS, "algorithm.added"),
            bind_networks(networks),
            tuple(PartLoss.of(lines, objective, aggregation, terms) for lines in read_parts(parts)),
            tuple(bind_scheduled(text, JUDGINGS, "algorithm.judging") for text in judging),
        )
        check_changes(loss.scores)
        return loss

    @staticmethod
    def read(algorithm: Any) -> LossRecipe:
        """``of`` the lines of an ``algorithm`` section."""
        return LossRecipe.of(**{name: getattr(algorithm, name) for name in inspect.signature(LossRecipe.of).parameters})

    @property
    def scores(self) -> frozenset[str]:
        """Names of the scores that the policy must return under the present parameters."""
        if self.parts:
            return frozenset[str]().union(*(part.loss.scores for part in self.parts))
        bounds = (self.objective, self.off_policy, self.mismatch, *self.terms)
        named = frozenset(name for bound in bounds for name in bound.needs) - BATCH_NAMES
        return named | {"log_probs"} | ({"top_log_prob"} if self.supervised.parameters.get("gap") else frozenset())

    @property
    def fields(self) -> frozenset[str]:
        """Names in ``Decisions.fields`` that rollouts must have."""
        if self.parts:
            return frozenset[str]().union(*(part.loss.fields for part in self.parts))
        return frozenset(self.aggregation.block.needs) - BATCH_NAMES | self.replay({}).fields

    @property
    def records(self) -> frozenset[str]:
        """Names in ``RECORDS`` that rollouts must have."""
        certain = frozenset({"certainty"} if "drawn_certainty" in self.objective.needs else ())
        return certain | self.fields & RECORDS.keys()

    @property
    def needs_reference(self) -> bool:
        """True when the loss compares with the network before training, which must then be stored."""
        moving = any(name_of(rule) == REFERENCE_NETWORK for rule in self.networks)
        used = {name.partition(".")[0] for name in self.scores if "." in name}
        used |= {self.added({}).network, *(name for bound in self.judging for name in bound({}).networks)}
        used |= {name for rule in self.networks for name, _ in rule.names_of("network")}
        compared = any(rule.names_of("reference") for rule in self.networks)
        return not moving and (compared or REFERENCE_NETWORK in used)

    @property
    def factor_follows_policy(self) -> bool:
        """True when the mismatch factor depends on present scores, so it changes with every update."""
        return not BATCH_NAMES.issuperset(self.mismatch.block.needs)

    @property
    def tallied(self) -> list[str]:
        """Names of the sums of a ``Tally``, the same on all ranks, also where one has no rows."""
        names = ["loss", "entries", "clip/low", "clip/high", *(f"term/{name}" for name in self.term_names)]
        names += [f"{part.name}/{name}" for part in self.parts for name in part.loss.tallied]
        return [*names, *VELOCITY_METRICS]

    @property
    def replays(self) -> bool:
        """Whether rows of earlier rounds may join a round."""
        return self.replay.text != "none" and bool(self.replay({}).count)

    @property
    def supervises(self) -> bool:
        """Whether given answers join it that are learned by their likelihood."""
        return self.supervised.text != "none" and bool(self.supervised({}).count)

    @property
    def term_names(self) -> list[str]:
        """Names of the parts of the loss besides the objective."""
        terms = [term for part in self.parts for term in part.loss.terms] if self.parts else self.terms
        names = dict.fromkeys(term.text.split("(")[0] for term in terms)
        return [*names, *(["nll"] if self.supervises else [])]

    @property
    def clip_range(self) -> float:
        """The smallest distance of a ratio from one at which the objective clips; infinite for one without a clip."""
        if self.parts:
            return min(part.loss.clip_range for part in self.parts)
        signature = inspect.signature(self.objective.block.fn).parameters
        given = {name: p.default for name, p in signature.items()} | dict(self.objective.parameters)
        bounds = [given[name] for name in ("low", "high", "clip") if name in given and given[name] > 0]
        bounds = [bound for bound in bounds if bound < 1 or bound != given.get("low")]  # a lower bound of 1 is none
        bounds += [given["cap"] - 1] if "cap" in given else []
        return float(min(bounds, default=math.inf))

    @property
    def coupled(self) -> bool:
        """True when the loss needs the present scores of a whole row or group together."""
        if self.parts:
            return any(part.loss.coupled for part in self.parts)
        bounds = (self.objective, *self.terms, *([self.mismatch] if self.factor_follows_policy else []))
        return any(bound.block.level != "decision" for bound in bounds)


@dataclass(frozen=True)
class PartLoss:
    """The loss of one part of the rows, and its share in the sum of losses."""

    name: str
    loss: LossRecipe
    coef: float

    @staticmethod
    def of(lines: PartLines, objective: str, aggregation: str, terms: Sequence[str]) -> PartLoss:
        """Bind the lines of a part; those that it does not state are given."""
        defaults = {"objective": objective, "aggregation": aggregation, "terms": terms}
        return PartLoss(
            lines.name, LossRecipe.of(**{name: lines.get(name, value) for name, value in defaults.items()}), lines.coef
        )

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Those of its blocks and of its share, each behind the name of the part."""
        share = {"coef": self.coef} if isinstance(self.coef, Schedule) else {}
        return {f"{self.name}.{name}": schedule for name, schedule in (share | schedules_of(self.loss)).items()}


def losses(loss: LossRecipe) -> dict[str, LossRecipe]:
    """The loss of each network that trains alongside the policy, by its name."""
    recipes = {}
    for rule in loss.networks:
        if "objective" in rule.parameters:
            aggregation = rule.parameters.get("aggregation", rule.block.parameters["aggregation"].default)
            terms = rule.parameters.get("terms", ())
            recipes[name_of(rule)] = LossRecipe.of(str(rule.parameters["objective"]), str(aggregation), terms=terms)
    return recipes


def all_scores(loss: LossRecipe) -> frozenset[str]:
    """Names of the scores that the loss and those of networks trained alongside the policy need."""
    return loss.scores.union(*(inner.scores for inner in losses(loss).values()))


def all_fields(loss: LossRecipe) -> frozenset[str]:
    """Names of the fields that they need."""
    return loss.fields.union(*(inner.fields for inner in losses(loss).values()))


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its numbers on a device, for whose queue the host does not wait: what it reads of them later, it
    has already."""

    def there(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [put(tensor.contiguous(), device) for tensor in tensors]

    advantages, loss_mask = there([batch.advantages, batch.loss_mask])
    moved = Batch(batch.rollouts, there(batch.places), batch.decisions.by(there), advantages, loss_mask)
    vars(moved)["host"] = batch.host
    return moved


def score_entries(
    policy: Policy, batch: Batch, entries: Bool[Tensor, "B T"], names: frozenset[str], micro_batch_size: int
) -> Iterator[tuple[tuple[Tensor, Tensor], Scores]]:
    """Scores of this rank's part of the entries: in parts, their (rows, positions) in the batch and the scores.

    Where processes must score equally many parts, the spare ones have no entries, and a gradient of zero.
    """

    def parts(entries: Bool[Tensor, "B T"]) -> Iterator[tuple[Rollout, Tensor, Part]]:
        for rollout, place, rows in zip(batch.rollouts, batch.places, batch.host.places, strict=True):
            mask = entries.cpu()[rows][:, : rollout.decisions.loss_mask.shape[1]]
            yield from ((rollout, place, part) for part in rollout.steps.split(mask, micro_batch_size))

    spare = lambda: next(parts(batch.decisions.decision_mask))  # noqa: E731
    for (rollout, place, part), counts in in_step(policy.network, parts(entries), spare):
        end, scores = len(part.rows) * counts, policy.score(rollout, part, names)
        yield (place[part.rows[:end]], part.positions[:end]), {name: value[:end] for name, value in scores.items()}


@dataclass(frozen=True)
class Step:
    """One optimizer step on this rank: its decisions, their weights, and what scores them."""

    policy: Policy
    batch: Batch
    rows: Bool[Tensor, "B"]
    """Rows of this step on all ranks, on the host."""
    loss: LossRecipe
    inputs: Mapping[str, Tensor]
    """Inputs of blocks from the batch (``BATCH_NAMES``), for all its rows."""
    weights: Float[Tensor, "B T"]
    micro_batch_size: int
    accelerator: Accelerator
    tally: Tally
    on_policy: bool
    """The parameters are those of the rollout."""
    kinds: frozenset[str] = frozenset()
    """Which of the inputs off_policy, foreign and supervised are true for some row of the batch."""

    def scores(self, entries: Bool[Tensor, "B T"]) -> Iterator[tuple[tuple[Tensor, Tensor], Scores]]:
        """Score this rank's part of the entries: in parts, their (rows, positions) in the batch and their scores."""
        for at, scores in score_entries(self.policy, self.batch, entries, self.loss.scores, self.micro_batch_size):
            if self.on_policy:
                self.tally.present.append((at, scores["log_probs"].detach()))
            yield at, scores

    def total(self, inputs: Mapping[str, Tensor], weights: Tensor) -> Tensor:
        """sum(weights * (factor * objective + terms)) over any set of entries; adds its metrics to the tally."""
        loss, tally = self.loss, self.tally
        off_policy = inputs["off_policy"]
        tally.compare(inputs["log_probs"], inputs["old_log_probs"], inputs["loss_mask"] & inputs["drawn"])
        if self.on_policy:
            inputs = self.as_drawn(inputs)
        value, low, high = loss.objective(inputs)
        factor = loss.mismatch(inputs) if loss.factor_follows_policy else inputs["factor"]
        values = factor * value
        foreign, supervised = inputs["foreign"], inputs["supervised"]
        if "off_policy" in self.kinds:
            # Without the factor: no sampler drew these decisions, so there is no mismatch.
            values = torch.where(off_policy, loss.off_policy(inputs).values, values)
        if "supervised" in self.kinds:
            nll = likelihood(inputs, loss.supervised({}))
            values = torch.where(supervised, nll, values)
            tally.add("term/nll", (weights * nll).masked_fill(~supervised, 0.0).sum())
        for term in loss.terms:
            penalty = term(inputs) * (inputs.get("kl_weight", 1.0) if term.text.startswith("kl_") else 1.0)
            penalty = torch.where(foreign, 0.0, penalty) if "foreign" in self.kinds else penalty
            tally.add(f"term/{term.text.split('(')[0]}", (weights * penalty).sum())
            values = values + penalty
        total = (weights * values).sum()
        tally.add("loss", total)
        counted = inputs["loss_mask"] & ~off_policy
        for name, entries in (("entries", counted), ("clip/low", low & counted), ("clip/high", high & counted)):
            tally.add(name, entries.sum())
        for name, norms in velocity_metrics(inputs).items():
            tally.add(name, norms.masked_fill(~counted, 0.0).sum())
        return total

    def as_drawn(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs while the parameters are those of the rollout: decisions that the policy drew in this round have
        the present log-probs as old ones, and no distance from themselves. Replayed rows and reference answers keep
        their own; so does another sampler."""
        drawn, present = inputs["drawn"], inputs["log_probs"].detach()
        names = ["old_log_probs"]
        names += [] if "sampler_log_probs" in self.batch.decisions.fields else ["sampler_log_probs"]
        changed = {name: torch.where(drawn, present, inputs[name]) for name in names}
        if "shift" in inputs:
            changed["shift"] = inputs["shift"].masked_fill(drawn, 0.0)
        return {**inputs, **changed}


def accumulate_gradients(
    policy: Policy,
    batch: Batch,
    rows: Bool[Tensor, "B"],
    loss: LossRecipe,
    *,
    micro_batch_size: int,
    accelerator: Accelerator,
    on_policy: bool,
    coef: float = 1.0,
) -> Tally:
    """Add the gradient of ``coef`` times the step's loss over the given rows (of the whole batch) to this rank's
    parameters; of rows of several parts the sum of their losses, each over the decisions of its part alone.

    ``on_policy``: the parameters are those of the rollout, so ratios are one (``Step.as_drawn``), which saves a
    coupled objective its first pass. A parameter that no gradient reaches is left without one; ``sum_gradients``
    sets it to zero.
    """
    settings: Any = {"micro_batch_size": micro_batch_size, "accelerator": accelerator, "on_policy": on_policy}
    if loss.parts:
        together = Tally()
        for part in loss.parts:
            of_part = accumulate_gradients(
                policy, batch.of_part(part.name), rows, part.loss, coef=part.coef, **settings
            )
            together.join(of_part, part.name)
        return together
    decisions, rows = batch.decisions, rows.cpu()
    loss_mask = batch.loss_mask & put(rows, batch.loss_mask.device)[:, None]
    inputs = {
        "sampler_log_probs": decisions.log_probs,  # a field of the same name, by another sampler, replaces it
        **decisions.fields,
        "old_log_probs": decisions.log_probs,
        "advantages": batch.advantages,
        "loss_mask": loss_mask,
        "decision_mask": decisions.decision_mask,
        "key": decisions.keys["prompt"],
    }
    as_one = loss.replays and loss.replay({}).old == "one"
    kinds = {"off_policy": [REFERENCE, SUPERVISED, *([REPLAYED] if as_one else [])]}
    kinds |= {"drawn": [OWN, HINTED], "foreign": [REPLAYED, SUPERVISED], "supervised": [SUPERVISED]}
    for name, members in kinds.items():
        inputs[name] = of_kinds(decisions.origin, members)[:, None].expand_as(loss_mask)
    if "certainty" in decisions.fields:
        inputs["drawn_certainty"] = decisions.fields["certainty"]
    if not loss.factor_follows_policy:
        inputs["factor"] = loss.mismatch(inputs)
    if loss.replays or loss.supervises:
        weights = weights_by_origin(loss.aggregation, inputs, decisions.origin, loss.replay({}), loss.supervised({}))
    else:
        weights = loss.aggregation(inputs)
    weights = weights if coef == 1 else coef * weights
    origins = {*batch.host.origin.tolist()}
    present = frozenset(name for name, members in kinds.items() if origins.intersection(members))
    step = Step(policy, batch, rows, loss, inputs, weights, micro_batch_size, accelerator, Tally(), on_policy, present)
    with scoring_weights(policy.network):
        if loss.coupled:
            _accumulate_coupled(step)
        else:  # one pass, since the total is a sum over decisions
            for at, scores in step.scores(batch.host.loss_mask & rows[:, None]):
                entries = {name: value[at] for name, value in inputs.items() if value.dim() == 2}
                backward(step.total(with_scores(entries, scores), weights[at]), policy.network, accelerator)
    return step.tally


def with_scores(records: Mapping[str, Tensor], scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs of blocks: what the batch recorded, and present scores beside it. A score may renew what a rollout
    recorded of the same decision (``std``), never what a loss compares with (``BATCH_NAMES``)."""
    if taken := BATCH_NAMES & scores.keys():
        raise ValueError(f"got the scores {', '.join(sorted(taken))} of the policy, expected other names: the batch's")
    return {**records, **scores}


def rescore(
    policy: Policy, batch: Batch, loss: LossRecipe, tally: Tally, *, micro_batch_size: int, accelerator: Accelerator
) -> Batch:
    """The batch with the log-probs of the present parameters, which are those of the rollout, as the old ones of all
    decisions that the policy drew; replayed rows and reference answers keep their own.

    ``tally`` is that of the step on policy, whose log-probs are kept; only what it did not score is scored here,
    without gradient.
    """
    decisions = batch.decisions
    drawn = of_kinds(decisions.origin, [OWN, HINTED])[:, None]
    # An objective of whole rows compares all decisions of a row, also those that are not trained.
    entries = (decisions.owned if loss.coupled else batch.loss_mask) & drawn
    value, known = torch.zeros_like(decisions.log_probs), torch.zeros_like(entries)
    for at, log_probs in tally.present:
        value[at], known[at] = log_probs.to(value.dtype), True
    # Every decision is scored on one rank and zero on all others, so the sum gathers it.
    known = sum_over_ranks(known.to(value.dtype), accelerator) > 0
    with torch.no_grad(), scoring_weights(policy.network):
        for at, scores in score_entries(policy, batch, entries & ~known, frozenset({"log_probs"}), micro_batch_size):
            value[at] = scores["log_probs"].to(value.dtype)
    known |= entries
    value = sum_over_ranks(value, accelerator)
    if loss.coupled:  # a shared decision is scored at its first row
        shared = decisions.owner_index
        value, known = value.reshape(-1)[shared], known.reshape(-1)[shared]
    log_probs = torch.where(known & drawn, value, decisions.log_probs)
    return replace(batch, decisions=replace(decisions, log_probs=log_probs))


def _accumulate_coupled(step: Step) -> None:
    """Two passes: the gradient of the loss with respect to all scores, then its backpropagation part by part.

    d total / d parameters = sum over decisions of (d total / d score) (d score / d parameters). The loss of a row needs
    all scores of the row, of its group or of the whole step (``kl_hinge``), but their activations do not fit in memory
    together. The scores do, being a few numbers per decision: every rank computes the first factor from all of them,
    and the second one for its own decisions, part by part.
    """
    batch, rows, loss = step.batch, step.rows, step.loss
    # The ratio of a row is over all its decisions, also those that another row owns or that are not trained. A shared
    # decision is scored once, at its first row, and gathered from there by all, so its gradient is their sum.
    owners = batch.owned & rows[:, None]
    at_rows = put(rows.nonzero()[:, 0], step.weights.device)
    shared = batch.decisions.owner_index
    # Before the first update of a round the present log-probs are those of the rollout up to rounding, so the
    # first pass is skipped, unless the loss needs scores that the rollout lacks: other names (entropy,
    # reference.log_probs, ...), or the log-probs of rows that the policy did not draw in this round.
    drawn = step.inputs["drawn"]
    undrawn = torch.isin(batch.host.origin[rows], torch.tensor([OWN, HINTED]), invert=True)
    skipped = step.on_policy and loss.scores == {"log_probs"} and not bool(undrawn.any())
    if skipped:
        dense = {"log_probs": batch.decisions.log_probs.clone()}
    else:
        dense = {name: torch.zeros_like(step.weights) for name in sorted(loss.scores)}  # one order on all ranks
        with torch.no_grad():
            for at, scores in step.scores(owners):
                for name, value in dense.items():
                    value[at] = scores[name].to(value.dtype)
        dense = {name: sum_over_ranks(value, step.accelerator) for name, value in dense.items()}
    leaves = {name: value.requires_grad_() for name, value in dense.items()}
    inputs = {name: value[at_rows] for name, value in step.inputs.items()}
    inputs = with_scores(inputs, {name: value.reshape(-1)[shared][at_rows] for name, value in leaves.items()})
    # All ranks compute the same total, and tallies are summed over ranks, so only one rank records it.
    recorder = step if step.accelerator.is_main_process else replace(step, tally=Tally())
    total = recorder.total(inputs, step.weights[at_rows])
    partials = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    gradients = {name: gradient for name, gradient in zip(leaves, partials, strict=True) if gradient is not None}
    # Decisions of zero gradient (e.g. of clipped rows) need no second pass. If all are zero, no part is scored and the
    # parameters have no gradient, which ``sum_gradients`` sets to zero.
    nonzero = torch.zeros_like(step.weights, dtype=torch.bool)
    for gradient in gradients.values():
        nonzero |= gradient != 0
    for at, scores in step.scores(nonzero.cpu() & owners):
        # A surrogate whose gradient with respect to the parameters is that of the chain rule; its value has no meaning.
        if skipped:
            step.tally.compare(
                scores["log_probs"], batch.decisions.log_probs[at], (step.inputs["loss_mask"] & drawn)[at]
            )
        products = [(g[at] * scores[name]).sum() for name, g in gradients.items() if scores[name].requires_grad]
        backward(torch.stack(products).sum(), step.policy.network, step.accelerator)


def velocity_metrics(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """|v| of every decision, and over that of the reference where the loss evaluates it (NormGuard, 2606.27771)."""
    metrics = {"velocity/norm": inputs["velocity_norm"].detach()} if "velocity_norm" in inputs else {}
    if "reference.velocity_norm" in inputs:
        metrics["velocity/norm_ratio"] = metrics["velocity/norm"] / inputs["reference.velocity_norm"]
    return metrics


def learning_rate(optim: Optim, step: int, steps: int) -> float:
    """That of optimizer step ``step`` of ``steps``, counted from zero; past the end it is that at the end, which is
    zero with a decay, and never negative."""
    if step < optim.warmup:
        return optim.lr * (step + 1) / optim.warmup
    if optim.decay == "constant":
        return optim.lr
    progress = min(1.0, (step - optim.warmup) / max(1, steps - optim.warmup))
    return optim.lr * (1 - progress if optim.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress)))


def set_rate(optimizer: torch.optim.Optimizer, optim: Optim, step: int, steps: int) -> float:
    """Set the learning rate of an optimizer step, in each group times its own of ``optim.rates``, and return it."""
    lr = learning_rate(optim, step, steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("rate", 1.0)
    return lr


def step_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Metrics of an optimizer step from the sums of its tally: those of its decisions become means, also of parts."""
    counts = {name.removesuffix("entries"): max(1.0, value) for name, value in sums.items() if name.endswith("entries")}
    named = [(prefix, name) for prefix in counts for name in ("clip/low", "clip/high", *VELOCITY_METRICS)]
    means = {f"{prefix}{name}": sums[f"{prefix}{name}"] / counts[prefix] for prefix, name in named}
    others = {name: value for name, value in sums.items() if not name.endswith("entries") and name not in means}
    kl = sum(value for name, value in sums.items() if name.startswith("term/kl"))
    return {
        **{name: mean for name, mean in means.items() if mean or not name.endswith(VELOCITY_METRICS)},
        "kl": kl,
        **others,
    }


def minibatches(key: Int[Tensor, "B"], updates: int, generator: torch.Generator) -> list[Bool[Tensor, "B"]]:
    """Divide whole groups (rows of one ``key``) among ``updates`` minibatches at random; the rows of each, on the host
    as the key."""
    groups, inverse = torch.unique(key, return_inverse=True)
    if len(groups) < updates:
        raise ValueError(
            f"got a round of {len(groups)} groups, expected at least optim.updates={updates}; "
            "use more prompts per round or fewer updates"
        )
    shuffled = torch.randperm(len(groups), generator=generator)
    assignment = torch.empty_like(shuffled)
    assignment[shuffled] = torch.arange(len(groups)) % updates
    return [assignment[inverse] == update for update in range(updates)]
