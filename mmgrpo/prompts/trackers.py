"""Trackers: columns of the ledger, each updated by a pure function of what a round observed.

    columns of a prompt (or of a category, or of the run), observation -> the same columns

A tracker's positional parameters are its columns and ``seen``, the rows that it observes; ``keeps`` declares the
columns with their start values, and the table that they are in. What blocks may read of a tracker is in ``READS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.advantages.groups import papers, with_moments
from mmgrpo.advantages.scale import refuse_outside
from mmgrpo.config.ranges import (
    ANY_NUMBER,
    ANY_TEXT,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    POSITIVE,
    POSITIVE_FRACTION,
    within,
)
from mmgrpo.config.registry import Bound, block, table_of

F = TypeVar("F", bound=Callable[..., Any])

TRACKERS = table_of("tracker")

PROMPTS, CATEGORIES, RUN = "prompts", "categories", "run"
"""The tables of a ledger."""


@dataclass(frozen=True)
class Seen:
    """The scored rows of the policy's own that a tracker observes, in order of group and member: those of one group, of
    one category, or of a whole round."""

    rewards: Float[Tensor, "B"]
    """The rewards as one number, in double precision."""
    lengths: Int[Tensor, "B"]
    """Decisions of each row."""
    log_probs: Float[Tensor, "B"]
    """Mean log-prob of the decisions of each row."""
    advantages: Float[Tensor, "B"]
    """Mean absolute advantage of the trained decisions of each row; 0 where none is trained."""
    groups: Int[Tensor, "B"]
    first: bool = False
    """Whether nothing was observed before."""
    offline: bool = False
    """Whether the rows are of an evaluation before the run, so only their rewards are known."""
    loss: float = math.nan
    """The loss of given answers of a category, where that is what is observed."""
    scores: Float[Tensor, "B R"] | None = None
    """Each reward as it was scored, NaN where it was not; None where only one number is known."""

    @property
    def mean(self) -> float:
        return float(self.rewards.mean())


@dataclass(frozen=True)
class Columns:
    """The columns of a tracker: their table and start values; a name in place of a number is the parameter that says
    how many numbers the column holds for each row."""

    table: str
    start: Mapping[str, float | str]

    def of(self, bound: Bound) -> dict[str, list[float] | float]:
        """The start values under the parameters of a bound tracker."""
        defaults = {name: parameter.default for name, parameter in bound.block.parameters.items()}
        sizes = {**defaults, **bound.parameters}
        return {name: [0.0] * sizes[value] if isinstance(value, str) else value for name, value in self.start.items()}


COLUMNS: dict[Callable[..., Any], Columns] = {}


def keeps(table: str = PROMPTS, **start: float | str) -> Callable[[F], F]:
    """Declare the columns of the decorated tracker (``Columns``)."""

    def register(fn: F) -> F:
        COLUMNS[fn] = Columns(table, start)
        return fn

    return register


@block(TRACKERS, level="group", rewards=(0.0, 1.0))
@keeps(alpha=0.5, beta=0.5, log_prob=0.0)
def beta(
    alpha: float,
    beta: float,
    log_prob: float,
    seen: Seen,
    *,
    low: Annotated[float, POSITIVE_FRACTION] = 0.875,
    high: Annotated[float, POSITIVE_FRACTION] = 0.96,
    half: Annotated[float, POSITIVE] = 0.06,
) -> dict[str, float]:
    """A Beta posterior of the prompt's success rate that forgets as the policy moves (SPO, arXiv:2509.13232).

    alpha <- rho alpha + sum r, beta <- rho beta + sum (1 - r) with rho = clip(2^(-D / half), low, high), D the change
    of the mean log-prob of the prompt's samples since its last visit; the value is alpha / (alpha + beta). alpha = beta
    = 4, D = .03, r = 1: rho = .875, alpha = 4.5, beta = 3.5, value .5625. Rewards must be in [0, 1].

    The paper takes for D the mean change of the log-probs of one response; the response of the last visit is not kept
    here. Rewards measured before the run count as 1 / (1 - low) samples in addition to the prior of .5 and .5.
    """
    refuse_outside(seen.rewards, torch.ones_like(seen.rewards, dtype=torch.bool), 0.0, 1.0, "algorithm.trackers: beta")
    if seen.offline:
        count = 1 / (1 - low) if low < 1 else float(len(seen.rewards))
        return {"alpha": 0.5 + count * seen.mean, "beta": 0.5 + count * (1 - seen.mean), "log_prob": 0.0}
    present, total = float(seen.log_probs.mean()), float(seen.rewards.sum())
    distance = 0.0 if seen.first or log_prob == 0.0 else abs(present - log_prob)
    rho = min(max(2 ** (-distance / half), low), high)
    return {
        "alpha": rho * alpha + total,
        "beta": rho * beta + len(seen.rewards) - total,
        "log_prob": present,
    }


@block(TRACKERS, level="group")
@keeps(window="count", window_size=0.0)
def window(
    window: Float[Tensor, "count"], window_size: float, seen: Seen, *, count: Annotated[int, COUNT] = 16
) -> dict[str, Any]:
    """The last ``count`` rewards of the prompt, oldest first (Knapsack RL, arXiv:2509.25849: 16)."""
    kept = torch.cat([window[len(window) - int(window_size) :], seen.rewards])[-count:]
    return {"window": torch.cat([window.new_zeros(count - len(kept)), kept]), "window_size": float(len(kept))}


@block(TRACKERS, level="group")
@keeps(average=0.0)
def moving_average(
    average: float, seen: Seen, *, momentum: Annotated[float, within("[0, 1)")] = 0.9
) -> dict[str, float]:
    """momentum * average + (1 - momentum) * mean reward of the visit; the first visit's mean is taken whole.

    .25 and then .1875 with momentum .9: .24375.
    """
    return {"average": seen.mean if seen.first else momentum * average + (1 - momentum) * seen.mean}


@block(TRACKERS, level="group")
@keeps(reference=0.0, reference_age=0.0)
def reference_mean(
    reference: float, reference_age: float, seen: Seen, *, renewed: Annotated[int, COUNT_OR_ZERO] = 0
) -> dict[str, float]:
    """The mean reward of the prompt under one policy, kept for ``renewed`` visits (0: for good) and then that of the
    next: the static value of PVPO (arXiv:2508.21104). Of the policy before training where it was measured
    (``data.ledger``), otherwise of the first visit. The paper renews all prompts every 500 steps."""
    due = seen.first or (renewed > 0 and reference_age >= renewed)
    return {"reference": seen.mean if due else reference, "reference_age": 0.0 if due else reference_age + 1}


@block(TRACKERS, level="group")
@keeps(shortest=0.0)
def shortest(shortest: float, seen: Seen, *, least: Annotated[float, ANY_NUMBER] = 0.5) -> dict[str, float]:
    """The smallest number of decisions with which the prompt was solved, a reward of more than ``least`` (HAPO,
    arXiv:2505.11225); 0 while it never was."""
    lengths = seen.lengths[seen.rewards > least]
    if seen.offline or not len(lengths):
        return {"shortest": shortest}
    here = float(lengths.min())
    return {"shortest": min(shortest, here) if shortest else here}


@block(TRACKERS, level="group")
@keeps(history="visits", history_size=0.0)
def history(
    history: Float[Tensor, "visits"], history_size: float, seen: Seen, *, visits: Annotated[int, COUNT] = 8
) -> dict[str, Any]:
    """The mean rewards of the last ``visits`` visits of the prompt, oldest first (SwS, arXiv:2506.08989: one per epoch
    of a preliminary run)."""
    means = torch.cat([history[len(history) - int(history_size) :], seen.rewards.mean()[None]])[-visits:]
    return {"history": torch.cat([history.new_zeros(visits - len(means)), means]), "history_size": float(len(means))}


@block(TRACKERS, level="group")
@keeps(CATEGORIES, value=0.0)
def arm_value(value: float, seen: Seen, *, rate: Annotated[float, FRACTION] = 0.5) -> dict[str, float]:
    """Q <- (1 - rate) Q + rate * mean |advantage| of the category's rows (SEC, arXiv:2505.14970: rate .5).

    Q = 0 and .8: .4. Categories that were not drawn keep their value; in the released code it decays.
    """
    return {"value": (1 - rate) * value + rate * float(seen.advantages.mean())}


@block(TRACKERS, level="group")
@keeps(CATEGORIES, log_weight=0.0)
def worst_group(
    log_weight: float,
    seen: Seen,
    *,
    eta: Annotated[float, within("[0, inf)")] = 0.01,
    column: Annotated[str, ANY_TEXT] = "task",
) -> dict[str, float]:
    """log alpha_g <- log alpha_g + eta l_g, alpha then normalized to sum 1: the weights of groups of the data, by
    ``column``, that follow their losses (group robust preference optimization, arXiv:2405.20304: eta .01).

    l_g = N / N_g times the sum of the losses of the round's prompts of the group over the number of all, an estimate of
    the group's mean loss; the code's sum is not divided, so its eta is smaller by the number of prompts. Losses 1
    and .2: weights .502 and .498, with eta 1 .690 and .310. For ``by_category``, with data.offline 1.
    """
    return {"log_weight": log_weight if math.isnan(seen.loss) else log_weight + eta * seen.loss}


@block(TRACKERS, level="group")
@keeps(RUN, quantile_low=0.0, quantile_high=0.0)
def quantiles(
    quantile_low: float,
    quantile_high: float,
    seen: Seen,
    *,
    low: Annotated[float, within("(0, 1)")] = 0.2,
    high: Annotated[float, within("(0, 1)")] = 0.8,
    rate: Annotated[float, POSITIVE] = 0.1,
    bundle: Annotated[int, COUNT] = 5,
) -> dict[str, float]:
    """Two quantiles of the sums S of rewards over bundles, one row of each of ``bundle`` prompts: q <- q + rate (level
    - 1[S < q]) bundle by bundle (RiskPO, arXiv:2510.00911: .2 and .8, rate .1, 5 prompts; .9 for mathematics).

    q = 1, level .2: 1.02 after S >= 1, .92 after S < 1. They start at the quantiles of the first round.
    """
    names, whole = papers(seen.groups, torch.ones_like(seen.groups, dtype=torch.bool), bundle)
    _, paper = torch.unique(names[whole], return_inverse=True)
    sums = torch.zeros(int(paper.max()) + 1, dtype=torch.float64).index_add_(0, paper, seen.rewards[whole])
    if seen.first:
        return {"quantile_low": float(sums.quantile(low)), "quantile_high": float(sums.quantile(high))}
    for total in sums.tolist():
        quantile_low += rate * (low - (total < quantile_low))
        quantile_high += rate * (high - (total < quantile_high))
    return {"quantile_low": quantile_low, "quantile_high": quantile_high}


@block(TRACKERS, level="group")
@keeps(RUN, difficulty_means="kept", difficulty_count=0.0)
def difficulty(
    difficulty_means: Float[Tensor, "kept"],
    difficulty_count: float,
    seen: Seen,
    *,
    kept: Annotated[int, COUNT] = 4096,
) -> dict[str, Any]:
    """The mean rewards of the last ``kept`` groups of the run, whose quartiles say which prompts are hard now
    (``gfpo_adaptive``)."""
    names = torch.unique(seen.groups)
    means = torch.stack([seen.rewards[seen.groups == name].mean() for name in names])
    count = min(kept, int(difficulty_count) + len(means))
    return {"difficulty_means": torch.cat([difficulty_means, means])[-kept:], "difficulty_count": float(count)}


def _quartiles(columns: Mapping[str, Tensor]) -> Tensor:
    """Of what ``difficulty`` has seen; NaN before."""
    means, levels = columns["difficulty_means"], torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    newest = [row[len(row) - int(count) :] for row, count in zip(means, columns["difficulty_count"], strict=True)]
    return torch.stack([row.quantile(levels) if len(row) else torch.full((3,), torch.nan).double() for row in newest])


@block(TRACKERS, level="group")
@keeps(RUN, keep_rate=1.0)
def keep_rate(keep_rate: float, seen: Seen, *, least: Annotated[float, POSITIVE_FRACTION] = 0.1) -> dict[str, float]:
    """min(rate so far, groups with spread / groups of the round), at least ``least``: how many of the groups that are
    sampled can be trained (adaptive DAPO of CodeV-R1, arXiv:2505.24183, whose rate has no lower bound)."""
    names = torch.unique(seen.groups)
    spread = [bool((seen.rewards[seen.groups == name] != seen.rewards[seen.groups == name][0]).any()) for name in names]
    return {"keep_rate": max(least, min(keep_rate, sum(spread) / len(spread)))}


@block(TRACKERS, level="group")
@keeps(last_score=0.0)
def last_score(last_score: float, seen: Seen, *, reward: Annotated[int, COUNT_OR_ZERO] = 0) -> dict[str, float]:
    """The mean of what one reward of the run, the one of this number from 0, gave to the prompt's samples at its last
    visit (for the sampler ``promotion``)."""
    if seen.scores is None:
        return {"last_score": last_score}
    if reward >= seen.scores.shape[1]:
        raise ValueError(
            f"algorithm.trackers: last_score: got reward {reward}, expected below {seen.scores.shape[1]}, the number "
            "of rewards of the run"
        )
    mean = float(seen.scores[:, reward].nanmean())
    return {"last_score": last_score if math.isnan(mean) else mean}


@block(TRACKERS, level="group")
@keeps(RUN, reward_count="rewards", reward_mean="rewards", reward_squares="rewards")
def reward_moments(
    reward_count: Float[Tensor, "rewards"],
    reward_mean: Float[Tensor, "rewards"],
    reward_squares: Float[Tensor, "rewards"],
    seen: Seen,
    *,
    rewards: Annotated[int, COUNT] = 8,
) -> dict[str, Any]:
    """Number, mean and sum of squared deviations of all scores so far, for each of the first ``rewards`` rewards of the
    run, as they were scored (PPO-max, arXiv:2307.04964), which the transform ``running`` divides by."""
    before = torch.stack([reward_count, reward_mean, reward_squares], 1)
    if seen.scores is None:
        return dict(zip(("reward_count", "reward_mean", "reward_squares"), before.unbind(1), strict=True))
    scores = torch.full((len(seen.scores), rewards), torch.nan, dtype=torch.float64)
    scores[:, : seen.scores.shape[1]] = seen.scores[:, :rewards]
    after = with_moments(before, scores, ~scores.isnan())
    return dict(zip(("reward_count", "reward_mean", "reward_squares"), after.unbind(1), strict=True))


def _ratio(columns: Mapping[str, Tensor]) -> Tensor:
    return columns["alpha"] / (columns["alpha"] + columns["beta"])


def _where(column: str, is_known: Callable[[Mapping[str, Tensor]], Tensor]) -> Callable[[Mapping[str, Tensor]], Tensor]:
    return lambda columns: torch.where(is_known(columns), columns[column], torch.nan)


@dataclass(frozen=True)
class Read:
    """A number of the ledger that blocks may ask for by name; NaN where nothing was observed yet."""

    table: str
    tracker: str
    """The tracker that keeps it; empty for what every ledger has."""
    value: Callable[[Mapping[str, Tensor]], Tensor]


READS: dict[str, Read] = {
    "pass_rate": Read(PROMPTS, "", _where("last_mean", lambda columns: columns["visits"] > 0)),
    "tracker_value": Read(PROMPTS, "beta", _ratio),
    "average_reward": Read(PROMPTS, "moving_average", _where("average", lambda columns: columns["visits"] > 0)),
    "measured_value": Read(PROMPTS, "reference_mean", _where("reference", lambda columns: columns["visits"] > 0)),
    "last_score": Read(PROMPTS, "last_score", _where("last_score", lambda columns: columns["visits"] > 0)),
    "shortest_length": Read(PROMPTS, "shortest", _where("shortest", lambda columns: columns["shortest"] > 0)),
    "window_mean": Read(
        PROMPTS, "window", lambda columns: columns["window"].sum(1) / columns["window_size"].clamp(min=1)
    ),
    "quantile_low": Read(RUN, "quantiles", _where("quantile_low", lambda columns: columns["rounds"] > 0)),
    "quantile_high": Read(RUN, "quantiles", _where("quantile_high", lambda columns: columns["rounds"] > 0)),
    "keep_rate": Read(RUN, "keep_rate", lambda columns: columns["keep_rate"]),
    "difficulty": Read(RUN, "difficulty", _quartiles),
    "category_weight": Read(CATEGORIES, "worst_group", lambda columns: columns["log_weight"].softmax(0)),
    "reward_moments": Read(
        RUN,
        "reward_moments",
        lambda columns: torch.stack([columns[f"reward_{name}"] for name in ("count", "mean", "squares")], -1),
    ),
    "arm_values": Read(CATEGORIES, "arm_value", lambda columns: columns["value"]),
}
"""What blocks read of a ledger, before the round that they are used in is entered."""

LEDGER_FIELDS = frozenset(READS) - {"arm_values"}
"""Reads that a round gives to the blocks of advantages, for each row."""


def tracked_names(trackers: Sequence[Bound]) -> frozenset[str]:
    """The names of ``READS`` that these trackers provide."""
    names = {bound.text.partition("(")[0].strip() for bound in trackers} | {""}
    return frozenset(name for name, read in READS.items() if read.tracker in names)
