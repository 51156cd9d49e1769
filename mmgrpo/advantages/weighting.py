"""Weighting: weights of the rewards that change during a run.

    recipe's weights -> after each round, or each evaluation of the held-out prompts: state -> state -> ...

A rule is a pure function from the state and what was observed to the next state. The state is a few numbers, saved in
every checkpoint, so a resumed run continues with the same weights. Rewards of weight 0 in the recipe keep it,
except one that ``dual_ascent`` or ``relay`` names.

KL weights: how much the KL terms of a loss (``kl_k3``, ``kl_gaussian_exact``, ...) count for each sample, [B].

They multiply the terms' own coefficients, and are constants of the round: no gradient passes through them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch

from mmgrpo.advantages.combine import Names, PerReward, Streams, member_variance
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.select import hypervolume as volume
from mmgrpo.advantages.select import parts, soft_means
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, DDOF, POSITIVE, POSITIVE_FRACTION, UPPER_BOUND, one_of
from mmgrpo.config.registry import Bound, Members, Reward, Rewards, block, table_of
from mmgrpo.scoring import Scorer

WEIGHTINGS = table_of("weighting")


TENSORS = 8
"""Trained tensors, the last ones, in which gradients of rewards are compared."""


@dataclass(frozen=True)
class RewardWeights:
    """The weights of the rewards at some time of a run, and what the rules remember."""

    values: tuple[float, ...]
    """One weight per reward."""
    factor: float = 1.0
    """Factor of all advantages, after the scale: a factor of the rewards would cancel in a standardized group."""
    front: tuple[tuple[float, ...], ...] = ()
    """Means of the weighted rewards at evaluations that added hypervolume; the first is the reference point."""
    rounds: int = 0
    """Rounds that lie behind."""

    @staticmethod
    def of(scorers: Sequence[Scorer]) -> RewardWeights:
        """Those that a run begins with."""
        return RewardWeights(tuple(scorer.weight for scorer in scorers))

    @staticmethod
    def read(record: Mapping[str, Any]) -> RewardWeights:
        """The inverse of ``dataclasses.asdict``, after JSON."""
        front = tuple(map(tuple, record["front"]))
        return RewardWeights(tuple(record["values"]), record["factor"], front, record.get("rounds", 0))


def advance(rules: Sequence[Bound], weights: RewardWeights, **observed: Any) -> RewardWeights:
    """Apply in order the rules that look at what was observed: ``names``, and ``round_means``, ``evaluation_means``
    (one mean per reward) or ``inner_products`` [R, R] of the rewards' gradients. A mean that is not finite leaves the
    state as it was."""
    for rule in rules:
        inputs = {"state": weights, **observed}
        if inputs.keys() >= set(rule.block.needs):
            weights = rule(inputs)
    return weights


@block(WEIGHTINGS, level="group")
def dual_ascent(
    state: RewardWeights,
    names: Names,
    round_means: Sequence[float],
    *,
    by: Reward,
    least: Annotated[float, ANY_NUMBER],
    rate: Annotated[float, POSITIVE],
    limit: Annotated[float, UPPER_BOUND] = 10.0,
) -> RewardWeights:
    """The constraint mean(r_by) >= least with its price as weight of the reward: w <- clip(w + rate (least - mean), 0,
    limit), from the weight in the recipe. The price rises while the constraint is missed and falls to 0 where it holds.
    """
    index = list(names).index(by)
    if not math.isfinite(round_means[index]):
        return state
    price = min(max(state.values[index] + rate * (least - round_means[index]), 0.0), limit)
    return replace(state, values=(*state.values[:index], price, *state.values[index + 1 :]))


@block(WEIGHTINGS, level="group", requires={"positive_weights": {}})
def least_first(
    state: RewardWeights, round_means: Sequence[float], rate: Annotated[float, POSITIVE] = 0.1
) -> RewardWeights:
    """w_k <- w_k exp(-rate mean_k), normalized to the same sum: the smooth form of ``worst_stream`` (the exponentiated
    gradient of max min_k E[r_k]). Rewards must be on one scale and weights positive."""
    return _exponentiate(state, [-rate * mean for mean in round_means])


@block(WEIGHTINGS, level="group")
def relay(state: RewardWeights, names: Names, *, of: Reward, by: Reward, at: Annotated[int, COUNT]) -> RewardWeights:
    """After round ``at`` the reward ``by`` has the weight of ``of``, which has none: a stricter rule takes over from an
    easier one (progressive rule refinement of Vision-R1, arXiv:2503.18013)."""
    easy, strict = list(names).index(of), list(names).index(by)
    if state.rounds < at or not state.values[easy]:
        return state
    values = list(state.values)
    values[strict], values[easy] = values[easy], 0.0
    return replace(state, values=tuple(values))


@block(WEIGHTINGS, level="group", requires={"positive_weights": {}})
def gradient(
    state: RewardWeights,
    inner_products: Sequence[Sequence[float]],
    *,
    rate: Annotated[float, POSITIVE],
    tensors: Annotated[int, COUNT] = TENSORS,
) -> RewardWeights:
    """w_k <- w_k exp(rate sum_j <g_k, g_j>), normalized to the same sum (gradient-based dynamic reward weighting,
    arXiv:2509.11452): rewards whose gradients agree with all gradients gain weight.

    g_k is the gradient of the loss with the advantages of reward k alone, of weight 1, in the last ``tensors`` trained
    tensors. ``rate`` is learning rate / regularization there. Costs one further update per reward and round.
    """
    return _exponentiate(state, [rate * sum(row) for row in inner_products])


@block(WEIGHTINGS, level="group", single="line")
def hypervolume(state: RewardWeights, evaluation_means: Sequence[float]) -> RewardWeights:
    """All advantages times .5 + 1.5 tanh(gain), gain the hypervolume that the held-out means add to those of earlier
    evaluations (hypervolume-guided weighting, arXiv:2509.11452); .5 where they add none.

    The first evaluation is the reference point. From (0, 0), (1, .5) to (.5, 1): the volume grows from .5 to .75, the
    factor is .867. A reward of negative weight is to fall.
    """
    point = tuple(math.copysign(1, w) * mean for w, mean in zip(state.values, evaluation_means, strict=True) if w)
    if not all(map(math.isfinite, point)):
        return state
    if not state.front:
        return replace(state, front=(point,))
    reference, *earlier = state.front
    gain = volume([*earlier, point], reference) - volume(earlier, reference)
    front = (*state.front, point) if gain > 0 else state.front
    return replace(state, front=front, factor=0.5 + 1.5 * math.tanh(max(gain, 0.0)))


def _exponentiate(state: RewardWeights, exponents: Sequence[float]) -> RewardWeights:
    """Weights times exp(exponent), normalized to their former sum."""
    used = [e for e, w in zip(exponents, state.values, strict=True) if w]
    if not all(map(math.isfinite, used)):
        return state
    raised = [w * math.exp(e - max(used)) if w else 0.0 for e, w in zip(exponents, state.values, strict=True)]
    total = sum(state.values) / sum(raised)
    return replace(state, values=tuple(w * total for w in raised))


KL_WEIGHTS = table_of("kl_weight")


@block(KL_WEIGHTS)
def none(values: Values) -> Values:
    """1 for all."""
    return torch.ones_like(values)


@block(KL_WEIGHTS)
def ensemble_variance(
    streams: Streams,
    weights: PerReward,
    names: Names,
    members: Members = (),
    ddof: Annotated[int, DDOF] = 1,
) -> Values:
    """s^2(x, y), the variance of the ensemble of rewards ``members`` (all that have a weight, if none are named), each
    times its weight: r - beta s^2 log(pi / pi_0) (uncertainty-aware RLHF, arXiv:2410.23726; variance-aware policy
    optimization, arXiv:2507.15906).

    The policy stays near its reference where the rewards disagree, and is free where they agree: its optimum is
    pi_0 exp(r / (beta s^2)). [1, 2, 6] weighs 7, [2, 2, 2] nothing. Put the members on one scale first.
    """
    return member_variance(streams, weights, names, members, ddof)


@block(KL_WEIGHTS, level="group")
def uncertain_part(
    raw: Streams,
    names: Names,
    stat: Rows,
    *,
    of: Reward,
    auxiliary: Rewards,
    fraction: Annotated[float, POSITIVE_FRACTION] = 0.1,
) -> Values:
    """N / n for the n of N samples that the reward ``of`` ranks far above the rewards ``auxiliary``, 0 for the others,
    so the KL is the mean over the former: gated KL of GARDO (2512.24138).

    U = win rate of ``of`` in the batch minus the mean win rate of these; gated is U above the (1 - fraction)
    quantile of those U that are not negative. of .9 .2 .6 .4, auxiliary .1 .8 .5 .7 and .2 .9 .6 .4: U = 1 -1 .167
    -.167. The code's own ranks have the opposite sign. Its fraction begins at .1 and moves within .02 and .2 with the
    mean of the U that are not negative, the metric ``group/uncertainty``: ``fraction=recent(0.1)``, one round later.
    """
    surplus = uncertainty(raw[stat], names, of, auxiliary)
    high = surplus[surplus >= 0]
    weight = torch.zeros_like(raw[:, 0])
    if len(high):
        gated = surplus > torch.quantile(high, 1 - fraction)
        gated = gated if bool(gated.any()) else surplus == high.max()
        weight[stat] = gated.to(weight.dtype) * len(surplus) / gated.sum()
    return weight


def uncertainty(rows: Streams, names: Names, of: str, auxiliary: Sequence[str]) -> Values:
    """The win rate of the reward ``of`` among these rows minus the mean win rate of the ``auxiliary`` ones."""
    index = list(names)
    rates = [_win_rate(rows[:, index.index(name)]) for name in (of, *auxiliary)]
    return rates[0] - torch.stack(rates[1:]).mean(0)


def kl_metrics(kl_weight: Bound, raw: Streams, names: Names, stat: Rows) -> dict[str, float]:
    """``group/uncertainty``, the mean of the U of ``uncertain_part`` that are not negative (NaN without samples);
    nothing of others."""
    if kl_weight.block.fn is not uncertain_part:
        return {}
    surplus = uncertainty(raw[stat], names, kl_weight.parameters["of"], kl_weight.parameters["auxiliary"])
    return {"group/uncertainty": float(surplus[surplus >= 0].mean())}


def _win_rate(values: Values) -> Values:
    """The fraction of the other samples that each one exceeds; an equal one counts a half."""
    wins = (values[:, None] > values).to(values.dtype) + 0.5 * (values[:, None] == values).to(values.dtype)
    return (wins.sum(1) - 0.5) / max(1, len(values) - 1)


@block(KL_WEIGHTS, level="group")
def high_part(values: Values, key: Key, stat: Rows, of: Annotated[str, one_of("prompts", "rows")] = "rows") -> Values:
    """1 in the part of the batch with the larger rewards and 0 in the other: eta p(g_high | x, y) KL (group-invariant
    learning, arXiv:2310.11971, section 4.4), so hard samples may explore. 1 for all where rewards are equal.

    The part is that of ``group_invariant``, a cut in place of the paper's classifier.
    """
    cut = parts(values, key, stat, of)
    return torch.ones_like(values) if cut is None else cut.high.to(values.dtype)


@block(KL_WEIGHTS, level="group")
def classified_high(raw: Streams, weights: Values, stat: Rows, group_share: Values) -> Values:
    """p(g_high | x, y), the share in the group of the larger rewards that the classifier of ``classified_invariant``
    gives a sample (arXiv:2310.11971, section 4.4; ``critic(classes=...)``)."""
    low, high = soft_means((raw.nan_to_num(0.0) * weights).sum(1), group_share, stat)
    return torch.where(high >= low, group_share, 1 - group_share)
