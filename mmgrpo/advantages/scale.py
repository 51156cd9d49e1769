"""Scales: what the centred reward is divided by. Each function returns the scaled advantages, [B].

``values`` are the rewards, ``centred`` is reward minus baseline. Where the divisor is 0, the advantages of the
group (or batch) are 0 for any baseline: a difference divided by an epsilon is not an advantage.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.baseline import with_virtual
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.config.ranges import ANY_NUMBER, DDOF, POSITIVE, UPPER_BOUND
from mmgrpo.config.registry import block, table_of

SCALES = table_of("scale")


@block(SCALES)
def none(centred: Values) -> Values:
    """No division (Dr. GRPO, arXiv:2503.20783)."""
    return centred


@block(SCALES, level="group")
def group_std(
    centred: Values, values: Values, key: Key, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-4
) -> Values:
    """centred / (std + eps) (GRPO, arXiv:2402.03300). ddof 1: [1,0,0,1] -> .866; ddof 0: 1."""
    return _over(centred, groups.group_std(values, key, stat, ddof), eps)


@block(SCALES, level="group")
def group_std_floor(
    centred: Values, values: Values, key: Key, stat: Rows, ddof: Annotated[int, DDOF] = 0, floor: float = 1e-6
) -> Values:
    """centred / max(std, floor): ``group_std`` with a lower bound of the std in place of an added epsilon."""
    std = groups.group_std(values, key, stat, ddof)
    return torch.where(std > 0, centred / std.clamp(min=floor), 0.0)


@block(SCALES, level="group")
def power_norm(centred: Values, key: Key, stat: Rows, p: Annotated[float, POSITIVE] = 0.8, eps: float = 1e-8) -> Values:
    """centred / ((sum |centred|^p)^(1 / p) + eps) over the group: a quasi-norm below p = 1, which damps groups whose
    members are all as far from the mean. Neighbor GRPO (arXiv:2511.16955), p .8: 1, .2, -1.2 -> .3291, .0658, -.3949.
    Like the std it does not see how large the differences are."""
    return _over(centred, groups.group_sum(centred.abs().pow(p), key, stat).pow(1 / p), eps)


@block(SCALES, level="group")
def virtual_max_std(
    centred: Values,
    values: Values,
    key: Key,
    stat: Rows,
    maximum: Annotated[float, ANY_NUMBER] = 1.0,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-6,
) -> Values:
    """``group_std`` over the group and one virtual member of the largest possible reward (NGRPO, arXiv:2509.18851)."""
    std = groups.group_std(*with_virtual(values, key, stat, maximum), ddof)[: values.numel()]
    return _over(centred, std, eps)


@block(SCALES, level="group")
def leave_one_out_std(centred: Values, values: Values, key: Key, stat: Rows, eps: float = 1e-6) -> Values:
    """centred / (std of the other members + eps), and centred itself where the others are equal (as in NeMo-RL).

    It is the only scale for which a divisor of 0 does not make the advantage 0.
    """
    std = groups.others_std(values, key, stat)
    return torch.where(std > 0, centred / (std + eps), centred)


@block(SCALES, level="group")
def batch_std(centred: Values, values: Values, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-4) -> Values:
    """centred / (std of all rewards of the batch + eps) (Lite PPO, arXiv:2508.08221; Flow-GRPO, ddof 0)."""
    return _over(centred, groups.group_std(values, _whole_batch(stat), stat, ddof), eps)


@block(SCALES, level="group")
def batch_std_centred(centred: Values, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-4) -> Values:
    """centred / (std of all centred values of the batch + eps), without the spread between groups."""
    return _over(centred, groups.group_std(centred, _whole_batch(stat), stat, ddof), eps)


@block(SCALES, level="group")
def batch_whiten(centred: Values, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-8) -> Values:
    """(centred - its mean over the batch) / (its std over the batch + eps) (SPO, arXiv:2509.13232): rows of one prompt
    each are compared over the batch. [.5, .75, -.75, .1] -> [.533, .913, -1.370, -.076]."""
    batch = _whole_batch(stat)
    return _over(centred - groups.group_mean(centred, batch, stat), groups.group_std(centred, batch, stat, ddof), eps)


@block(SCALES, level="group")
def batch_std_informative(
    centred: Values, values: Values, key: Key, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-4
) -> Values:
    """centred / (std of the centred values of the groups with spread + eps): the batch's deviation of the advantages
    that are trained, whatever share of the prompts is always or never solved (ScaleRL, arXiv:2510.13786).

    [1,0,0,0], [1,1,1,0] and two groups of equal rewards: sqrt(8 * 3/16 / 7) = .463, where ``batch_std`` divides by .516
    and ``batch_std_centred`` by .316. With rewards 0 and 1, half of them 1, ``batch_std`` gives advantages that are
    2 sqrt(mean p (1 - p)) of these, p the pass rates of the groups with spread: .78 for 3/16 and 13/16.
    """
    informative = stat & groups.group_spread(values, key, stat)
    return _over(centred, groups.group_std(centred, _whole_batch(stat), informative, ddof), eps)


@block(SCALES, level="group")
def token_whiten(centred: Values, stat: Rows, length: Key, eps: float = 1e-8) -> Values:
    """(centred - m) / sqrt(v + eps), m and v (n - 1) over all decisions of the batch (REINFORCE++,
    arXiv:2501.03262): each row is weighted by its number of decisions.
    """
    weight = torch.where(stat, length, 0).to(centred.dtype)
    number = weight.sum()
    mean = (weight * centred).sum() / number.clamp(min=1)
    variance = (weight * (centred - mean) ** 2).sum() / (number - 1).clamp(min=1)
    return torch.where(variance > 0, (centred - mean) / (variance + eps).sqrt(), 0.0)


@block(SCALES, level="group")
def length_weighted_std(
    centred: Values, values: Values, key: Key, stat: Rows, length: Key, limit: Annotated[float, UPPER_BOUND] = 5.0
) -> Values:
    """centred / std over all decisions of the group, each with its row's reward (population), for the baseline
    ``length_weighted``; where any |A| of a group would reach ``limit``, its A is that of GRPO (HAPO, arXiv:2509.16591).

    Rewards 1, 1, 0, 0 of 1, 1, 2, 4 decisions: mean .25, std .433, A = 1.732, 1.732, -.577, -.577.
    """
    weight = torch.where(stat, length, 0).to(values.dtype)
    number = groups.group_sum(weight, key, stat).clamp(min=1)
    mean = groups.group_sum(weight * values, key, stat) / number
    std = (groups.group_sum(weight * (values - mean).square(), key, stat) / number).sqrt()
    scaled = _over(centred, std, 0.0)
    plain = _over(values - groups.group_mean(values, key, stat), groups.group_std(values, key, stat, 1), 1e-6)
    return torch.where(groups.group_max(scaled.abs(), key, stat) >= limit, plain, scaled)


@block(SCALES, level="group", rewards=(0.0, 1.0))
def bernoulli(centred: Values, values: Values, key: Key, stat: Rows, eps: float = 1e-6) -> Values:
    """centred / (p (1 - p) + eps), p the group's mean reward in [0, 1] (TreeRPO, arXiv:2506.05183).

    ValueError for rewards outside of [0, 1].
    """
    refuse_outside(values, stat, 0.0, 1.0, "algorithm.scale: bernoulli")
    mean = groups.group_mean(values, key, stat)
    return _over(centred, mean * (1 - mean), eps)


@block(SCALES, level="group", rewards=(0.0, torch.inf))
def mean(centred: Values, values: Values, key: Key, stat: Rows, eps: float = 1e-6) -> Values:
    """centred / (mean + eps), for rewards that are not negative (half of MAPO, arXiv:2509.18849), else ValueError."""
    refuse_outside(values, stat, 0.0, torch.inf, "algorithm.scale: mean (of which mapo makes use)")
    return _over(centred, groups.group_mean(values, key, stat), eps)


@block(SCALES, level="group", rewards=(0.0, torch.inf))
def mapo(
    centred: Values, values: Values, key: Key, stat: Rows, ddof: Annotated[int, DDOF] = 1, eps: float = 1e-6
) -> Values:
    """L * centred / std + (1 - L) * centred / mean with L = 4 p (1 - p), p the fraction of rewards equal to 1
    (MAPO, arXiv:2509.18849): division by the mean where a prompt is nearly always or nearly never solved.
    """
    fraction = groups.group_mean((values == 1).to(values.dtype), key, stat)
    mixture = 4 * fraction * (1 - fraction)
    by_std = group_std(centred, values, key, stat, ddof, eps)
    return mixture * by_std + (1 - mixture) * mean(centred, values, key, stat, eps)


@block(SCALES, level="group", rewards=("low", "high"))
def beta_pdf(
    centred: Values,
    values: Values,
    key: Key,
    stat: Rows,
    low: Annotated[float, ANY_NUMBER] = 0.0,
    high: Annotated[float, ANY_NUMBER] = 1.0,
    limit: Annotated[float, UPPER_BOUND] = 1e6,
) -> Values:
    """centred * min(1 / Beta(p; a, b), limit), p the group's success rate (BNPO, arXiv:2506.02864).

    With m, v the mean and sample variance of p over groups and c = m (1 - m) / v - 1,
    a = max(1 + c m / 3, 1) and b = max(1 + c (1 - m) / 3, 1). Rewards in [low, high] are first mapped to
    [0, 1]; ValueError for others. With one group a = b = 1, and nothing is divided.
    """
    refuse_outside(values, stat, low, high, "algorithm.scale: beta_pdf (low, high)")
    width = high - low
    rate = groups.group_mean((values - low) / width, key, stat)
    rates = rate[groups.group_first(key, stat)]
    m = rates.mean()
    v = rates.var() if rates.numel() > 1 else rate.new_zeros(())
    c = torch.where(v > 0, m * (1 - m) / v - 1, 0.0)
    a = (1 + c * m / 3).clamp(min=1)
    b = (1 + c * (1 - m) / 3).clamp(min=1)
    log_norm = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
    log_pdf = log_norm + torch.xlogy(a - 1, rate) + torch.xlogy(b - 1, 1 - rate)
    scaled = centred / width * torch.exp(-log_pdf).clamp(max=limit)
    return torch.where(groups.group_spread(values, key, stat), scaled, 0.0)


@block(SCALES, level="group")
def valid_fraction(centred: Values, values: Values, key: Key, stat: Rows) -> Values:
    """centred * (rows in the statistics / rows of groups with spread) (GPG, arXiv:2504.02546).

    It compensates for groups without gradient that count in the mean of the loss; with a selector that
    drops these groups from the mean as well, it would compensate twice.
    """
    informative = (stat & groups.group_spread(values, key, stat)).sum()
    return torch.where(informative > 0, centred * stat.sum() / informative, 0.0)


def refuse_outside(values: Values, stat: Rows, low: float, high: float, what: str) -> None:
    """Raise ValueError if a reward of the statistics lies outside of [low, high], for blocks that read it as a rate."""
    outside: Tensor = values[stat & ((values < low - 1e-6) | (values > high + 1e-6))]
    if outside.numel():
        raise ValueError(
            f"{what}: got a reward of {float(outside[0]):g}, expected [{low:g}, {high:g}]; choose another one, or "
            "bring the rewards into this range with their weights or algorithm.transform, e.g. clip(low=0, high=1)"
        )


def _over(centred: Values, divisor: Values, eps: float) -> Values:
    return torch.where(divisor > 0, centred / (divisor + eps), 0.0)


def _whole_batch(stat: Rows) -> Key:
    """One group of all rows."""
    return torch.zeros_like(stat, dtype=torch.long)
