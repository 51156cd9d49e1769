"""What a round draws: prompts of a seeded order, or those that samplers choose (mmgrpo/prompts/samplers.py).

    Sampling    the samplers and trackers of a run; none, and prompts come from the order alone
    Drawing     the draws of a round, one after another, each a ``Draw`` for all processes

Draws are functions of (seed, round) and of the ledger alone, so a resumed run repeats them, and are made for all
processes on each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.estimate import Estimate
from mmgrpo.config.registry import Bound, bind, bind_scheduled
from mmgrpo.config.schedules import Now
from mmgrpo.data.splits import content_digest
from mmgrpo.prompts.ledger import Ledger
from mmgrpo.prompts.samplers import (
    KINDS,
    SAMPLERS,
    Arms,
    Preference,
    Redraws,
    check_weights,
    with_replacement,
    without_replacement,
)
from mmgrpo.prompts.trackers import PROMPTS, READS, TRACKERS, tracked_names
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.types import OWN, Decisions, Prompt, Request, Rollout

EXCLUSIVE = (
    *((kind, kind) for kind in KINDS if kind != "FILTERS"),
    *(("REDRAWS", "STAGES"), ("CHOICES", "ARMS"), ("SIZES", "STAGES")),
)
"""Kinds of samplers of which a round has one."""


@dataclass(frozen=True)
class PromptOrder:
    """An endless seeded order of ``size`` prompts, with a new permutation in every epoch.

    Element i of the sequence is a function of (seed, i) alone, so a run resumes from a position.
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"an order needs at least one prompt, got {self.size}")

    def epoch(self, number: int) -> Int[Tensor, " size"]:
        """The permutation of epoch ``number``."""
        return torch.randperm(self.size, generator=stream(self.seed, "prompts", number))

    def take(self, start: int, count: int) -> list[int]:
        """The prompt indices at positions ``start`` to ``start + count - 1`` of the sequence."""
        if start < 0 or count < 0:
            raise ValueError(f"positions are counted from zero, got start {start} and count {count}")
        first, skip = divmod(start, self.size)
        epochs = -(-(skip + count) // self.size)  # rounded up
        indices = [index for number in range(first, first + epochs) for index in self.epoch(number).tolist()]
        return indices[skip : skip + count]


@dataclass(frozen=True)
class Sampling:
    """The bound samplers and trackers of a run."""

    redraws_: Bound | None = None
    filters: tuple[Bound, ...] = ()
    choice: Bound | None = None
    arms: Bound | None = None
    sizes: Bound | None = None
    stages: Bound | None = None
    trackers: tuple[Bound, ...] = ()

    @staticmethod
    def of(samplers: Sequence[str], trackers: Sequence[str] = ()) -> Sampling:
        """Bind the texts of ``algorithm.sampler`` and ``algorithm.trackers``; errors come here, before the run."""
        bound: dict[str, list[Bound]] = {kind: [] for kind in KINDS}
        for text in samplers:
            sampler = bind_scheduled(text, SAMPLERS, "algorithm.sampler")
            kind = next((kind for kind, table in KINDS.items() if sampler.block in table.values()), "")
            if not kind:
                raise ValueError(f"algorithm.sampler: got '{text}', expected one of {', '.join(SAMPLERS)}")
            if kind in ("REDRAWS", "STAGES"):
                sampler = bind(text, SAMPLERS, "algorithm.sampler")
            bound[kind].append(sampler)
        for first, second in EXCLUSIVE:
            both = [s.text for s in (*bound[first][:1], *bound[second][first == second :][:1])]
            if len(both) > 1:
                raise ValueError(
                    f"algorithm.sampler: got '{both[0]}' and '{both[1]}', of which a round can have one; choose one"
                )
        only = {kind: bounds[0] if bounds else None for kind, bounds in bound.items()}
        sampling = Sampling(
            redraws_=only["REDRAWS"],
            filters=tuple(bound["FILTERS"]),
            choice=only["CHOICES"],
            arms=only["ARMS"],
            sizes=only["SIZES"],
            stages=only["STAGES"],
            trackers=tuple(bind(text, TRACKERS, "algorithm.trackers") for text in trackers),
        )
        if sampling.redraws_ is not None and not sampling.redraws_.needs:
            sampling.redraws_({})  # the check of its parameters
        sampling.refuse(
            {name for block in sampling.blocks for name in block.needs if name in READS}, "algorithm.sampler"
        )
        return sampling

    @property
    def blocks(self) -> tuple[Bound, ...]:
        blocks = (self.redraws_, *self.filters, self.choice, self.arms, self.sizes, self.stages)
        return tuple(block for block in blocks if block is not None)

    @property
    def uniform(self) -> bool:
        """Whether prompts come from the seeded order alone, all with equally many samples."""
        adaptive = self.redraws_ is not None and bool(self.redraws_.needs)
        return not (adaptive or self.filters or self.choice or self.arms or self.sizes or self.stages)

    @property
    def column(self) -> str:
        """The column of categories; empty where there are none."""
        bounds = [*([self.arms] if self.arms else []), *self.trackers]
        columns = [_parameter(tracker, "column") for tracker in bounds if "column" in tracker.block.parameters]
        if len({*columns}) > 1:
            raise ValueError(f"algorithm.trackers: got categories by {' and '.join(columns)}, expected one column")
        return columns[0] if columns else ""

    def refuse(self, names: Set[str], where: str) -> None:
        """Raise ValueError for a name that blocks read of the ledger and no tracker provides."""
        for name in sorted(names - tracked_names(self.trackers)):
            raise ValueError(
                f"{where}: a block reads {name}, which no tracker keeps; add '{READS[name].tracker}' to "
                "algorithm.trackers"
            )

    def redraws(self, ledger: Ledger | None = None) -> Redraws:
        """What ``REDRAWS`` says of a round; without a ledger at the rate of the first."""
        if self.redraws_ is None:
            return Redraws()
        rate = ledger.read("keep_rate") if ledger and self.redraws_.needs else torch.ones(1)
        return self.redraws_({"keep_rate": rate})

    def ledger(self, prompts: Sequence[Prompt], files: Mapping[bytes, str] | None = None) -> Ledger:
        """The empty ledger of a run; ``files`` are the training files of prompts by ``content_digest``."""
        columns = {_parameter(rule, "column") for rule in self.filters if "column_values" in rule.needs}
        given = {column: numbers_of(prompts, column) for column in columns}
        if not self.column:
            return Ledger(len(prompts), self.trackers, given=given)
        texts = [category_of(prompt, self.column, files or {}) for prompt in prompts]
        names = list(dict.fromkeys(texts))
        index = {name: place for place, name in enumerate(names)}
        ledger = Ledger(len(prompts), self.trackers, [index[text] for text in texts], names, given)
        if self.arms is not None and "category_names" in self.arms.needs:
            # Names that no prompt has, and weights that are none, are refused here.
            check_weights(
                self.arms.at(Now(0, 1))({"category_names": names}).weights, f"algorithm.sampler: {self.arms.text}"
            )
        return ledger


def _parameter(bound: Bound, name: str) -> Any:
    return bound.parameters.get(name, bound.block.parameters[name].default)


def category_of(prompt: Prompt, column: str, files: Mapping[bytes, str]) -> str:
    """The category of a prompt: its task, its file, or a text or number of its row; an error names one without."""
    if column == "task":
        return prompt.task or "(none)"
    if column == "file":
        return Path(files.get(content_digest(prompt), "(none)").partition("@")[0]).stem
    value = prompt.meta.get(column)
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(
            f"algorithm.sampler: prompt '{prompt.id}' has {value!r} in '{column}', expected a text or number, its "
            "category; add the column to the data set, or choose another: task, file, or one of the rows"
        )
    return str(value)


def numbers_of(prompts: Sequence[Prompt], column: str) -> Float[Tensor, "N"]:
    """The numbers of a column of the data set; an error names a prompt without."""
    values = []
    for prompt in prompts:
        value = prompt.meta.get(column)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(
                f"algorithm.sampler: prompt '{prompt.id}' has {value!r} in '{column}', expected a number; add the "
                "column to the data set, or name another"
            )
        values.append(float(value))
    return torch.tensor(values, dtype=torch.float64)


@runtime_checkable
class RoundSize(Protocol):
    """The size of a round, and what draws it."""

    @property
    def prompts(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def samplers(self) -> Sampling: ...


@dataclass(frozen=True)
class Draw:
    """What is sampled at a time, over all processes: a place for every group, or part of a group."""

    indices: tuple[int, ...]
    """Numbers of the prompts in the training set."""
    slots: tuple[int, ...]
    """Names of the random streams, new in every draw."""
    groups: tuple[int, ...]
    """The slot with which each group began, and which is its key."""
    counts: tuple[int, ...]
    """Samples."""
    version: int | None = None
    """The round whose weights draw, where it is an earlier one by rule (``mmgrpo.rounds.ahead``)."""

    def with_prompt_index(self, rollout: Rollout, request: Request, places: Sequence[int]) -> Rollout:
        """The rollout of a part with the field ``prompt_index``, the number of each row's prompt in the training set
        (-1 for a changed prompt), where it was drawn ahead with the ``version`` of the weights that drew each row, and,
        of a later stage, with the keys of the groups that its rows join."""
        decisions = rollout.decisions
        index = {id(prompt): self.indices[place] for prompt, place in zip(request.prompts, places, strict=True)}
        numbers = torch.tensor([index.get(id(prompt), -1) for prompt in rollout.prompts])
        numbers = put(numbers, decisions.origin.device)
        key = decisions.keys["prompt"]
        if self.slots != self.groups:
            names = dict(zip(self.slots, self.groups, strict=True))
            key = put(torch.tensor([names[slot] for slot in key.tolist()]), key.device)
        fields, keys = {**decisions.fields, "prompt_index": numbers}, {**decisions.keys, "prompt": key}
        fields |= {"version": torch.full_like(numbers, self.version)} if self.version is not None else {}
        return rollout.with_decisions(replace(decisions, fields=fields, keys=keys))

    def parts(self, world: int, at_once: int) -> list[list[list[int]]]:
        """For each process the places that it samples together, of equal counts.

        Equal groups are divided in their order. Unequal ones, longest first, go to the process with the fewest samples.
        """
        places = range(len(self.counts))
        if len({*self.counts}) == 1 and len(self.counts) % world == 0:
            each = len(self.counts) // world
            shares = [list(places[rank * each : (rank + 1) * each]) for rank in range(world)]
        else:
            shares, loads = [[] for _ in range(world)], [0] * world
            for place in sorted(places, key=lambda place: -self.counts[place]):
                rank = loads.index(min(loads))
                shares[rank].append(place)
                loads[rank] += self.counts[place]
        parts = []
        for share in shares:
            by_count: dict[int, list[int]] = {}
            for place in sorted(share):
                by_count.setdefault(self.counts[place], []).append(place)
            size = at_once or max(1, len(share))
            parts.append([same[i : i + size] for same in by_count.values() for i in range(0, len(same), size)])
        return parts


@dataclass
class Drawing:
    """The draws of one round, one after another: ``first``, then ``next`` until it is None."""

    settings: RoundSize
    ledger: Ledger
    order: PromptOrder
    cursor: int
    number: int
    seed: int
    world: int
    draws: list[Draw] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    version: int | None = None
    """``Draw.version`` of its draws."""
    _part: float = 1.0

    @property
    def sampling(self) -> Sampling:
        return self.settings.samplers

    @property
    def prompts(self) -> int:
        return self.settings.prompts

    def first(self) -> Draw:
        """The first draw of the round, which may have been chosen before."""
        if self.draws:
            return self.draws[0]
        redraws = self.sampling.redraws(self.ledger)
        return self._fresh(self._round_up(math.ceil(self.prompts / redraws.rate)) if redraws.adaptive else self.prompts)

    def next(self, result: Estimate, decisions: Decisions) -> Draw | None:
        """The draw after those so far, of which ``result`` is the estimate."""
        spread_groups = result.spread_groups
        if self.sampling.stages is not None:
            return self._stage(result.rewards, decisions)
        redraws, missing = self.sampling.redraws(self.ledger), self.prompts - spread_groups
        if missing <= 0 or len(self.draws) > redraws.rounds:
            return None
        if redraws.adaptive:
            drawn = sum(len(draw.counts) for draw in self.draws)
            self._part = min(self._part, max(spread_groups, 1) / drawn)
            missing = math.ceil(missing / min(redraws.rate, self._part))
        return self._fresh(self._round_up(missing))

    def surplus(self, result: Estimate, decisions: Decisions) -> Bool[Tensor, "B"]:
        """Rows of groups that an adaptive draw sampled beyond the first ``prompts`` with spread."""
        rewards, key = result.rewards, decisions.keys["prompt"]
        if not self.sampling.redraws(self.ledger).adaptive:
            return torch.zeros_like(key, dtype=torch.bool)
        scored = ~rewards.isnan() & (decisions.origin == OWN)
        spread = groups.group_spread(rewards.nan_to_num(0.0), key, scored)
        return torch.isin(key, torch.unique(key[spread & scored])[self.prompts :])

    def _round_up(self, count: int) -> int:
        return -(-count // self.world) * self.world  # every rank draws as many

    def _fresh(self, count: int) -> Draw:
        indices = self._choose(count)
        first = max(
            len(self.draws) * self.prompts, max((slot + 1 for draw in self.draws for slot in draw.slots), default=0)
        )
        slots = tuple(range(first, first + count))
        counts = self._counts(indices)
        draw = Draw(tuple(indices), slots, slots, counts, self.version)
        self.draws.append(draw)
        return draw

    def _stage(self, rewards: Float[Tensor, "B"], decisions: Decisions) -> Draw | None:
        key, stages = decisions.keys["prompt"], self.sampling.stages
        assert stages is not None
        if len(self.draws) >= _parameter(stages, "rounds"):
            return None
        done, begun = stages({}), self.draws[0]
        if {*key.tolist()} != {*begun.slots}:
            raise ValueError(
                f"algorithm.sampler: '{stages.text}' needs one group per prompt, and this policy samples several "
                "(those of sampling.plan); choose another plan, or another sampler"
            )
        scored = ~rewards.isnan() & (decisions.origin == OWN)
        left = [place for place, slot in enumerate(begun.slots) if not done(rewards[scored & (key == slot)])]
        if not left:
            return None
        first = len(self.draws) * self.prompts
        draw = Draw(
            tuple(begun.indices[place] for place in left),
            tuple(first + place for place in left),
            tuple(begun.slots[place] for place in left),
            tuple(begun.counts[place] for place in left),
            self.version,
        )
        self.draws.append(draw)
        return draw

    def _counts(self, indices: Sequence[int]) -> tuple[int, ...]:
        if self.sampling.sizes is None:
            return (self.settings.group_size,) * len(indices)
        chosen = torch.tensor(indices)
        inputs = {
            name: value[chosen]
            for name, value in self._inputs(self.sampling.sizes).items()
            if isinstance(value, Tensor)
        }
        sizes = self.sampling.sizes({**inputs, "count": self.settings.group_size})
        self.metrics["prompts/largest_group"] = float(sizes.max())
        return tuple(sizes.tolist())

    def _inputs(self, bound: Bound) -> dict[str, Any]:
        """The inputs of a sampler: columns and reads of the ledger."""
        inputs: dict[str, Any] = {
            "round": self.number,
            "category_names": self.ledger.names,
            "count": self.settings.group_size,
        }
        for name in bound.needs:
            if name in READS:
                inputs[name] = self.ledger.read(name)
            elif name in self.ledger.columns[PROMPTS]:
                inputs[name] = self.ledger.columns[PROMPTS][name]
            elif name == "column_values":
                inputs[name] = self.ledger.given[_parameter(bound, "column")]
        return inputs

    def _choose(self, count: int) -> list[int]:
        """The numbers of ``count`` prompts; moves the cursor past what it takes of the seeded order."""
        if self.sampling.uniform:
            indices = self.order.take(self.cursor, count)
            self.cursor += count
            return indices
        allowed = torch.ones(self.order.size, dtype=torch.bool)
        for rule in self.sampling.filters:
            allowed = allowed & rule(self._inputs(rule))
            if not bool(allowed.any()):
                raise ValueError(
                    f"algorithm.sampler: '{rule.text}' leaves no prompt of {self.order.size} in round {self.number}; "
                    "stop the run here, or loosen the filter"
                )
        if self.sampling.filters:
            self.metrics["prompts/left_out"] = float((~allowed).sum())
        generator = stream(self.seed, "sampler", self.number, len(self.draws))
        if self.sampling.arms is not None:
            indices = self._by_category(count, allowed, generator)
        elif self.sampling.choice is not None:
            inputs = self._inputs(self.sampling.choice)
            if "predicted_reward" in self.sampling.choice.needs:
                inputs["predicted_reward"] = self._predict(count, allowed)
            indices = self._draw_preferred(self.sampling.choice(inputs), count, allowed, generator)
        else:
            indices = self._take_allowed(count, allowed)
        self.metrics["prompts/distinct_fraction"] = len({*indices}) / len(indices)
        return indices

    def _take_allowed(self, count: int, allowed: Bool[Tensor, "N"]) -> list[int]:
        """The next allowed prompts of the seeded order."""
        indices: list[int] = []
        while len(indices) < count:
            taken = self.order.take(self.cursor, count - len(indices))
            self.cursor += len(taken)
            indices += [index for index in taken if allowed[index]]
        return indices

    def _predict(self, count: int, allowed: Bool[Tensor, "N"]) -> Float[Tensor, "N"]:
        """The predicted rewards of the candidates of this draw, NaN of other prompts."""
        assert self.sampling.choice is not None and self.ledger.predict is not None
        values, cursor = torch.full((self.order.size,), torch.nan, dtype=torch.float64), self.cursor
        candidates = sorted({*self._take_allowed(count * _parameter(self.sampling.choice, "candidates"), allowed)})
        self.cursor = cursor
        values[torch.tensor(candidates)] = self.ledger.predict(candidates)
        return values

    def _draw_preferred(
        self, preference: Preference, count: int, allowed: Bool[Tensor, "N"], generator: torch.Generator
    ) -> list[int]:
        if preference.how == "nearest":
            candidates = self._take_allowed(count * preference.candidates, allowed)
            distance = preference.weights[torch.tensor(candidates)]
            best = sorted(distance.argsort(stable=True)[:count].tolist())
            return [candidates[place] for place in best]
        weights = check_weights(torch.where(allowed, preference.weights.double(), 0.0), "algorithm.sampler")
        number = int(preference.share * count)
        if not bool((weights > 0).any()):
            self.metrics["prompts/effective"] = float(allowed.sum())
            return self._take_allowed(count, allowed)
        chances = weights / weights.sum()
        self.metrics["prompts/effective"] = float(1 / chances.square().sum())
        draw = without_replacement if preference.how == "distinct" else with_replacement
        indices = draw(
            weights,
            torch.rand(
                self.order.size if draw is without_replacement else number, dtype=torch.float64, generator=generator
            ),
            number,
        )
        return indices + self._take_allowed(count - len(indices), allowed)

    def _by_category(self, count: int, allowed: Bool[Tensor, "N"], generator: torch.Generator) -> list[int]:
        assert self.sampling.arms is not None
        arms: Arms = self.sampling.arms(self._inputs(self.sampling.arms))
        members = [((self.ledger.category == arm) & allowed).nonzero()[:, 0] for arm in range(len(self.ledger.names))]
        present = torch.tensor([float(len(prompts) > 0) for prompts in members], dtype=torch.float64)
        weights = check_weights(arms.weights.double() * present, "algorithm.sampler")
        if not bool((weights > 0).any()):
            raise ValueError(
                f"algorithm.sampler: '{self.sampling.arms.text}' gives weight 0 to every category that has prompts "
                f"({', '.join(name for name, prompts in zip(self.ledger.names, members) if len(prompts))}); give one a "
                "weight"
            )
        uniform = torch.rand(2, count, dtype=torch.float64, generator=generator)
        chosen = with_replacement(weights, uniform[0], count)
        drawn = torch.bincount(torch.tensor(chosen), minlength=len(members)) / count
        self.metrics |= {f"category/{n}/drawn": float(drawn[i]) for i, n in enumerate(self.ledger.names)}
        return [
            int(members[arm][min(int(u * len(members[arm])), len(members[arm]) - 1)])
            for arm, u in zip(chosen, uniform[1].tolist(), strict=True)
        ]
