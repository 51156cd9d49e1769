"""Selectors: which samples enter the statistics and which are trained.

A selector in ``BEFORE`` removes rows from the statistics and from training, as if they had never been
sampled (GFPO). One in ``AFTER`` leaves the statistics unchanged and restricts training only
(Reinforce-Ada). Every function returns True for what it selects: rows [B], or single decisions [B, T].
``keep`` are the rows that all previous selectors have selected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.credit import fuse, tails
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.pareto import fronts as fronts_of
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, one_of
from mmgrpo.config.registry import Block, block

BEFORE: dict[str, Block] = {}
AFTER: dict[str, Block] = {}


@block(BEFORE, level="group")
def gfpo(
    values: Values,
    key: Key,
    keep: Rows,
    length: Key,
    *,
    count: Annotated[int, COUNT],
    metric: Annotated[str, one_of("length", "efficiency", "reward")] = "length",
) -> Rows:
    """The ``count`` best rows of each group by a metric (GFPO, arXiv:2508.09726).

    ``length``: the shortest; ``efficiency``: the largest reward per decision; ``reward``: the largest reward.
    """
    metrics = {
        "length": -length.to(values.dtype),
        "efficiency": values / length.clamp(min=1),
        "reward": values,
    }
    return groups.group_rank(-metrics[metric], key, keep) < count


@block(BEFORE, level="group")
def max_variance(values: Values, key: Key, keep: Rows, *, count: Annotated[int, COUNT]) -> Rows:
    """The ``count`` rows of each group with the largest variance of rewards (Pro-GRPO, CVPR 2026).

    The best subset always consists of some of the smallest and some of the largest rewards, which leaves count + 1
    candidates.
    """
    selected = torch.zeros_like(keep)
    for name in torch.unique(key[keep]):
        members = torch.nonzero(keep & (key == name)).flatten()
        members = members[values[members].argsort(stable=True)]
        rest = max(0, members.numel() - count)
        subsets = [torch.cat([members[:low], members[low + rest :]]) for low in range(members.numel() - rest + 1)]
        selected[max(subsets, key=lambda subset: float(values[subset].double().var(correction=0)))] = True
    return selected


@block(AFTER, level="group")
def drop_zero_spread(values: Values, key: Key, stat: Rows, least: float = 0.0) -> Rows:
    """Groups whose rewards are not all equal (DAPO's filter, arXiv:2503.14476): the others have no gradient.

    Largest and smallest reward must differ by more than ``least``, which excludes differences of floating-point noise.
    """
    return groups.group_max(values, key, stat) + groups.group_max(-values, key, stat) > least


@block(AFTER)
def drop_truncated(truncated: Shaped[Tensor, "B"]) -> Rows:
    """Rows that ended before the length limit (DAPO's overlong filtering, arXiv:2503.14476): ``truncated`` is 0."""
    return truncated == 0


@block(AFTER, level="group")
def best_worst(advantages: Values, key: Key, keep: Rows, best: int = 4, worst: int = 4) -> Rows:
    """The rows of highest and of lowest advantage in each group (DanceGRPO, arXiv:2505.07818).

    All rows stay in the statistics. A group of at most best + worst rows is selected whole.
    """
    return (groups.group_rank(advantages, key, keep) < worst) | (groups.group_rank(-advantages, key, keep) < best)


@block(AFTER, level="group")
def pareto_front(
    streams: Float[Tensor, "B R"],
    weights: Float[Tensor, "R"],
    names: Sequence[str],
    key: Key,
    keep: Rows,
    fronts: Annotated[int, COUNT] = 1,
    members: Sequence[str] = (),
) -> Rows:
    """The rows of each group that no other dominates in all rewards (Parrot, arXiv:2401.05675), and with ``fronts``
    those of further fronts.

    (.9, .1), (.5, .5), (.4, .4), (.1, .9) leave the rows 1, 2 and 4. Rewards of negative weight are to be small, those
    of weight 0 take no part. With one reward only the best rows are left; with many hardly any row is dominated.
    ``members`` names the rewards instead, whatever their weights, all to be large.
    """
    used = torch.tensor([name in members for name in names]) if members else weights != 0
    signs = torch.ones_like(weights) if members else weights.sign()
    return fronts_of(streams[:, used] * signs[used], key, keep) < fronts


@block(AFTER, level="group")
def balanced(
    values: Values, key: Key, keep: Rows, *, count: Annotated[int, COUNT], threshold: Annotated[float, ANY_NUMBER] = 0.5
) -> Rows:
    """``count`` rows per group, half of them with rewards above the threshold (Reinforce-Ada, arXiv:2510.04996).

    Where one half has too few rows, the other has more. The rows of a half are exchangeable: the first are selected.
    """
    right, wrong = keep & (values > threshold), keep & (values <= threshold)
    number_right, number_wrong = groups.group_count(key, right), groups.group_count(key, wrong)
    half = (count + 1) // 2
    quota = torch.minimum((count - number_wrong).clamp(min=half), number_right)
    order = torch.arange(key.numel(), device=key.device).double()
    first_right = groups.group_rank(order, key, right) < quota
    first_wrong = groups.group_rank(order, key, wrong) < count - quota
    return (right & first_right) | (wrong & first_wrong)


@block(AFTER, level="group")
def parent_top1(
    values: Values,
    key: Key,
    keep: Rows,
    node: Int[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    log_probs: Float[Tensor, "B T"],
    beta: float = 1.0,
) -> Bool[Tensor, "B T"]:
    """After the last split of a tree only the better child of each parent (BranchGRPO, arXiv:2509.06040).

    This is its width pruning; the decisions of the split itself stay trained, in both children. The tree
    of 20 steps with binary splits at steps 0, 3, 6, 9 has 218 edges, of which the 16 of the last,
    deterministic step are not trained; of the other 202 pruning leaves 130. A group whose rows share no
    decision has no split and is selected whole.
    """
    tail = tails(log_probs, decision_mask)
    last = torch.full_like(key, node.shape[1])
    winner = torch.ones_like(keep)
    _, dense = torch.unique(node, return_inverse=True)
    # A parent of its own per row, so that the first decision of a group's trees is not taken for a split.
    parent = -1 - torch.arange(key.numel(), device=key.device)
    for t in range(node.shape[1]):
        rows = decision_mask[:, t] & keep
        first = groups.group_first(dense[:, t], rows)
        split = rows & (groups.group_count(parent, first) > 1)
        value = fuse(values, dense[:, t], tail[:, t], rows, beta)
        leader = first & (groups.group_rank(-value, parent, first) == 0)
        winner = torch.where(split, groups.group_count(dense[:, t], leader) > 0, winner)
        last = torch.where(split, t, last)
        parent = torch.where(rows, dense[:, t], parent)
    position = torch.arange(node.shape[1], device=key.device)
    return winner[:, None] | (position <= last[:, None])


SELECTORS = BEFORE | AFTER
