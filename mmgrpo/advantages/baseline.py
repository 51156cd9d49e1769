"""Baselines: what is subtracted from a reward. Each function returns one baseline per row, [B].

For r = [1, 0, 0, 1], r - b is [.5, -.5, -.5, .5] with group_mean and [.667, -.667, -.667, .667] with leave_one_out.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.config.ranges import ANY_NUMBER
from mmgrpo.config.registry import Block, block

BASELINES: dict[str, Block] = {}


@block(BASELINES)
def none(values: Values) -> Values:
    """Zero (REINFORCE)."""
    return torch.zeros_like(values)


@block(BASELINES)
def constant(values: Values, *, value: Annotated[float, ANY_NUMBER]) -> Values:
    """A constant; 0.5 turns rewards of 0 and 1 into -0.5 and 0.5."""
    return torch.full_like(values, value)


@block(BASELINES, level="group")
def group_mean(values: Values, key: Key, stat: Rows) -> Values:
    """Mean of the group (GRPO, arXiv:2402.03300, section 4.1.2). A group of one has advantage 0."""
    return groups.group_mean(values, key, stat)


@block(BASELINES, level="group")
def leave_one_out(values: Values, key: Key, stat: Rows) -> Values:
    """Mean of the other members (RLOO, arXiv:2402.14740): r - b = G/(G-1) * (r - mean).

    A group of one has advantage 0: its baseline is its own reward.
    """
    return groups.others_mean(values, key, stat)


@block(BASELINES, level="group")
def length_weighted(values: Values, key: Key, stat: Rows, length: Key) -> Values:
    """sum_j T_j r_j / sum_j T_j (OPO, arXiv:2505.23585), T_j the number of the row's decisions."""
    weight = length.to(values.dtype)
    return groups.group_sum(weight * values, key, stat) / groups.group_sum(weight, key, stat).clamp(min=1)


@block(BASELINES, level="group")
def batch_mean(values: Values, stat: Rows) -> Values:
    """Mean of the whole batch."""
    return groups.group_mean(values, torch.zeros_like(stat, dtype=torch.long), stat)


@block(BASELINES)
def static_reference(reference_value: Values) -> Values:
    """The prompt's ``reference_value``: the mean reward of a frozen policy's samples, a column of the data set (PVPO,
    arXiv:2508.21104)."""
    return reference_value


@block(BASELINES)
def greedy(greedy_value: Values) -> Values:
    """The weighted reward of the prompt's greedy decode, noise-free ODE sample or most likely choice (ReMax,
    arXiv:2310.10505), which every round samples in addition to the groups."""
    return greedy_value


@block(BASELINES, level="group")
def runner_up(values: Values, key: Key, stat: Rows) -> Values:
    """min(r_i, max of the others): the best member has advantage r_(1) - r_(2), all others 0, and so have ties.

    The gradient of pass@k comes from the best sample alone ("grpo_passk" in verl).
    """
    rest = groups.others_max(values, key, stat)
    return torch.where(torch.isfinite(rest), torch.minimum(values, rest), values)


@block(BASELINES, level="group")
def virtual_max(values: Values, key: Key, stat: Rows, maximum: Annotated[float, ANY_NUMBER] = 1.0) -> Values:
    """Mean of the group and one virtual member with the largest possible reward (NGRPO, arXiv:2509.18851).

    A group without any correct sample then has negative advantages. To be used with the scale ``virtual_max_std``.
    """
    return groups.group_mean(*with_virtual(values, key, stat, maximum))[: values.numel()]


def with_virtual(
    values: Values, key: Key, stat: Rows, maximum: float
) -> tuple[Float[Tensor, "E"], Int[Tensor, "E"], Bool[Tensor, "E"]]:
    """Values, group numbers and statistics mask with one row of value ``maximum`` appended to every group."""
    index, count = groups.group_index(key)
    return (
        torch.cat([values, values.new_full((count,), maximum)]),
        torch.cat([index, torch.arange(count, device=index.device)]),
        torch.cat([stat, stat.new_ones(count)]),
    )
