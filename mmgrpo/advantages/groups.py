"""Statistics over groups, where a group is an integer key per row.

Every function returns for each row the statistic of its group, over those members of the group for which
``stat`` is True. Groups may be ragged, in any order over the rows, and without any member in the
statistics. Sums are in double precision.
"""

from __future__ import annotations

from itertools import combinations, islice
from math import comb
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Values: TypeAlias = Float[Tensor, "B"]
Key: TypeAlias = Int[Tensor, "B"]
Rows: TypeAlias = Bool[Tensor, "B"]


def with_moments(
    moments: Float[Tensor, "K 3"], values: Float[Tensor, "B K"], counted: Bool[Tensor, "B K"]
) -> Float[Tensor, "K 3"]:
    """Number, mean and sum of squared deviations of each column with further values (Chan, Golub and LeVeque 1983).

    1 and 3: 2, 2, 2; with 5 and 7: 4, 4, 20, so the std, with n - 1, goes from 1.414 to 2.582.
    """
    values = torch.where(counted, values, 0.0).double()
    number, mean, squares = moments.double().unbind(1)
    more = counted.sum(0).double()
    new = values.sum(0) / more.clamp(min=1)
    spread = torch.where(counted, values - new, 0.0).square().sum(0)
    total, distance = (number + more).clamp(min=1), new - mean
    shifted = squares + spread + distance.square() * number * more / total
    return torch.stack([number + more, mean + distance * more / total, shifted], 1)


def group_index(key: Key) -> tuple[Key, int]:
    """Number the groups 0, 1, ...; returns each row's number and the number of groups."""
    names, index = torch.unique(key, return_inverse=True)
    return index, names.numel()


def group_sum(values: Values, key: Key, stat: Rows) -> Values:
    """Sum over the group's members in the statistics."""
    index, count = group_index(key)
    sums = torch.zeros(count, dtype=torch.float64, device=values.device)
    sums.index_add_(0, index, torch.where(stat, values, 0.0).double())
    return sums[index].to(values.dtype)


def group_count(key: Key, stat: Rows) -> Values:
    """Number of the group's members in the statistics."""
    return group_sum(stat.double(), key, stat)


def group_mean(values: Values, key: Key, stat: Rows) -> Values:
    """Mean over the group's members in the statistics; 0 for a group without any."""
    exact, shift = values.double(), _shift(values, key, stat)
    total = group_sum(exact - shift, key, stat)
    return (shift + total / group_count(key, stat).clamp(min=1)).to(values.dtype)


def group_std(values: Values, key: Key, stat: Rows, ddof: int = 1) -> Values:
    """Standard deviation sqrt(sum (x - mean)^2 / (n - ddof)), ``ddof`` 0 or 1; 0 for a group of one and of none."""
    exact = values.double()
    squares = group_sum((exact - group_mean(exact, key, stat)) ** 2, key, stat)
    return (squares / (group_count(key, stat) - ddof).clamp(min=1)).sqrt().to(values.dtype)


def group_max(values: Values, key: Key, stat: Rows) -> Values:
    """Largest value in the statistics; -inf for a group without any."""
    index, count = group_index(key)
    best = torch.full((count,), -torch.inf, dtype=values.dtype, device=values.device)
    best.scatter_reduce_(0, index, torch.where(stat, values, -torch.inf), "amax")
    return best[index]


def group_spread(values: Values, key: Key, stat: Rows) -> Rows:
    """True where the group's statistics hold two different values."""
    return group_max(values, key, stat) > -group_max(-values, key, stat)


def others_mean(values: Values, key: Key, stat: Rows) -> Values:
    """Mean over the other members in the statistics; the row's own value if there are none."""
    exact, shift = values.double(), _shift(values, key, stat)
    others = group_count(key, stat) - stat.double()
    total = group_sum(exact - shift, key, stat) - torch.where(stat, exact - shift, 0.0)
    return torch.where(others > 0, shift + total / others.clamp(min=1), exact).to(values.dtype)


