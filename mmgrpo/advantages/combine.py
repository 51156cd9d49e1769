"""How several rewards become one advantage per sample.

``normalise`` maps one stream of rewards [B] to advantages [B] with the recipe's baseline, scale and keys. Most blocks
make one reward of all, which is then compared; those in ``SEPARATE`` compare each reward by itself.

An ensemble are the rewards named ``members`` (all that have a weight, if none are named), each times its weight, which
puts them on one scale; the weighted sum of the other rewards is added.

A value is NaN where its reward abstains from the row (it does not apply to it): sums, means and extremes are over the
others, and ``normalise`` leaves the row out of the statistics of that stream and gives it 0. The rows that could not
be scored are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.select import pareto_fronts
from mmgrpo.config.ranges import DDOF
from mmgrpo.config.registry import Members, block, table_of

COMBINE = table_of("combine")


Normalise: TypeAlias = Callable[[Values], Values]
Streams: TypeAlias = Float[Tensor, "B R"]
PerReward: TypeAlias = Float[Tensor, "R"]
Names: TypeAlias = Sequence[str]
"""Names of the R rewards; those of a preview are ``reward@preview``."""


@block(COMBINE, level="group")
def weighted_sum(normalise: Normalise, values: Streams, weights: PerReward) -> Values:
    """normalise(sum_k w_k r_k): rewards are summed, over those that do not abstain, then compared."""
    return normalise(sum_rewards(values, weights))


def sum_rewards(values: Streams, weights: PerReward) -> Values:
    """sum_k w_k r_k over the rewards that do not abstain; NaN where all that have a weight do."""
    scored = (~values.isnan() & (weights != 0)).any(1)
    return torch.where(scored, values.nan_to_num(0.0) @ weights, torch.nan)


@block(COMBINE, level="group")
def per_reward(normalise: Normalise, values: Streams, weights: PerReward) -> Values:
    """sum_k w_k normalise(r_k): no reward dominates by its units (DanceGRPO, arXiv:2505.07818)."""
    return sum((w * normalise(values[:, k]) for k, w in enumerate(weights)), torch.zeros_like(values[:, 0]))


@block(COMBINE, level="group")
def gdpo(
    normalise: Normalise,
    values: Streams,
    weights: PerReward,
    stat: Rows,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
) -> Values:
    """``per_reward``, then (A - mean) / (std + eps) over the batch (GDPO, arXiv:2601.05242).

    Whitening keeps the magnitude of the advantages independent of the number of rewards.
    """
    summed = per_reward(normalise, values, weights)
    batch = torch.zeros_like(stat, dtype=torch.long)
    std = groups.group_std(summed, batch, stat, ddof)
    return torch.where(std > 0, (summed - groups.group_mean(summed, batch, stat)) / (std + eps), 0.0)


@block(COMBINE, level="group")
def mean(normalise: Normalise, values: Streams, weights: PerReward, names: Names, members: Members = ()) -> Values:
    """The mean of the ensemble (Coste et al., arXiv:2310.02743)."""
    ensemble, rest = _ensemble(values, weights, names, members)
    return normalise(_over_members(ensemble, ensemble.nanmean(1), rest))


@block(COMBINE, level="group")
def minimum(normalise: Normalise, values: Streams, weights: PerReward, names: Names, members: Members = ()) -> Values:
    """The smallest of the ensemble, sample by sample: worst-case optimization (WCO, arXiv:2310.02743).

    [1, 2, 6] gives 1.
    """
    ensemble, rest = _ensemble(values, weights, names, members)
    return normalise(_over_members(ensemble, ensemble.nan_to_num(torch.inf, torch.inf, -torch.inf).amin(1), rest))


@block(COMBINE, level="group")
def mean_minus_variance(
    normalise: Normalise,
    values: Streams,
    weights: PerReward,
    names: Names,
    coef: float = 0.1,
    ddof: Annotated[int, DDOF] = 1,
    members: Members = (),
) -> Values:
    """Mean - coef * variance of the ensemble: uncertainty-weighted optimization (UWO, arXiv:2310.02743).

    [1, 2, 6] gives 3 - .1 * 7 with the sample variance (of its PPO), 3 - .5 * 4.667 with coef 0.5, ddof 0 (of its
    best-of-n). The variance is quadratic in the scale of the rewards. An ensemble of one has no variance.
    """
    ensemble, rest = _ensemble(values, weights, names, members)
    return normalise(_over_members(ensemble, ensemble.nanmean(1) - coef * _variance(ensemble, ddof), rest))


@block(COMBINE, level="group")
def mean_minus_std(
    normalise: Normalise,
    values: Streams,
    weights: PerReward,
    names: Names,
    coef: float = 0.1,
    ddof: Annotated[int, DDOF] = 1,
    members: Members = (),
) -> Values:
    """Mean - coef * std of the ensemble, a lower confidence bound in the units of the rewards."""
    ensemble, rest = _ensemble(values, weights, names, members)
    return normalise(_over_members(ensemble, ensemble.nanmean(1) - coef * _variance(ensemble, ddof).sqrt(), rest))


@block(COMBINE, level="group")
def worst_stream(
    normalise: Normalise, values: Streams, weights: PerReward, stat: Rows, names: Names, members: Members = ()
) -> Values:
    """That member of the ensemble whose mean over the batch is the smallest, for all samples (MaxMin-RLHF,
    arXiv:2402.08925): max over policies of the min over user groups of the expected reward.

    [[1, 0, 1, 0], [.2, .3, .2, .1]] have the means .5 and .2, so the second is trained on. Not ``minimum``, whose
    choice differs from sample to sample. Rows from which that member abstains have 0.
    """
    ensemble, rest = _ensemble(values, weights, names, members)
    means = ensemble[stat].nanmean(0).nan_to_num(torch.inf)
    return normalise(ensemble[:, int(means.argmin())] + rest)


@block(COMBINE, level="group")
def pareto_rank(normalise: Normalise, values: Streams, weights: PerReward, key: Key, stat: Rows) -> Values:
    """1 - front / last front within the group, in place of the rewards (successive fronts of Parrot's order,
    arXiv:2401.05675); 1 where all rows are on one front. It depends on the order of each reward alone.
    """
    front = pareto_fronts(values[:, weights != 0] * weights[weights != 0].sign(), key, stat)
    last = groups.group_max(front.to(values.dtype), key, stat)
    rank = 1 - front.to(values.dtype) / last.clamp(min=1)
    return normalise(torch.where(stat, rank, 0.0))


def _ensemble(
    values: Streams, weights: PerReward, names: Names, members: Sequence[str]
) -> tuple[Float[Tensor, "B M"], Values]:
    """The members, each times its weight, and the weighted sum of the other rewards that do not abstain."""
    chosen = torch.tensor([not members or name in members for name in names], device=values.device)
    products = values * weights
    return products[:, chosen & (weights != 0)], products[:, ~chosen].nansum(1)


def _over_members(ensemble: Float[Tensor, "B M"], value: Values, rest: Values) -> Values:
    """``value`` + ``rest``; ``rest`` alone where all members abstain."""
    return torch.where(ensemble.isnan().all(1), 0.0, value) + rest


def member_variance(values: Streams, weights: PerReward, names: Names, members: Sequence[str], ddof: int) -> Values:
    """The variance of the ensemble, sample by sample; 0 for an ensemble of one."""
    return _variance(_ensemble(values, weights, names, members)[0], ddof)


def _variance(ensemble: Float[Tensor, "B M"], ddof: int) -> Values:
    squares = (ensemble - ensemble.nanmean(1, keepdim=True)).square().nansum(1)
    return squares / ((~ensemble.isnan()).sum(1) - ddof).clamp(min=1)


SEPARATE = frozenset({"per_reward", "gdpo"})
"""Blocks that compare each reward by itself; the reward of a sample is then the weighted sum."""
