"""Rows that the policy did not draw in this round: what they count, and what a likelihood of given answers adds.

    replayed      rows of earlier rounds (mmgrpo/prompts/replay.py): the objective itself, with their own old log-probs
    supervised    answers of a second data set (mmgrpo/prompts/supervised.py): their negative log-likelihood

    total = rest * L(rows of the round) + coef_r * L(replayed) + coef_s * NLL(supervised)

Each of the three is normalized over its own rows, and ``rest`` is 1 - coef_s where ``complement`` says so. KL and other
terms are those of the round's rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.config.ranges import ANY_NUMBER, COUNT, COUNT_OR_ZERO, POSITIVE_FRACTION, one_of, within
from mmgrpo.config.registry import Bound, bind, block, table_of
from mmgrpo.objectives.base import AGGREGATIONS
from mmgrpo.types import REPLAYED, SUPERVISED, of_kinds

REPLAYS = table_of("replay")
"""Functions that return a ``Replay``."""
LIKELIHOODS = table_of("supervised")
"""Functions that return a ``Supervision``."""

STRATEGIES = ("recent", "random", "highest", "max_variance", "all")


@dataclass(frozen=True)
class Replay:
    """Which rows of earlier rounds join a round, and what they count."""

    count: int = 0
    least: int = 0
    per_prompt: int = 16
    capacity: int = 10_000
    age: int = 0
    strategy: str = "recent"
    above: float = float("-inf")
    old: str = "stored"
    statistics: str = "split"
    coef: float = 1.0
    apart: bool = True
    when: str = "always"
    replaces: bool = False
    tiers: tuple[float, ...] = ()
    """Shares of the capacity, from the prompts of the highest average reward to those of the lowest."""

    @property
    def fields(self) -> frozenset[str]:
        """What it reads of the ledger."""
        return frozenset({"window_mean"} if self.tiers else ())


@block(REPLAYS)
def none() -> Replay:
    """No rows of earlier rounds."""
    return Replay()


@block(REPLAYS)
def replay(
    count: Annotated[int, COUNT_OR_ZERO] = 8,
    least: Annotated[int, COUNT_OR_ZERO] = 0,
    per_prompt: Annotated[int, COUNT] = 16,
    capacity: Annotated[int, COUNT] = 10_000,
    age: Annotated[int, COUNT_OR_ZERO] = 0,
    strategy: Annotated[str, one_of(*STRATEGIES)] = "recent",
    above: Annotated[float, ANY_NUMBER] = -1e30,
    old: Annotated[str, one_of("stored", "recomputed", "one")] = "stored",
    statistics: Annotated[str, one_of("split", "with", "own")] = "split",
    coef: float = 1.0,
    apart: bool = True,
    when: Annotated[str, one_of("always", "failed")] = "always",
    replaces: bool = False,
    tiers: Annotated[Sequence[float], POSITIVE_FRACTION] = (),
) -> Replay:
    """``count`` rows of earlier rounds join the group of their prompt, where at least ``least`` are kept of it.

    Kept are the newest ``per_prompt`` of a prompt and ``capacity`` of all, none older than ``age`` optimizer steps (0:
    any age), of reward more than ``above``. ``old``: their old log-probs are those of their round, those of the policy
    before this round's update, or 0. ``statistics``: compared among themselves, with the group, or with the mean and
    std of the group's own rows. ``apart``: normalized by themselves and weighted by ``coef``; else in one mean.
    ``when`` failed: only groups of which no reward is more than ``above``; ``replaces``: as many of their worst samples
    give way. ``tiers``: shares of ``capacity`` for the prompts by their average reward (tracker window), from the
    highest to the lowest.

    RePO (arXiv:2506.09340): 8 of 16, least 16, split, stored; AVATAR (arXiv:2508.03100): 4, split, tiers .25, .35 and
    .4 (the worst 40 %), with baseline replayed_by_window; AR3PO (arXiv:2509.25808): 1, random, above 0, with, when
    failed, replaces; option I recomputed and not apart, option II of coef 0.
    """
    if tiers and abs(sum(tiers) - 1) > 1e-6:
        raise ValueError(f"algorithm.replay: got tiers {list(tiers)}, expected shares of sum 1")
    numbers = (count, least, per_prompt, capacity, age, strategy, above, old, statistics, coef, apart)
    return Replay(*numbers, when, replaces, tuple(tiers))


@dataclass(frozen=True)
class Supervision:
    """What the likelihood of given answers counts."""

    coef: float = 0.0
    phi: bool = False
    complement: bool = False
    aggregation: str = "per_decision"
    source: str = ""
    count: int = 0
    gap: float = 0.0


@block(LIKELIHOODS, name="none")
def no_likelihood() -> Supervision:
    """No supervised rows."""
    return Supervision()


@block(LIKELIHOODS, inner={"aggregation": AGGREGATIONS}, requires={"supervised": {"source": "data"}})
def nll(
    *,
    coef: float,
    phi: bool = False,
    complement: bool = True,
    aggregation: str = "per_decision",
    source: Annotated[str, one_of("data", "failed")] = "data",
    count: Annotated[int, COUNT] = 8,
    gap: Annotated[float, within("[0, inf)")] = 0.0,
) -> Supervision:
    """coef times the mean of -log pi over the answers of ``count`` rows a round, normalized by themselves; all else
    times 1 - coef (``complement``).

    ``source``: ``data.supervised``, or the prompts of the run whose samples all failed (reward 0 or less), newest
    first, once ``count`` of them wait (ReLIFT, arXiv:2506.07527: 64; there in an optimizer step of its own). ``phi``
    weighs a token by p (1 - p), detached (CHORD, arXiv:2508.11408: coef .1; without phi coef cosine(0.9, 0.05, 200)).
    ``gap``: so many times what the likeliest token's log-prob is above a token's own is added (B-Coder,
    arXiv:2310.03173, the advantage of a right answer: coef .5 and .1 of it, gap .2).
    """
    return Supervision(coef, phi, complement, aggregation, source, count, gap)


def weights_by_origin(
    aggregation: Bound,
    inputs: Mapping[str, Tensor],
    origin: Int[Tensor, "B"],
    replay: Replay,
    supervision: Supervision,
) -> Float[Tensor, "B T"]:
    """The weights of all decisions of a step: those of ``aggregation`` for each of the three kinds of rows alone, times
    what it counts."""
    parts: dict[int, tuple[float, Bound]] = {}
    if replay.count and replay.apart:
        parts[REPLAYED] = replay.coef, aggregation
    if supervision.count:
        parts[SUPERVISED] = supervision.coef, bind(supervision.aggregation, AGGREGATIONS, "algorithm.supervised")
    if not parts:
        return aggregation(inputs)
    mask, rest = inputs["loss_mask"], 1 - supervision.coef * supervision.complement
    others = of_kinds(origin, list(parts))[:, None]
    weights = rest * aggregation({**inputs, "loss_mask": mask & ~others})
    for kind, (coef, weigh) in parts.items():
        weights = weights + coef * weigh({**inputs, "loss_mask": mask & (origin == kind)[:, None]})
    return weights


def likelihood(inputs: Mapping[str, Tensor], rule: Supervision) -> Float[Tensor, "*shape"]:
    """-log pi of each decision, times p (1 - p), detached, with ``phi``: .5 and .9 of probability weigh .25 and .09;
    plus ``gap`` times max log p - log pi: .25 where .5 is the most and gap .2 adds .138629."""
    log_probs = inputs["log_probs"]
    weight = (log_probs.exp() * (1 - log_probs.exp())).detach() if rule.phi else 1.0
    nll = -weight * log_probs
    return nll + rule.gap * (inputs["top_log_prob"] - log_probs) if rule.gap else nll
