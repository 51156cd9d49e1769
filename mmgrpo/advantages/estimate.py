"""From rewards and groups to advantages [B, T], by the blocks of a recipe.

    rewards [B, R] -> combine: for each (stream, key) (reward - baseline) / scale, summed
                   -> shape -> credit -> advantages [B, T]

``select`` acts before the statistics or only on what is trained, see ``select.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.baseline import BASELINES
from mmgrpo.advantages.combine import COMBINE
from mmgrpo.advantages.credit import CREDITS, shares
from mmgrpo.advantages.groups import Values
from mmgrpo.advantages.scale import SCALES
from mmgrpo.advantages.select import BEFORE, SELECTORS
from mmgrpo.advantages.shape import SHAPES
from mmgrpo.registry import Bound, bind, nearest, parse
from mmgrpo.types import CONTRAST, OWN, Decisions

GIVEN_ALWAYS = frozenset(
    {"values", "weights", "key", "stat", "keep", "normalise", "centred", "advantages"}
    | {"log_probs", "loss_mask", "decision_mask", "node", "origin", "length"}
)
"""Inputs that every policy and batch has; what a block needs beyond them is a field of the decisions."""


@runtime_checkable
class Written(Protocol):
    """The part of an algorithm's configuration that is about advantages: blocks as text."""

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


@dataclass(frozen=True)
class Key:
    """One way to say who is compared with whom."""

    name: str
    """Name of the key in ``Decisions.keys``."""
    weight: float = 1.0
    """Factor of the advantages that this key gives."""
    own: bool = True
    """Only rows that the policy itself sampled are in the statistics."""


