"""Samplers: which prompts a round draws, with how many samples each, and when it draws again.

    FILTERS     which prompts may be drawn                                   [N] True or False
    CHOICES     how much each prompt is preferred (``Preference``)           [N]
    ARMS        how much each category is preferred (``Arms``)               [C]
    SIZES       samples for each drawn prompt, from one budget
    STAGES      a group is drawn in stages until a rule holds
    REDRAWS     groups of equal rewards are replaced by fresh prompts

A round may have one of each kind but of REDRAWS and STAGES, of which it has one. Inputs of a block are columns of the
ledger or its reads (``trackers.READS``), and ``round``, the number of the round. Draws are functions of (seed, round)
and of the ledger alone, so a resumed run repeats them, and are made for all processes on each of them.

Without a choice or an arm prompts come from the seeded order (``PromptOrder``), from where the last round stopped.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.names import nearest as nearest_name
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, COUNT_OR_ZERO, FRACTION, POSITIVE, one_of, within
from mmgrpo.config.registry import block, table_of

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
    limit = next((largest for end, largest in zip(until, most, strict=True) if round < end), math.inf)
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

    The paper predicts the average by a value network (``nearest_predicted``); here it is the one tracked, in a table.
    """
    distance = torch.where(average_reward.isnan(), 0.0, (average_reward - target).abs())
    return Preference(distance, how="nearest", candidates=candidates)


@block(CHOICES, level="group")
def promotion(
    visits: Counts,
    last_variance: Numbers,
    last_score: Numbers,
    *,
    outcome: Annotated[float, within("[0, inf)")] = 0.8,
    diversity: Annotated[float, within("[0, inf)")] = 0.2,
    share: Annotated[float, FRACTION] = 0.5,
) -> Preference:
    """``variance_weighted`` by the variance promotion score of MMR1 (arXiv:2509.21268): ``outcome`` p (1 - p) +
    ``diversity`` d, d the diversity of the prompt's samples at its last visit, by the tracker ``last_score`` of a
    reward such as ``distinct_ngrams``. The paper has .8 and .2, its released recipe p (1 - p) alone.

    p .5 and 1 with d .5 and 1: .3 and .2, so a prompt that is always answered may still be drawn.
    """
    seen = visits > 0
    score = outcome * last_variance + diversity * last_score.nan_to_num(0.0)
    top = score[seen].max() if bool(seen.any()) else torch.tensor(1.0, dtype=torch.float64)
    return Preference(torch.where(seen, score, top), share)


@block(CHOICES, level="group")
def nearest_predicted(
    predicted_reward: Numbers,
    *,
    target: Annotated[float, ANY_NUMBER] = 0.5,
    candidates: Annotated[int, COUNT] = 4,
) -> Preference:
    """Of ``candidates`` times as many prompts of the seeded order those whose reward as a value network predicts it,
    visited or not, is nearest to ``target`` (PCL, arXiv:2510.01135: .5 and 4; network ``prompt_value``).

    Values .9, .45, .1, .6, .52 and a round of two: the second and the last.
    """
    return Preference((predicted_reward - target).abs(), how="nearest", candidates=candidates)


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
    if texts := [weight for weight in weights.values() if isinstance(weight, str)]:
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
    sizes = [min(least, count) if is_familiar else count for is_familiar in familiar]
    budget = count * len(rates) - sum(sizes)
    effective = [place for place, rate in enumerate(rates) if familiar[place] and 0 < rate < 1]
    others = [place for place, is_familiar in enumerate(familiar) if is_familiar and place not in {*effective}]
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


def check_weights(weights: Float[Tensor, "N"], what: str) -> Float[Tensor, "N"]:
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
    """The ``count`` largest keys log(u) / w, ties by index; weight 0 is never drawn, so there may be fewer."""
    keys = torch.where(weights > 0, uniform.double().log() / weights.double(), -torch.inf)
    return keys.argsort(descending=True, stable=True)[: min(count, int((weights > 0).sum()))].tolist()
