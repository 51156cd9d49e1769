"""From rewards and groups to advantages [B, T], by the blocks of a recipe.

    rewards [B, R] -> transform -> combine: for each (stream, key) (reward - baseline) / scale, summed
                   -> shape -> credit -> advantages [B, T]

``select`` acts before the statistics or on training only, see ``select.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.advantages import (
    gae,  # noqa: F401  for its blocks
    groups,
)
from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE, SEPARATE, sum_rewards
from mmgrpo.advantages.credit import CREDITS, REMARKED, has_shared_decisions
from mmgrpo.advantages.groups import Values
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import BEFORE, SELECTORS
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.advantages.transform import TRANSFORMS
from mmgrpo.advantages.weighting import KL_WEIGHTS, WEIGHTINGS, kl_metrics
from mmgrpo.config.names import nearest
from mmgrpo.config.parts import LINES, PartLines, read_parts
from mmgrpo.config.ranges import ANY_NUMBER
from mmgrpo.config.registry import Bound, bind_scheduled, bind_several, check_scheduled, parse
from mmgrpo.config.schedules import Schedule, schedules_of
from mmgrpo.types import COUNTED, OWN, RECORDS, UNTRAINED, Decisions, part_field, select_rows

STANDARD_INPUTS = frozenset(
    {"values", "weights", "key", "stat", "keep", "normalise", "centred", "advantages"}
    | {"log_probs", "loss_mask", "decision_mask", "node", "origin", "length", "names", "raw", "streams"}
)
"""Inputs of blocks that every batch has; any other input is a field of the decisions."""


@runtime_checkable
class AdvantageBlocks(Protocol):
    """The part of an algorithm's configuration that concerns advantages: blocks as text."""

    @property
    def transform(self) -> Sequence[str]: ...
    @property
    def weighting(self) -> Sequence[str]: ...
    @property
    def combine(self) -> str: ...
    @property
    def keys(self) -> Sequence[str]: ...
    @property
    def baseline(self) -> str: ...
    @property
    def scale(self) -> str: ...
    @property
    def shape(self) -> Sequence[str]: ...
    @property
    def credit(self) -> str: ...
    @property
    def select(self) -> Sequence[str]: ...
    @property
    def kl_weight(self) -> str: ...
    @property
    def parts(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Key:
    """A grouping of the rows: rows of one group are compared with each other."""

    name: str
    """Name of the key in ``Decisions.keys``."""
    weight: Annotated[float, ANY_NUMBER] = 1.0
    """Factor of the advantages under this key."""
    own: bool = True
    """Restrict the statistics to rows that the policy itself sampled."""

    @property
    def schedules(self) -> dict[str, Schedule]:
        """That of the weight, where it follows one."""
        return {f"{self.name}.weight": self.weight} if isinstance(self.weight, Schedule) else {}


@dataclass(frozen=True)
class AdvantageRecipe:
    """The bound blocks from rewards to advantages."""

    transform: tuple[Bound, ...]
    weighting: tuple[Bound, ...]
    combine: Bound
    keys: tuple[Key, ...]
    baseline: Bound
    scale: Bound
    shape: tuple[Bound, ...]
    credit: Bound
    before: tuple[Bound, ...]
    after: tuple[Bound, ...]
    kl_weight: Bound
    parts: tuple[PartAdvantages, ...] = ()
    """Of rows with decisions of several kinds, in place of the lines from transform to select."""

    @staticmethod
    def of(blocks: AdvantageBlocks) -> AdvantageRecipe:
        """Bind the blocks of a configuration; unknown names and parameters are errors here, before the run."""
        if not blocks.keys:
            raise ValueError("algorithm.keys: got an empty list, expected at least one group key, e.g. ['prompt']")
        selectors = [bind_scheduled(text, SELECTORS, "algorithm.select") for text in blocks.select]
        is_before = [parse(text)[0] in BEFORE for text in blocks.select]
        return AdvantageRecipe(
            transform=tuple(bind_scheduled(text, TRANSFORMS, "algorithm.transform") for text in blocks.transform),
            weighting=bind_several(blocks.weighting, WEIGHTINGS, "algorithm.weighting"),
            combine=bind_scheduled(blocks.combine, COMBINE, "algorithm.combine"),
            keys=tuple(_key(text) for text in blocks.keys),
            baseline=bind_scheduled(blocks.baseline, BASELINES, "algorithm.baseline"),
            scale=bind_scheduled(blocks.scale, SCALES, "algorithm.scale"),
            shape=tuple(bind_scheduled(text, SHAPES, "algorithm.shape") for text in blocks.shape),
            credit=bind_scheduled(blocks.credit, CREDITS, "algorithm.credit"),
            before=tuple(bound for bound, early in zip(selectors, is_before, strict=True) if early),
            after=tuple(bound for bound, early in zip(selectors, is_before, strict=True) if not early),
            kl_weight=bind_scheduled(blocks.kl_weight, KL_WEIGHTS, "algorithm.kl_weight"),
            parts=tuple(PartAdvantages.of(lines, blocks) for lines in read_parts(blocks.parts)),
        )

    @property
    def separate(self) -> bool:
        """Whether each reward is compared by itself."""
        return parse(self.combine.text)[0] in SEPARATE

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields (``Decisions.fields``) that the rollout has to bring along."""
        return frozenset(name for bound in self.bounds for name in bound.block.needs) - STANDARD_INPUTS

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """All blocks from rewards to advantages."""
        compared = (self.combine, self.baseline, self.scale, *self.shape, self.credit)
        compared += tuple(bound for part in self.parts for bound in part.recipe.bounds)
        return (*self.transform, *compared, *self.before, *self.after, self.kl_weight)

    @property
    def records(self) -> frozenset[str]:
        """Names of the fields that a policy records on request only."""
        placed = frozenset({"character"}) if REMARKED & self.fields else frozenset()
        return self.fields & frozenset(RECORDS) | placed

    @property
    def marking(self) -> str:
        """The reward whose judge speaks of parts of texts for the credit; empty where it reads none."""
        return str(self.credit.parameters["by"]) if REMARKED.intersection(self.credit.block.needs) else ""

    @property
    def named_rewards(self) -> frozenset[str]:
        """Rewards that a block names; they take part in training, whatever their weight."""
        names = {name for bound in (*self.weighting, *self.bounds) for name, _ in bound.names_of("reward")}
        return frozenset(names).union(*(part.weights for part in self.parts))

    def trained_mask(self, names: Sequence[str], weights: Sequence[float]) -> list[bool]:
        """Which rewards are trained on: those that have a weight or that a block names."""
        return [weight != 0 or name in self.named_rewards for name, weight in zip(names, weights, strict=True)]

    def rewards_with_references(self, weighted: Set[str]) -> frozenset[str]:
        """Rewards for which prompts must have ``reference_rewards``, of those that have a weight."""
        names = {bound.parameters.get("of", "") for bound in self.transform if "reference_rewards" in bound.block.needs}
        return frozenset(names - {""} | (weighted if "" in names else set()))

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the keys (``Decisions.keys``) that the rollout has to bring along."""
        return tuple(key.name for key in self.keys)


@dataclass(frozen=True)
class PartAdvantages:
    """The advantages of one part of the rows."""

    name: str
    recipe: AdvantageRecipe
    per: str = ""
    """The key of the rows that share its decisions; empty: they do not."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of the rewards; empty: those of the run."""

    @staticmethod
    def of(lines: PartLines, blocks: AdvantageBlocks) -> PartAdvantages:
        """Bind the lines of a part; those that it does not state are the section's."""
        values: dict[str, Any] = {line: lines.get(line, getattr(blocks, line)) for line in LINES}
        section: Any = SimpleNamespace(**values, weighting=(), kl_weight="none", parts=())
        recipe = AdvantageRecipe.of(section)
        return PartAdvantages(lines.name, recipe, lines.per, lines.weights)

    @property
    def schedules(self) -> dict[str, Schedule]:
        """Those of its blocks, each behind the name of the part."""
        return {f"{self.name}.{name}": schedule for name, schedule in schedules_of(self.recipe).items()}


@dataclass(frozen=True)
class Estimate:
    """The advantages of a batch, and statistics of its rewards."""

    advantages: Float[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    """Trained decisions: those of at least one row that is scored and selected, each at the row that owns it."""
    rewards: Values
    """The rewards as one number, as ``combine`` makes it (else their weighted sum); NaN where one of those that are
    trained on failed, or all abstained."""
    samples: Values
    """Advantage of each sample, before credit."""
    kl_weight: Values
    """Factor of the KL terms for each sample."""
    spread_groups: int
    """Groups (of the first key) whose rewards are not all equal."""
    zero_spread: float
    """Fraction of groups whose rewards are all equal, and which therefore have no gradient."""
    silent: tuple[int, ...]
    """Columns of rewards that differ between groups but within none: the baseline of a group cancels them."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """What the weights of the KL measured, by metric."""

    @property
    def metrics(self) -> dict[str, float]:
        """The mean absolute advantage of the trained decisions, and what was measured."""
        trained = self.advantages[self.loss_mask].abs()
        return {"group/advantage": float(trained.mean()) if len(trained) else 0.0, **self.measured}

    def weighing(self, decisions: Decisions) -> Decisions:
        """The decisions with their ``kl_weight`` as a field [B, T], which the KL terms of the loss read."""
        weight = self.kl_weight[:, None].expand_as(decisions.log_probs)
        return replace(decisions, fields={**decisions.fields, "kl_weight": weight})


def estimate(
    values: Float[Tensor, "B R"],
    valid: Bool[Tensor, "B R"],
    reward_weights: Float[Tensor, "R"],
    decisions: Decisions,
    algorithm: AdvantageRecipe,
    names: Sequence[str] = (),
    factor: float = 1.0,
    abstained: Bool[Tensor, "B R"] | None = None,
    counted_origins: Sequence[int] = COUNTED,
) -> Estimate:
    """Advantages of a whole gathered batch, before the shapes times ``factor``.

    A row for which a reward of nonzero weight, or one that a block names, failed is outside the statistics, has
    advantage 0 and is not trained. Where a reward ``abstained`` (None: nowhere) the others decide; a row from which all
    of nonzero weight abstained is outside too. Statistics are of rows of ``counted_origins``. ``names`` are those of
    the rewards, by default their numbers. Computed on the CPU in double precision, so ranks and devices do not
    matter. ValueError for rewards that a block cannot compare, and for advantages that are not finite.
    """
    if algorithm.parts:
        arguments = values, valid, reward_weights, decisions, names, factor, abstained, counted_origins
        return _of_parts(algorithm, *arguments)
    device = values.device
    if not bool((reward_weights != 0).any()):
        raise ValueError("rewards: all weights are 0; give at least one reward a nonzero weight")
    weights = reward_weights.detach().cpu().double()
    names = tuple(names) or tuple(map(str, range(len(weights))))
    counted = weights != 0
    read = torch.tensor(algorithm.trained_mask(names, weights.tolist()))
    valid = valid.cpu()
    abstained = torch.zeros_like(valid) if abstained is None else abstained.cpu()
    # A failed reward takes its row out; one that abstained leaves the row to the others.
    scored = (valid | abstained)[:, read].all(1) & (valid & counted).any(1)
    left_to_others = abstained & scored[:, None]
    values = torch.where(valid & scored[:, None], values.detach().cpu(), 0.0).double()
    # NaN stands for an abstention from here on, so each block leaves it out of its own sums.
    values = values.masked_fill(left_to_others, torch.nan)
    inputs: dict[str, Any] = _inputs(decisions)
    inputs |= {"weights": weights, "names": names, "raw": values}
    keys = [_column(decisions, key.name) for key in algorithm.keys]
    group = keys[0]
    # Transforms measure rewards against the policy's own samples, whatever else a recipe counts.
    within = {**inputs, "key": group, "stat": scored & (inputs["origin"] == OWN)}
    for transform in algorithm.transform:
        values = transform({**within, "values": values}).masked_fill(left_to_others, torch.nan)
    inputs |= {"streams": values}

    compared = ~torch.isin(inputs["origin"], torch.tensor(UNTRAINED))
    rows = scored & compared
    from_policy = torch.isin(inputs["origin"], torch.tensor(counted_origins))

    def statistics() -> list[Tensor]:
        return [rows & from_policy if key.own else rows for key in algorithm.keys]

    def one_reward() -> Tensor:
        if algorithm.separate:
            return sum_rewards(values, weights)
        return algorithm.combine(
            {**inputs, "normalise": lambda stream: stream, "values": values, "key": group, "stat": statistics()[0]}
        )

    # Twice: a selector reads the rewards as one number, and changes the rows whose statistics ``combine`` may read.
    total = one_reward()
    rows, total = rows & ~total.isnan(), total.nan_to_num(0.0)
    for selector in algorithm.before:
        rows = rows & selector({**inputs, "values": total, "key": group, "keep": rows})
    stats, total = statistics(), one_reward()
    scored, total = scored & ~total.isnan(), total.nan_to_num(0.0)
    inputs |= {"stat": stats[0], "key": group}

    def normalise(stream: Tensor) -> Tensor:
        there = ~stream.isnan()
        stream = stream.nan_to_num(0.0)
        advantages = torch.zeros_like(stream)
        for key, column, stat in zip(algorithm.keys, keys, stats, strict=True):
            here = {**inputs, "values": stream, "key": column, "stat": stat & there}
            # Each key compares by itself, and the advantages add up.
            centred = stream - algorithm.baseline(here)
            advantages = advantages + key.weight * algorithm.scale({**here, "centred": centred})
        return torch.where(there, advantages, 0.0)

    samples = factor * algorithm.combine({**inputs, "normalise": normalise, "values": values})
    inputs |= {"values": total, "key": group}
    weighed = algorithm.kl_weight.text != "none"
    kl_weight = algorithm.kl_weight(inputs) if weighed else torch.ones_like(total)
    for shape in algorithm.shape:
        samples = shape({**inputs, "advantages": samples})
    # Before the check: the scale of nothing need not be finite.
    samples = torch.where(rows, samples, 0.0)
    if not bool(samples.isfinite().all()):
        blocks = [algorithm.combine, algorithm.baseline, algorithm.scale, *algorithm.shape]
        raise ValueError(
            f"algorithm: got an advantage that is not finite from {', '.join(bound.text for bound in blocks)}, of "
            f"rewards from {float(total[rows].min()):g} to {float(total[rows].max()):g}; choose another scale or "
            "shape, or a transform that brings the rewards into its range"
        )
    inputs |= {"advantages": samples}

    keep, entries = rows, inputs["decision_mask"]
    for selector in algorithm.after:
        # Of samples [B], or of decisions [B, T].
        selection = selector({**inputs, "keep": keep})
        if selection.dim() == 1:
            keep = keep & selection
        else:
            entries = entries & selection
    credit = algorithm.credit({**inputs, "keep": keep})
    loss_mask = inputs["loss_mask"] & _any_sharing_row(keep[:, None] & entries, inputs["node"], inputs["decision_mask"])

    first = groups.group_first(group, compared)
    spread = groups.group_spread(total, group, stats[0])
    sizes = groups.group_count(group, from_policy)[from_policy]
    if bool((sizes == 1).all()):  # groups of one: nothing is compared in them
        spread = samples != 0
    return Estimate(
        advantages=credit.to(device, torch.float32),
        loss_mask=loss_mask.to(device),
        rewards=torch.where(scored, total, torch.nan).to(device, torch.float32),
        samples=samples.to(device, torch.float32),
        kl_weight=kl_weight.to(device, torch.float32),
        spread_groups=int((first & spread).sum()),
        zero_spread=float((first & ~spread).sum()) / max(1, int(first.sum())),
        silent=_silent(values, counted, group, stats[0]),
        measured=kl_metrics(algorithm.kl_weight, inputs["raw"], names, stats[0]) if weighed else {},
    )


def _of_parts(
    algorithm: AdvantageRecipe,
    values: Float[Tensor, "B R"],
    valid: Bool[Tensor, "B R"],
    weights: Float[Tensor, "R"],
    decisions: Decisions,
    names: Sequence[str],
    factor: float,
    abstained: Bool[Tensor, "B R"] | None,
    origins: Sequence[int],
) -> Estimate:
    """The estimate of rows with decisions of several kinds: what it says of samples and groups is that of the section's
    own lines, advantages and mask are those of each part at its decisions.

    The rows of a key ``per`` count as one, whose rewards are their means and whose decisions are those of the first of
    them, which owns the shared ones. J = 2 texts with K = 3 images each, of rewards -.743, .752, .502 and .099, -.460,
    -.152: means .1703 and -.1710, advantages +-.7071 among texts where rows together give texts +-.3003.
    """
    whole = replace(algorithm, parts=())
    result = estimate(values, valid, weights, decisions, whole, names, factor, abstained, origins)
    advantages, loss_mask = torch.zeros_like(result.advantages), torch.zeros_like(result.loss_mask)
    measured = dict(result.measured)
    nowhere = torch.zeros_like(valid) if abstained is None else abstained
    for part in algorithm.parts:
        there = decisions.fields[part_field(part.name)]
        masks = {"loss_mask": decisions.loss_mask & there, "decision_mask": decisions.decision_mask & there}
        of_rows, place = replace(decisions, **masks), torch.arange(decisions.rows, device=values.device)
        scores, known, left, rows = values, valid, nowhere, place
        if part.per:
            key = torch.unique(_column(decisions, part.per), return_inverse=True)[1].to(values.device)
            rows = groups.group_first(key, torch.ones_like(key, dtype=torch.bool)).nonzero()[:, 0]
            place = key[rows].argsort()[key]
            columns = [(values[:, column], valid[:, column]) for column in range(valid.shape[1])]
            scores = torch.stack([groups.group_mean(value, key, there) for value, there in columns], 1)[rows]
            known = torch.stack([groups.group_count(key, there) for _, there in columns], 1)[rows] > 0
            of_rows, left = select_rows(of_rows, rows), nowhere[rows] & ~known
        of_part = torch.tensor([part.weights.get(name, 0.0) for name in names]) if part.weights else weights
        partial = estimate(scores, known, of_part, of_rows, part.recipe, names, factor, left, origins)
        advantages = torch.where(there, partial.advantages[place], advantages)
        mask = torch.zeros_like(loss_mask)
        mask[rows] = partial.loss_mask
        loss_mask = loss_mask | mask
        shown = {"advantage": partial.advantages.abs()[partial.loss_mask]}
        if "entropy" in decisions.fields:
            shown["entropy"] = decisions.fields["entropy"][mask]
        measured |= {
            f"{part.name}/{name}": float(tensor.mean()) if len(tensor) else 0.0 for name, tensor in shown.items()
        }
    return replace(result, advantages=advantages, loss_mask=loss_mask, measured=measured)


def _key(text: str) -> Key:
    name, parameters = parse(text, "algorithm.keys")
    for parameter, value in parameters.items():
        if parameter not in ("weight", "own"):
            raise ValueError(
                f"algorithm.keys: '{name}' has no parameter '{parameter}'.{nearest(parameter, ('weight', 'own'))}"
            )
        parameters[parameter] = check_scheduled(Key, parameter, value, f"algorithm.keys: {parameter} of {name}")
    return Key(name, **parameters)


def _column(decisions: Decisions, name: str) -> Tensor:
    if name not in decisions.keys:
        raise KeyError(
            f"algorithm.keys: got '{name}', expected a key of this policy's rollouts." + nearest(name, decisions.keys)
        )
    return decisions.keys[name].cpu()


def _inputs(decisions: Decisions) -> dict[str, Tensor]:
    """The inputs of blocks that come from the decisions, by name, on the CPU, floats in double precision."""
    inputs = {
        **decisions.fields,
        "log_probs": decisions.log_probs,
        "loss_mask": decisions.loss_mask,
        "decision_mask": decisions.decision_mask,
        "node": decisions.node,
        "origin": decisions.origin,
        "length": decisions.decision_mask.sum(1),
    }
    return {
        name: value.detach().cpu().double() if value.is_floating_point() else value.cpu()
        for name, value in inputs.items()
    }


def _any_sharing_row(entries: Tensor, node: Tensor, decision_mask: Tensor) -> Tensor:
    """``entries`` or'ed over the rows that share a decision: a selected row may not be the one that owns it."""
    if not has_shared_decisions(node, decision_mask):
        return entries
    mask = torch.zeros_like(decision_mask)
    mask[decision_mask] = groups.group_count(node[decision_mask], entries[decision_mask]) > 0
    return mask


def _silent(values: Tensor, counted: Tensor, key: Tensor, stat: Tensor) -> tuple[int, ...]:
    batch = torch.zeros_like(key)
    scored = stat[:, None] & ~values.isnan()
    return tuple(
        column
        for column, rows in enumerate(scored.T)
        if counted[column]
        and bool(groups.group_spread(values[:, column], batch, rows).any())
        and not bool((groups.group_spread(values[:, column], key, rows) & rows).any())
    )