@dataclass(frozen=True)
class AdvantageRecipe:
    """The bound blocks that turn rewards into advantages."""

    combine: Bound
    keys: tuple[Key, ...]
    baseline: Bound
    scale: Bound
    shape: tuple[Bound, ...]
    credit: Bound
    before: tuple[Bound, ...]
    after: tuple[Bound, ...]

    @staticmethod
    def of(written: Written) -> AdvantageRecipe:
        """Bind a recipe as it is written; unknown names and parameters are errors here, not in the run."""
        if not written.keys:
            raise ValueError("algorithm.keys is empty; name at least one group key, e.g. ['prompt']")
        baseline = parse(written.baseline)[0]
        if baseline in ("greedy", "static_reference") and parse(written.combine)[0] != "weighted_sum":
            raise ValueError(
                f"algorithm.baseline '{baseline}' is one number for all rewards together, and algorithm.combine "
                f"'{written.combine}' compares each of them; choose weighted_sum or another baseline"
            )
        selectors = [bind(text, SELECTORS, "algorithm.select") for text in written.select]
        is_before = [parse(text)[0] in BEFORE for text in written.select]
        return AdvantageRecipe(
            combine=bind(written.combine, COMBINE, "algorithm.combine"),
            keys=tuple(_key(text) for text in written.keys),
            baseline=bind(written.baseline, BASELINES, "algorithm.baseline"),
            scale=bind(written.scale, SCALES, "algorithm.scale"),
            shape=tuple(bind(text, SHAPES, "algorithm.shape") for text in written.shape),
            credit=bind(written.credit, CREDITS, "algorithm.credit"),
            before=tuple(bound for bound, early in zip(selectors, is_before, strict=True) if early),
            after=tuple(bound for bound, early in zip(selectors, is_before, strict=True) if not early),
        )

    @property
    def fields(self) -> frozenset[str]:
        """Names of the fields (``Decisions.fields``) that the rollout has to bring along."""
        bounds = (
            self.combine,
            self.baseline,
            self.scale,
            *self.shape,
            self.credit,
            *self.before,
            *self.after,
        )
        return frozenset(name for bound in bounds for name in bound.block.needs) - GIVEN_ALWAYS

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the keys (``Decisions.keys``) that the rollout has to bring along."""
        return tuple(key.name for key in self.keys)


@dataclass(frozen=True)
class Estimate:
    """What the rewards of a batch say about its decisions."""

    advantages: Float[Tensor, "B T"]
    loss_mask: Bool[Tensor, "B T"]
    """Decisions that are trained: owned, and passed by a row that was scored and selected."""
    rewards: Values
    """Weighted sum of the rewards; NaN where one of them could not be scored."""
    samples: Values
    """Advantage of each sample, before credit."""
    spread_groups: int
    """Groups (of the first key) whose rewards are not all equal."""
    zero_spread: float
    """Share of the groups whose rewards are all equal: they teach a group-relative method nothing."""
    silent: tuple[int, ...]
    """Rewards that differ between groups but in no group: a baseline of the group cancels them."""


def estimate(
    values: Float[Tensor, "B R"],
    valid: Bool[Tensor, "B R"],
    reward_weights: Float[Tensor, "R"],
    decisions: Decisions,
    algorithm: AdvantageRecipe,
) -> Estimate:
    """Advantages of a whole gathered batch.

    A row of which a reward with weight could not be scored is outside the statistics, gets advantage 0
    and is not trained. Made on the CPU in double precision, so that ranks and devices do not matter.
    """
    device = values.device
    if not bool((reward_weights != 0).any()):
        raise ValueError("all rewards have weight 0; give at least one reward a weight")
    weights = reward_weights.detach().cpu().double()
    counted = weights != 0
    valid = valid.cpu()
    scored = valid[:, counted].all(1)
    values = torch.where(valid & scored[:, None], values.detach().cpu(), 0.0).double()
    numbers = _numbers(decisions)
    numbers["weights"] = weights
    keys = [_column(decisions, key.name) for key in algorithm.keys]
    total = values @ weights
    group = keys[0]

    rows = scored & (numbers["origin"] != CONTRAST)
    for selector in algorithm.before:
        rows = rows & selector({**numbers, "values": total, "key": group, "keep": rows})
    own = numbers["origin"] == OWN
    stats = [rows & own if key.own else rows for key in algorithm.keys]
    numbers |= {"stat": stats[0]}

    def normalise(stream: Tensor) -> Tensor:
        advantages = torch.zeros_like(stream)
        for key, column, stat in zip(algorithm.keys, keys, stats, strict=True):
            seen = {**numbers, "values": stream, "key": column, "stat": stat}
            centred = torch.where(rows, stream - algorithm.baseline(seen), 0.0)
            advantages = advantages + key.weight * algorithm.scale({**seen, "centred": centred})
        return advantages

    samples = algorithm.combine({**numbers, "normalise": normalise, "values": values})
    numbers |= {"values": total, "key": group}
    for shape in algorithm.shape:
        samples = shape({**numbers, "advantages": samples})
    samples = torch.where(rows, samples, 0.0)
    numbers |= {"advantages": samples}

    keep, entries = rows, numbers["decision_mask"]
    for selector in algorithm.after:
        chosen = selector({**numbers, "keep": keep})
        if chosen.dim() == 1:
            keep = keep & chosen
        else:
            entries = entries & chosen
    credit = algorithm.credit({**numbers, "keep": keep})
    loss_mask = numbers["loss_mask"] & _passed_by(keep[:, None] & entries, numbers["node"], numbers["decision_mask"])

    first = groups.group_first(group, numbers["origin"] != CONTRAST)
    spread = groups.group_spread(total, group, stats[0])
    return Estimate(
        advantages=credit.to(device, torch.float32),
        loss_mask=loss_mask.to(device),
        rewards=torch.where(scored, total, torch.nan).to(device, torch.float32),
        samples=samples.to(device, torch.float32),
        spread_groups=int((first & spread).sum()),
        zero_spread=float((first & ~spread).sum()) / max(1, int(first.sum())),
        silent=_silent(values, counted, group, stats[0]),
    )


def _key(text: str) -> Key:
    name, parameters = parse(text)
    for parameter in parameters:
        if parameter not in ("weight", "own"):
            raise ValueError(f"algorithm.keys: '{name}' has no '{parameter}'.{nearest(parameter, ('weight', 'own'))}")
    return Key(name, **parameters)


def _column(decisions: Decisions, name: str) -> Tensor:
    if name not in decisions.keys:
        raise KeyError(
            f"algorithm.keys names '{name}', a key that this policy's rollouts do not have."
            + nearest(name, decisions.keys)
        )
    return decisions.keys[name].cpu()


def _numbers(decisions: Decisions) -> dict[str, Tensor]:
    """Everything in the decisions by name, on the CPU, floats in double precision."""
    numbers = {
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
        for name, value in numbers.items()
    }


def _passed_by(entries: Tensor, node: Tensor, decision_mask: Tensor) -> Tensor:
    """Decisions that some row with a True entry passes: the owner of a decision may not be that row."""
    if not shares(node, decision_mask):
        return entries
    made = torch.zeros_like(decision_mask)
    made[decision_mask] = groups.group_count(node[decision_mask], entries[decision_mask]) > 0
    return made


def _silent(values: Tensor, counted: Tensor, key: Tensor, stat: Tensor) -> tuple[int, ...]:
    batch = torch.zeros_like(key)
    return tuple(
        column
        for column in range(values.shape[1])
        if counted[column]
        and bool(groups.group_spread(values[:, column], batch, stat).any())
        and not bool((groups.group_spread(values[:, column], key, stat) & stat).any())
    )
