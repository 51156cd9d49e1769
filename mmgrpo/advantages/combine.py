"""How several rewards become one advantage per sample.

``normalise`` maps one stream of rewards [B] to advantages [B] with the recipe's baseline, scale and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Rows, Values
from mmgrpo.registry import Block
from mmgrpo.runtime.ranges import DDOF

Normalise: TypeAlias = Callable[[Values], Values]


def weighted_sum(normalise: Normalise, values: Float[Tensor, "B R"], weights: Float[Tensor, "R"]) -> Values:
    """normalise(sum_k w_k r_k): rewards are summed, then compared."""
    return normalise(values @ weights)


def per_reward(normalise: Normalise, values: Float[Tensor, "B R"], weights: Float[Tensor, "R"]) -> Values:
    """sum_k w_k normalise(r_k): no reward dominates by its units (DanceGRPO, arXiv:2505.07818)."""
    return sum((w * normalise(values[:, k]) for k, w in enumerate(weights) if w != 0), torch.zeros_like(values[:, 0]))


def gdpo(
    normalise: Normalise,
    values: Float[Tensor, "B R"],
    weights: Float[Tensor, "R"],
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


COMBINE = {
    "weighted_sum": Block(weighted_sum, ("normalise", "values", "weights"), "group"),
    "per_reward": Block(per_reward, ("normalise", "values", "weights"), "group"),
    "gdpo": Block(gdpo, ("normalise", "values", "weights", "stat"), "group"),
}