def others_std(values: Values, key: Key, stat: Rows) -> Values:
    """Sample standard deviation (n - 1) of the other members in the statistics; 0 for fewer than two."""
    exact = values.double()
    deviation = torch.where(stat, exact - group_mean(exact, key, stat), 0.0)
    others = group_count(key, stat) - stat.double()
    squares = group_sum(deviation**2, key, stat)
    rest = squares - deviation**2 * (1 + 1 / others)  # the deviations of the others sum to minus the row's own
    # For equal values the difference is a rounding error relative to ``squares``, not a spread.
    rest = torch.where(rest > 1e-12 * squares, rest, 0.0)
    return torch.where(others > 1, rest / (others - 1).clamp(min=1), 0.0).sqrt().to(values.dtype)


def others_max(values: Values, key: Key, stat: Rows) -> Values:
    """Largest value of the other members in the statistics; -inf if there are none."""
    best = group_max(values, key, stat)
    leader = stat & (values == best)
    second = group_max(values, key, stat & ~leader)
    return torch.where(leader & (group_count(key, leader) == 1), second, best)


def group_rank(values: Values, key: Key, stat: Rows) -> Key:
    """Rank of the row among its group's members in the statistics, from 0 for the smallest; B for rows outside them.

    Ties are ordered by row.
    """
    index, _ = group_index(torch.where(stat, key, key.max() + 1) if key.numel() else key)
    order = torch.argsort(values, stable=True)
    order = order[torch.argsort(index[order], stable=True)]
    size = torch.bincount(index)
    start = torch.cumsum(size, 0) - size
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel(), device=order.device) - start[index[order]]
    return torch.where(stat, rank, values.numel())


def group_first(key: Key, stat: Rows) -> Rows:
    """True at one row, the first, of every group that has a member in the statistics."""
    place = torch.arange(key.numel(), device=key.device).double()
    return group_rank(place, key, stat) == 0


def set_advantages(values: Float[Tensor, "B *R"], classes: Values, size: int, most: int) -> Float[Tensor, "B *R"]:
    """What rows gain by the sets of ``size`` of them, f - mean f, f = (mean value) (share of different classes) of a
    set, each row the mean over its sets: all sets, or at most ``most`` of them, every n-th (arXiv:2509.25424).

    [1, 1, 0, 0] of classes a, a, b, c in pairs: f .5 five times and 0, so .083, .083, -.083, -.083.
    """
    taken = min(size, len(values))
    step = -(-comb(len(values), taken) // most)
    sets = torch.tensor([*islice(combinations(range(len(values)), taken), 0, None, step)], device=values.device)
    different = torch.tensor([len(set(classes[members].tolist())) / taken for members in sets]).to(values)
    inside = torch.zeros(len(sets), len(values), dtype=values.dtype, device=values.device).scatter(1, sets, 1.0)
    each = (..., *[None] * (values.dim() - 1))
    f = values[sets].mean(1) * different[each]
    return inside.T @ (f - f.mean(0)) / inside.sum(0).clamp(min=1)[each]


def _shift(values: Values, key: Key, stat: Rows) -> Values:
    """The group's largest value: relative to it, the mean of equal values is exact and their spread 0."""
    best = group_max(values.double(), key, stat)
    return torch.where(torch.isfinite(best), best, 0.0)


def papers(key: Key, stat: Rows, size: int) -> tuple[Key, Rows]:
    """Bundles of one row of each of ``size`` groups, as an examination has one answer to each of its questions: the
    number of each row's bundle, and whether the row is in a whole one (RiskPO, arXiv:2510.00911).

    Groups with rows in the statistics are bundled in order, and these rows in order: the first with the first. The
    last bundle has fewer groups if they do not divide evenly; rows beyond the smallest of the bundled groups are in
    none.
    """
    index, count = group_index(key)
    order = torch.arange(key.numel(), device=key.device).double()
    member = group_rank(order, key, stat).long()
    number = torch.zeros(count, dtype=torch.long, device=key.device).index_add_(0, index, stat.long())
    bundles = ((number > 0).cumsum(0) - 1).clamp(min=0) // size  # of each group
    least = torch.full((int(bundles.max()) + 1,), key.numel(), device=key.device)
    least.scatter_reduce_(0, bundles[number > 0], number[number > 0], "amin")
    bundle = bundles[index]
    return bundle * key.numel() + member, stat & (member < least[bundle])
