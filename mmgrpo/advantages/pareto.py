"""Pareto order: a point dominates another where it is at least as good in every coordinate and better in one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.advantages.groups import Key, Rows


def fronts(points: Float[Tensor, "B M"], key: Key, stat: Rows) -> Key:
    """Number of the row's front within its group: 0 for rows that no member dominates, 1 for those that only members
    of front 0 dominate, ...; B for rows outside the statistics. Equal points share a front. A coordinate is NaN where
    the row has none; rows that lack different coordinates are not compared.
    """
    front = torch.full_like(key, len(key))
    for name in torch.unique(key[stat]):
        rows = torch.nonzero(stat & (key == name)).flatten()
        here = points[rows]
        first, second = here[:, None], here[None]
        no_better = (first <= second) | (first.isnan() & second.isnan())
        dominated = no_better.all(-1) & (first < second).any(-1)  # by the second
        left, number = torch.ones_like(rows, dtype=torch.bool), 0
        while left.any():
            best = left & ~(dominated & left[None]).any(1)
            front[rows[best]] = number
            left, number = left & ~best, number + 1
    return front


def hypervolume(points: Sequence[Sequence[float]], reference: Sequence[float]) -> float:
    """Volume of what the points dominate above ``reference``, all coordinates to be maximized.

    By slices along the first coordinate: sum over slices of width times the volume of the points beyond it in the
    other coordinates. Coordinates below the reference count as the reference.
    """
    if not points:
        return 0.0
    clipped = sorted(tuple(max(x, r) for x, r in zip(point, reference, strict=True)) for point in points)
    if len(reference) == 1:
        return clipped[-1][0] - reference[0]
    volume, edge = 0.0, reference[0]
    for index, point in enumerate(clipped):
        volume += (point[0] - edge) * hypervolume([other[1:] for other in clipped[index:]], reference[1:])
        edge = point[0]
    return volume
