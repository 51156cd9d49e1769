"""Samplers: which prompts a round draws, with how many samples each, and when it draws again.

    FILTERS     which prompts may be drawn                                   [N] True or False
    CHOICES     how much each prompt is preferred (``Preference``)           [N]
    ARMS        how much each category is preferred (``Arms``)               [C]
    SIZES       samples for each drawn prompt, from one budget
    STAGES      a group is drawn in stages until a rule holds
    REDRAWS     groups of equal rewards are replaced by fresh prompts

A round may have one of each kind but of REDRAWS and STAGES, of which it has one. Inputs of a block are columns of the
ledger or its reads (``trackers.READS``), and ``round``, the number of the round. Draws are functions of (seed, round)
and of the ledger alone, so that a resumed run repeats them, and are made for all processes on each of them.

Without a choice or an arm prompts come from the seeded order (``PromptOrder``), from where the last round stopped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.estimate import Estimate
from mmgrpo.config.names import nearest as nearest_name
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, COUNT_OR_ZERO, FRACTION, POSITIVE, one_of, within
from mmgrpo.config.registry import Bound, bind, bind_scheduled, block, table_of
from mmgrpo.config.schedules import Now
from mmgrpo.data.prompts import PromptOrder
from mmgrpo.data.splits import content_digest
from mmgrpo.prompts.ledger import Ledger
from mmgrpo.prompts.trackers import PROMPTS, READS, TRACKERS, tracked
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.types import OWN, Decisions, Prompt, Request, Rollout

REDRAWS = table_of("sampler")
"""Functions that return the maximal number of redraws per round, and whether a draw is larger by the groups that are
expected to have no spread (``Redraws``)."""
FILTERS = table_of("sampler")
CHOICES = table_of("sampler")
ARMS = table_of("sampler")
SIZES = table_of("sampler")
STAGES = table_of("sampler")

Numbers = Float[Tensor, "N"]
Counts = Int[Tensor, "N"]


@dataclass(frozen=True)
class Redraws:
    """How often a round draws again, and how much."""

    rounds: int = 0
    rate: float = 1.0
    """Fraction of the sampled groups that is expected to have spread."""
    adaptive: bool = False


@dataclass(frozen=True)
class Preference:
    """How a round prefers prompts."""

    weights: Numbers
    """Not negative; for ``nearest`` the distances, of which the smallest are taken."""
    share: float = 1.0
    """Fraction of the round that is drawn by weight; the others come from the seeded order."""
    how: str = "replace"
    """``replace`` (with replacement), ``distinct``, or ``nearest`` (of candidates of the seeded order)."""
    candidates: int = 1
    """Candidates per prompt, for ``nearest``."""


@dataclass(frozen=True)
class Arms:
    """How a round prefers categories."""

    weights: Float[Tensor, "C"]


@block(REDRAWS)
def dynamic_sampling(rounds: int = 10) -> Redraws:
    """Groups without spread are replaced by fresh prompts, at most ``rounds`` times (DAPO, arXiv:2503.14476)."""
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"dynamic_sampling: got rounds {rounds}, expected a whole number of at least 1")
    return Redraws(rounds)


@block(REDRAWS, level="group")
def adaptive_sampling(keep_rate: Float[Tensor, "1"], *, rounds: Annotated[int, COUNT] = 10) -> Redraws:
    """``dynamic_sampling`` whose draws are larger by the fraction of groups that had no spread so far, and which trains
    the first groups with spread of as many as the round has prompts (adaptive DAPO of CodeV-R1, arXiv:2505.24183).

    128 prompts at a rate of .6: 214 are drawn. 80 of 128 kept: 48 are missing, 48 / .625 = 77 are drawn next.
    """
    return Redraws(rounds, float(keep_rate[0]), adaptive=True)


@block(FILTERS, level="group")
def retire(visits: Counts, last_mean: Numbers, *, at: Annotated[float, ANY_NUMBER] = 0.9) -> Bool[Tensor, "N"]:
    """Prompts whose mean reward at their last visit was below ``at``, and those never visited: others are never drawn
    again (no-positive resampling, ScaleRL, arXiv:2510.13786: .9)."""
    return (visits == 0) | (last_mean < at)


@block(FILTERS, level="group")
def imperfect(
    visits: Counts,
    last_mean: Numbers,
    round: int,
    *,
    after: Annotated[int, COUNT_OR_ZERO] = 60,
    full: Annotated[float, ANY_NUMBER] = 1.0,
) -> Bool[Tensor, "N"]:
    """From round ``after`` on, prompts of which some sample had less than the full reward at their last visit, and
    those never visited (RCS, arXiv:2504.13592: after 60 steps; ``full`` is the sum of its reward weights)."""
    return (visits == 0) | (last_mean < full) | torch.tensor(round < after)


@block(FILTERS, level="group")
def solved_rate(
    visits: Counts,
    pass_rate: Numbers,
    *,
    low: Annotated[float, within("[-inf, inf)")] = -math.inf,
    high: Annotated[float, within("(-inf, inf]")] = math.inf,
) -> Bool[Tensor, "N"]:
    """Prompts whose mean reward at their last visit is within [low, high], and those never visited; with rates measured
    before the run (``data.ledger``) it is a selection by difficulty (T1, arXiv:2501.11651: at most .3)."""
    return (visits == 0) | ((pass_rate >= low) & (pass_rate <= high))


@block(FILTERS, level="group")
def varied(visits: Counts, last_variance: Numbers, *, least: Annotated[float, POSITIVE] = 1e-6) -> Bool[Tensor, "N"]:
    """Prompts whose rewards had a population variance of at least ``least`` at their last visit, and those never
    visited (variance-aware data selection, arXiv:2506.01908, whose threshold is not stated). Rewards of 0 and 1 with
    .1: pass rates of .113 to .887."""
    return (visits == 0) | (last_variance >= least)


@block(FILTERS, level="group")
def difficulty_stages(
    round: int, column_values: Numbers, *, column: str = "difficulty", until: Sequence[int], most: Sequence[int | float]
) -> Bool[Tensor, "N"]:
    """Prompts whose number in a column of the data set is at most ``most[i]`` until round ``until[i]``, and all after
    the last (CRAFT-GUI, arXiv:2508.11360: by the length of the trajectory; its stages are not stated)."""
    if len(until) != len(most):
        raise ValueError(f"algorithm.sampler: difficulty_stages: got {len(until)} rounds and {len(most)} limits")
    limit = next((one for end, one in zip(until, most, strict=True) if round < end), math.inf)
    return column_values <= limit


@block(CHOICES, level="group")
def variance_weighted(visits: Counts, last_variance: Numbers, *, share: Annotated[float, FRACTION] = 0.5) -> Preference:
    """In proportion to the variance of the prompt's rewards at its last visit, p (1 - p) for rewards of 0 and 1, with
    replacement, for ``share`` of the round (variance-aware sampling, MMR1, arXiv:2509.21268: half).

    Pass rates .5, .25, 1, 0: chances .571, .429, 0, 0. The paper measures the rates again every few steps with samples
    that are not trained; here they are those of training. Prompts never visited have the largest weight of the others.
    """
    seen = visits > 0
    top = last_variance[seen].max() if bool(seen.any()) else torch.tensor(1.0, dtype=torch.float64)
    return Preference(torch.where(seen, last_variance, top), share)


@block(CHOICES, level="group")
def uncertainty_weighted(tracker_value: Numbers, *, floor: Annotated[float, POSITIVE] = 0.05) -> Preference:
    """In proportion to sqrt(v (1 - v)) + ``floor``, v the prompt's tracked success rate, without replacement (SPO,
    arXiv:2509.13232). v = .5, .1, 0: .55, .35, .05."""
    return Preference((tracker_value * (1 - tracker_value)).clamp(min=0).sqrt() + floor, how="distinct")


@block(CHOICES, level="group")
def nearest(
    average_reward: Numbers,
    *,
    target: Annotated[float, ANY_NUMBER] = 0.5,
    candidates: Annotated[int, COUNT] = 4,
) -> Preference:
    """Of ``candidates`` times as many prompts of the seeded order those whose average reward is nearest to ``target``
    (PCL, arXiv:2510.01135: .5 and 4). Prompts never visited count as at the target.

    The paper predicts the average by a value network over prompts; here it is the one tracked, in a table.
    """
    distance = torch.where(average_reward.isnan(), 0.0, (average_reward - target).abs())
    return Preference(distance, how="nearest", candidates=candidates)


@block(ARMS, level="group")
def bandit(
    arm_values: Float[Tensor, "C"], *, column: str = "task", temperature: Annotated[float, POSITIVE] = 1.0
) -> Arms:
    """A category for every place by softmax(Q / temperature), then one of its prompts (SEC, arXiv:2505.14970: 1, .4 or
    .2). ``column`` is task, file, or a column of the data set. Q = .4, .2, 0 at .4: .506, .307, .186.
    """
    return Arms(torch.softmax(arm_values / temperature, 0))


@block(ARMS, level="group")
def mixture(category_names: Sequence[str], *, weights: Mapping[str, int | float], column: str = "file") -> Arms:
    """A category for every place with given weights, then one of its prompts (MoDoMoDo, arXiv:2505.24871). ``column``
    is file (names of data.train and data.extra_train without folder and ending), task, or a column of the data set.

    Each weight may follow a schedule: {'easy': linear(0.6, 0.1, 400, after=300), 'hard': linear(0.1, 0.6, 400,
    after=300)} moves from one tier to another (RMT, arXiv:2509.24375, which states no weights).
    MoDoMoDo ends a run when a category is used up; here its next permutation follows.
    """
    if texts := [one for one in weights.values() if isinstance(one, str)]:
        raise ValueError(f"algorithm.sampler: mixture: got the weight '{texts[0]}', expected a number")
    if unknown := [name for name in weights if name not in category_names]:
        raise ValueError(
            f"algorithm.sampler: mixture: got weights of '{unknown[0]}', which no prompt has in '{column}' (there are "
            f"{', '.join(category_names)}).{nearest_name(unknown[0], category_names)}"
        )
    return Arms(torch.tensor([float(weights.get(name, 0.0)) for name in category_names], dtype=torch.float64))


@block(SIZES, level="group")
def knapsack(
    window_mean: Numbers,
    draws: Counts,
    last_mean: Numbers,
    last_count: Counts,
    count: int,
    *,
    least: Annotated[int, COUNT] = 2,
    most: Annotated[int, COUNT] = 128,
    known: Annotated[int, COUNT] = 8,
) -> Counts:
    """Samples per prompt that maximize the sum of [1 - p^n - (1 - p)^n] p (1 - p)^2, with ``least`` to ``most`` each
    and as many in all as equal groups would have (Knapsack RL, arXiv:2509.25849: 2 and 128).

    p is the mean of the last visit if that had 16 samples, else of the last rewards kept (tracker window). Prompts with
    fewer than ``known`` samples so far have the usual number, always and never solved ones ``least``; what the others
    cannot use goes to the never solved ones, evenly. p = .5, .25, .1 and 24 samples with 2 to 16 each: 6, 9, 9.
    The inputs are those of the drawn prompts; ``count`` is the usual number of samples.
    """
    rates = torch.where(last_count >= 16, last_mean, window_mean).clamp(0, 1).tolist()
    familiar = [number >= known for number in draws.tolist()]
    sizes = [min(least, count) if one else count for one in familiar]
    budget = count * len(rates) - sum(sizes)
    effective = [place for place, rate in enumerate(rates) if familiar[place] and 0 < rate < 1]
    others = [place for place, one in enumerate(familiar) if one and place not in {*effective}]
    never = [place for place in others if rates[place] == 0]
    cost = {place: math.log(0.1) / math.log(max(rates[place], 1 - rates[place])) for place in effective}
    useful = sum(max(0, min(most, int(cost[place])) - sizes[place]) for place in effective)

    def gain(place: int) -> float:
        p, n = rates[place], sizes[place]
        return (p**n * (1 - p) + (1 - p) ** n * p) * p * (1 - p) ** 2

    left = budget - useful
    if left > 0:
        budget -= left - _evenly(sizes, never or others, left, most)
    queue = [(-gain(place), place) for place in effective if sizes[place] < most]
    heapq.heapify(queue)
    while budget and queue:
        _, place = heapq.heappop(queue)
        sizes[place], budget = sizes[place] + 1, budget - 1
        if sizes[place] < most:
            heapq.heappush(queue, (-gain(place), place))
    _evenly(sizes, range(len(sizes)), budget, max(most, count))
    return torch.tensor(sizes)


def _evenly(sizes: list[int], places: Sequence[int], amount: int, most: int) -> int:
    """Add ``amount`` to the sizes at some places, always to the smallest, up to ``most``; what is left of it."""
    queue = [(sizes[place], place) for place in places if sizes[place] < most]
    heapq.heapify(queue)
    while amount and queue:
        size, place = heapq.heappop(queue)
        sizes[place], amount = size + 1, amount - 1
        if size + 1 < most:
            heapq.heappush(queue, (size + 1, place))
    return amount


@block(STAGES, level="group")
def staged(
    *,
    rule: Annotated[str, one_of("balanced", "positive")] = "balanced",
    rounds: Annotated[int, COUNT] = 4,
    count: Annotated[int, COUNT] = 4,
    least: Annotated[float, ANY_NUMBER] = 0.5,
) -> Callable[[Tensor], bool]:
    """Each group is drawn in at most ``rounds`` stages of data.group_size samples, until it has ``count`` / 2 rewards
    above ``least`` and as many not above it (``balanced``), or one above it (``positive``) (Reinforce-Ada,
    arXiv:2510.04996: 4 stages of 8, ``count`` 4, of which ``balanced`` in algorithm.select trains as many)."""

    def done(rewards: Tensor) -> bool:
        right = int((rewards > least).sum())
        half = (count + 1) // 2
        return right >= 1 if rule == "positive" else min(right, len(rewards) - right) >= half

    return done


SAMPLERS = REDRAWS | FILTERS | CHOICES | ARMS | SIZES | STAGES
KINDS = {"REDRAWS": REDRAWS, "FILTERS": FILTERS, "CHOICES": CHOICES, "ARMS": ARMS, "SIZES": SIZES, "STAGES": STAGES}

LOCAL = frozenset({"round", "count", "column_values", "category_names"})
"""Inputs of samplers that are no column of the ledger."""


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
            one = bind_scheduled(text, SAMPLERS, "algorithm.sampler")
            kind = next((kind for kind, table in KINDS.items() if one.block in table.values()), "")
            if not kind:
                raise ValueError(f"algorithm.sampler: got '{text}', expected one of {', '.join(SAMPLERS)}")
            if kind in ("REDRAWS", "STAGES"):
                one = bind(text, SAMPLERS, "algorithm.sampler")
            bound[kind].append(one)
        for kind, several in bound.items():
            if len(several) > 1 and kind != "FILTERS":
                raise ValueError(
                    f"algorithm.sampler: got '{several[0].text}' and '{several[1].text}', of which a round can have "
                    "one; choose one"
                )
        pairs = [("REDRAWS", "STAGES"), ("CHOICES", "ARMS"), ("SIZES", "STAGES")]
        for first, second in pairs:
            if bound[first] and bound[second]:
                raise ValueError(
                    f"algorithm.sampler: got '{bound[first][0].text}' and '{bound[second][0].text}', which exclude "
                    "each other; choose one"
                )
        only = {kind: several[0] if several else None for kind, several in bound.items()}
        made = Sampling(
            redraws_=only["REDRAWS"],
            filters=tuple(bound["FILTERS"]),
            choice=only["CHOICES"],
            arms=only["ARMS"],
            sizes=only["SIZES"],
            stages=only["STAGES"],
            trackers=tuple(bind(text, TRACKERS, "algorithm.trackers") for text in trackers),
        )
        if made.redraws_ is not None and not made.redraws_.needs:
            made.redraws_({})  # the check of its parameters
        made.refuse({name for one in made.blocks for name in one.needs if name in READS}, "algorithm.sampler")
        return made

    @property
    def blocks(self) -> tuple[Bound, ...]:
        several = (self.redraws_, *self.filters, self.choice, self.arms, self.sizes, self.stages)
        return tuple(one for one in several if one is not None)

    @property
    def uniform(self) -> bool:
        """Whether prompts come from the seeded order alone, all with equally many samples."""
        adaptive = self.redraws_ is not None and bool(self.redraws_.needs)
        return not (adaptive or self.filters or self.choice or self.arms or self.sizes or self.stages)

    @property
    def column(self) -> str:
        """The column of categories; empty where there are none."""
        several = [*([self.arms] if self.arms else []), *self.trackers]
        columns = [_parameter(one, "column") for one in several if "column" in one.block.parameters]
        if len({*columns}) > 1:
            raise ValueError(f"algorithm.trackers: got categories by {' and '.join(columns)}, expected one column")
        return columns[0] if columns else ""

    def refuse(self, names: Set[str], where: str) -> None:
        """Raise ValueError for a name that blocks read of the ledger and no tracker provides."""
        for name in sorted(names - tracked(self.trackers)):
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
        columns = {_parameter(one, "column") for one in self.filters if "column_values" in one.needs}
        given = {column: numbers_of(prompts, column) for column in columns}
        if not self.column:
            return Ledger(len(prompts), self.trackers, given=given)
        texts = [category_of(prompt, self.column, files or {}) for prompt in prompts]
        names = list(dict.fromkeys(texts))
        index = {name: place for place, name in enumerate(names)}
        made = Ledger(len(prompts), self.trackers, [index[text] for text in texts], names, given)
        if self.arms is not None and "category_names" in self.arms.needs:
            # Names that no prompt has, and weights that are none, are refused here.
            checked(self.arms.at(Now(0, 1))({"category_names": names}).weights, f"algorithm.sampler: {self.arms.text}")
        return made


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
    """The round whose weights draw, where it is an earlier one by rule (``mmgrpo.ahead``)."""

    def numbered(self, rollout: Rollout, request: Request, places: Sequence[int]) -> Rollout:
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
        return self._fresh(self._rounded(math.ceil(self.prompts / redraws.rate)) if redraws.adaptive else self.prompts)

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
        return self._fresh(self._rounded(missing))

    def surplus(self, result: Estimate, decisions: Decisions) -> Bool[Tensor, "B"]:
        """Rows of groups that an adaptive draw sampled beyond the first ``prompts`` with spread."""
        rewards, key = result.rewards, decisions.keys["prompt"]
        if not self.sampling.redraws(self.ledger).adaptive:
            return torch.zeros_like(key, dtype=torch.bool)
        scored = ~rewards.isnan() & (decisions.origin == OWN)
        spread = groups.group_spread(rewards.nan_to_num(0.0), key, scored)
        return torch.isin(key, torch.unique(key[spread & scored])[self.prompts :])

    def _rounded(self, count: int) -> int:
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
        for one in self.sampling.filters:
            allowed = allowed & one(self._inputs(one))
            if not bool(allowed.any()):
                raise ValueError(
                    f"algorithm.sampler: '{one.text}' leaves no prompt of {self.order.size} in round {self.number}; "
                    "stop the run here, or loosen the filter"
                )
        if self.sampling.filters:
            self.metrics["prompts/left_out"] = float((~allowed).sum())
        generator = stream(self.seed, "sampler", self.number, len(self.draws))
        if self.sampling.arms is not None:
            indices = self._by_category(count, allowed, generator)
        elif self.sampling.choice is not None:
            indices = self._preferred(
                self.sampling.choice(self._inputs(self.sampling.choice)), count, allowed, generator
            )
        else:
            indices = self._ordered(count, allowed)
        self.metrics["prompts/distinct_fraction"] = len({*indices}) / len(indices)
        return indices

    def _ordered(self, count: int, allowed: Bool[Tensor, "N"]) -> list[int]:
        """The next allowed prompts of the seeded order."""
        indices: list[int] = []
        while len(indices) < count:
            some = self.order.take(self.cursor, count - len(indices))
            self.cursor += len(some)
            indices += [index for index in some if allowed[index]]
        return indices

    def _preferred(
        self, preference: Preference, count: int, allowed: Bool[Tensor, "N"], generator: torch.Generator
    ) -> list[int]:
        if preference.how == "nearest":
            some = self._ordered(count * preference.candidates, allowed)
            distance = preference.weights[torch.tensor(some)]
            best = sorted(distance.argsort(stable=True)[:count].tolist())
            return [some[place] for place in best]
        weights = checked(torch.where(allowed, preference.weights.double(), 0.0), "algorithm.sampler")
        number = int(preference.share * count)
        if not bool((weights > 0).any()):
            self.metrics["prompts/effective"] = float(allowed.sum())
            return self._ordered(count, allowed)
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
        return indices + self._ordered(count - len(indices), allowed)

    def _by_category(self, count: int, allowed: Bool[Tensor, "N"], generator: torch.Generator) -> list[int]:
        assert self.sampling.arms is not None
        arms: Arms = self.sampling.arms(self._inputs(self.sampling.arms))
        members = [((self.ledger.category == arm) & allowed).nonzero()[:, 0] for arm in range(len(self.ledger.names))]
        there = torch.tensor([float(len(some) > 0) for some in members], dtype=torch.float64)
        weights = checked(arms.weights.double() * there, "algorithm.sampler")
        if not bool((weights > 0).any()):
            raise ValueError(
                f"algorithm.sampler: '{self.sampling.arms.text}' gives weight 0 to every category that has prompts "
                f"({', '.join(name for name, some in zip(self.ledger.names, members) if len(some))}); give one a weight"
            )
        uniform = torch.rand(2, count, dtype=torch.float64, generator=generator)
        chosen = with_replacement(weights, uniform[0], count)
        drawn = torch.bincount(torch.tensor(chosen), minlength=len(members)) / count
        self.metrics |= {f"category/{n}/drawn": float(drawn[i]) for i, n in enumerate(self.ledger.names)}
        return [
            int(members[arm][min(int(u * len(members[arm])), len(members[arm]) - 1)])
            for arm, u in zip(chosen, uniform[1].tolist(), strict=True)
        ]


def checked(weights: Float[Tensor, "N"], what: str) -> Float[Tensor, "N"]:
    """The weights; ValueError for one that is negative or not finite."""
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        bad = float(weights[~(weights.isfinite() & (weights >= 0))][0])
        raise ValueError(f"{what}: got the weight {bad:g}, expected a finite number of at least 0")
    return weights


def with_replacement(weights: Float[Tensor, "N"], uniform: Float[Tensor, "M"], count: int) -> list[int]:
    """The first j with C_j > u C_n, C the cumulative sums of the weights: weight 0 is never drawn."""
    sums = weights.double().cumsum(0)
    places = torch.searchsorted(sums, uniform[:count].double() * sums[-1], right=True)
    return places.clamp(max=int((weights > 0).nonzero()[-1])).tolist()


def without_replacement(weights: Float[Tensor, "N"], uniform: Float[Tensor, "N"], count: int) -> list[int]:
    """The ``count`` largest keys log(u) / w, ties by index; weight 0 is never drawn, so that there may be fewer."""
    keys = torch.where(weights > 0, uniform.double().log() / weights.double(), -torch.inf)
    return keys.argsort(descending=True, stable=True)[: min(count, int((weights > 0).sum()))].tolist()
