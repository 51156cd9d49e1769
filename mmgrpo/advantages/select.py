"""Selectors: which samples enter the statistics and which are trained.

A selector in ``BEFORE`` removes rows from the statistics and from training, as if they had never been
sampled (GFPO). One in ``AFTER`` leaves the statistics unchanged and restricts training only
(Reinforce-Ada). Every function returns True for what it selects: rows [B], or single decisions [B, T].
``keep`` are the rows that all previous selectors have selected.

Two parts of a batch, an easy one and a hard one, cut by the rewards (group-invariant learning, arXiv:2310.11971).

The paper trains a classifier p(g | x, y) of M = 2 parts that maximizes the variance between the parts' returns
(section 4.3), R_g = sum_i p(g | i) R_i / sum_i p(g | i). With parts weighted by their sizes that variance is convex in
the probabilities, so its maximum is a hard assignment, and the best of those is a cut of the sorted returns. Here
the cut is taken itself, in every batch: the limit of a classifier that can tell all samples apart. A trained one
(``critic(classes=...)``) sees texts instead, smooths over batches, and generalizes to samples that it has not seen.

Pareto order: a point dominates another where it is at least as good in every coordinate and better in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.credit import fuse, tails
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.advantages.turn_credit import by_turns, of_turns, same_state
from mmgrpo.config.ranges import ANY_NUMBER, COUNT, one_of, within
from mmgrpo.config.registry import Reward, Rewards, block, table_of


def pareto_fronts(points: Float[Tensor, "B M"], key: Key, stat: Rows) -> Key:
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


class Parts(NamedTuple):
    """The part of each row."""

    mean: Values
    """R_g of the row's part."""
    centre: Values
    """The mean of both R_g, [1]."""
    high: Rows
    """The part with the larger rewards."""


def parts(values: Values, key: Key, stat: Rows, of: str) -> Parts | None:
    """The cut with the largest variance between the parts, of prompts (by their mean rewards) or of rows.

    None where all are equal, which no cut divides. Equal ones are in one part.
    """
    compared = groups.group_mean(values, key, stat) if of == "prompts" else values
    ordered = compared[groups.group_first(key, stat) if of == "prompts" else stat].sort().values
    if ordered.numel() < 2 or ordered[0] == ordered[-1]:
        return None
    number = torch.arange(1, ordered.numel(), device=values.device)
    low, total = ordered.cumsum(0)[:-1], ordered.sum()
    below, above = low / number, (total - low) / (ordered.numel() - number)
    between = number * (ordered.numel() - number) * (above - below) ** 2
    cut = int(between.argmax())  # never between equal ones: the variance is convex in how many of them are below
    high = compared > ordered[cut]
    return Parts(torch.where(high, above[cut], below[cut]), (below[cut] + above[cut])[None] / 2, high)


def soft_means(values: Values, share: Values, stat: Rows) -> Float[Tensor, "2"]:
    """R_0 and R_1 of two parts that rows belong to by their ``share`` p of the second: sum p r / sum p, and of 1 - p.

    Rewards 1 and 0 of shares .75 and .25: .25 and .75.
    """
    both = torch.stack([1 - share, share]) * stat
    return (both * torch.where(stat, values, 0.0)).sum(1) / both.sum(1).clamp(min=1e-12)


def variance_slope(values: Values, share: Values, stat: Rows) -> Values:
    """The derivative of the variance between both parts, weighted by their sizes, with respect to each row's share:
    (R_1 - R_0) (2 r - R_1 - R_0) / n. In the example of ``soft_means`` .25 and -.25."""
    low, high = soft_means(values, share, stat)
    return torch.where(stat, (high - low) * (2 * values - high - low) / stat.sum().clamp(min=1), 0.0)


BEFORE = table_of("select")
AFTER = table_of("select")


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
    return groups.group_rank(-_metric(metric, values, length), key, keep) < count


def _metric(metric: str, values: Values, length: Key) -> Values:
    """What ``gfpo`` wants of a row to be large."""
    return {
        "length": -length.to(values.dtype),
        "efficiency": values / length.clamp(min=1),
        "reward": values,
    }[metric]


@block(BEFORE, level="group")
def gfpo_adaptive(
    values: Values,
    key: Key,
    keep: Rows,
    length: Key,
    difficulty: Float[Tensor, "B 3"],
    *,
    counts: Sequence[int] = (8, 8, 6, 4),
    metric: Annotated[str, one_of("length", "efficiency", "reward")] = "length",
) -> Rows:
    """``gfpo`` that keeps more rows of hard prompts: Adaptive Difficulty GFPO (arXiv:2508.09726), of groups of 16 8, 8,
    6 and 4 where their mean reward is within the lowest, second, third and highest quarter of those of the run.

    The quartiles are those of the tracker ``difficulty``, before it has seen any of the round's own groups. The paper
    has a digest of all groups so far. ValueError unless there are four counts.
    """
    if len(counts) != 4 or not all(isinstance(n, int) and n > 0 for n in counts):
        raise ValueError(f"gfpo_adaptive: counts: got {list(counts)}, expected four numbers of rows, the hardest first")
    mean = groups.group_mean(values, key, keep)
    marks = difficulty[0].to(values.dtype) if len(difficulty) else values.new_full((3,), torch.nan)
    if bool(marks.isnan().any()):
        first = groups.group_first(key, keep)
        marks = mean[first].quantile(marks.new_tensor([0.25, 0.5, 0.75])) if bool(first.any()) else marks
    count = torch.tensor(counts, device=values.device)[(mean[:, None] > marks).sum(1)]
    return groups.group_rank(-_metric(metric, values, length), key, keep) < count


@block(BEFORE, level="group")
def contrast(values: Values, key: Key, keep: Rows, length: Key, *, count: Annotated[int, COUNT]) -> Rows:
    """The ``count`` best rows of each group, of equal ones the shortest, and the ``count`` worst, of equal ones the
    longest: what is right and brief against what is wrong and long. The rule is ours, for the selection by reward and
    length of reasoning that DCPO of ChatShopBuddy names (arXiv:2603.06065), whose own was not found.

    Rewards 1, 1, 0, 0 of lengths 10, 30, 10, 30 and one of each: the first and the last row.
    """
    best, worst = _lexicographic_rank(-values, length), _lexicographic_rank(values, -length)
    return keep & ((groups.group_rank(best, key, keep) < count) | (groups.group_rank(worst, key, keep) < count))


def _lexicographic_rank(first: Values, second: Key) -> Values:
    """The place of each row in the order by the first number, and by the second where that is equal."""
    order = second.argsort(stable=True)
    order = order[first[order].argsort(stable=True)]
    return torch.empty_like(first).scatter_(0, order, torch.arange(len(order), device=first.device).to(first.dtype))


@block(BEFORE, level="group")
def consistent(
    values: Values,
    raw: Float[Tensor, "B R"],
    names: Sequence[str],
    key: Key,
    keep: Rows,
    *,
    by: Reward,
    remove: Annotated[int, COUNT],
    right: Annotated[float, ANY_NUMBER] = 0.5,
) -> Rows:
    """All but ``remove`` rows of each group: of right ones those of the smallest reward ``by``, a mean of the scores of
    steps, go first, of wrong ones those of the largest, so right and wrong rows are as many as possible (PROF,
    arXiv:2509.03403; 4 of 8). Statistics are of what is left.

    round((P - N + remove) / 2) right rows go, P and N the numbers of both, within 0, ``remove`` and what there is: of 6
    and 2, of 5 and 3, of 3 and 5 with 4: 4, 3 and 1. What all steps of the batch have in common cancels.
    """
    process = raw[:, list(names).index(by)].nan_to_num(0.0)
    good, bad = keep & (values >= right), keep & (values < right)
    number_good, number_bad = (groups.group_count(key, side) for side in (good, bad))
    count = torch.full_like(number_good, remove)
    from_good = torch.round((number_good - number_bad + count) / 2)
    from_good = torch.minimum(from_good.clamp(min=0), torch.minimum(count, number_good))
    from_bad = torch.minimum(count - from_good, number_bad)
    gone = good & (groups.group_rank(process, key, good) < from_good)
    return keep & ~(gone | (bad & (groups.group_rank(-process, key, bad) < from_bad)))


@block(BEFORE, level="group")
def first(key: Key, keep: Rows, *, count: Annotated[int, COUNT]) -> Rows:
    """The first ``count`` rows of each group. The others have only voted (``votes``): 16 of 32 are trained in TTRV
    (arXiv:2510.06783)."""
    return groups.group_rank(torch.arange(key.numel(), device=key.device).double(), key, keep) < count


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


def most_varied(values: Values, key: Key, count: int) -> Int[Tensor, "_"]:
    """Places of the rows that ``max_variance`` selects; one that is NaN is worth the mean of its group, so it is
    the last to be chosen."""
    known = ~values.isnan()
    values = torch.where(known, values, groups.group_mean(values.nan_to_num(), key, known))
    return max_variance(values, key, torch.ones_like(known), count=count).nonzero()[:, 0]


@block(AFTER, level="group")
def drop_zero_spread(values: Values, key: Key, stat: Rows, least: float = 0.0) -> Rows:
    """Groups whose rewards are not all equal (DAPO's filter, arXiv:2503.14476): the others have no gradient.

    Largest and smallest reward must differ by more than ``least``, which excludes differences of floating-point noise.
    """
    return groups.group_max(values, key, stat) + groups.group_max(-values, key, stat) > least


@block(AFTER, level="group")
def drop_low_std(values: Values, key: Key, stat: Rows, share: Annotated[float, within("[0, inf)")] = 0.5) -> Rows:
    """Groups whose std of rewards is at least ``share`` of the mean of all groups' (RLPR, arXiv:2506.18254; .5 for
    Qwen, .9 for Llama, 1 for Gemma). Stds of .09 and .31: the first is dropped at .5, as the mean is .2.

    The paper compares with a moving average over steps (decay .99), here with the batch's own.
    """
    std = groups.group_std(values, key, stat)
    first = groups.group_first(key, stat)
    return std >= share * groups.group_mean(std, torch.zeros_like(key), first)


@block(AFTER, level="group")
def drop_decided(values: Values, key: Key, stat: Rows, most: Annotated[float, within("[0, inf)")] = 0.6) -> Rows:
    """Groups whose mean reward is within +-``most`` (BRPO of Writing-Zero, arXiv:2506.00103; .6): of 16 wins and losses
    9 of one sign more are kept (.56), 11 not (.69)."""
    return groups.group_mean(values, key, stat).abs() <= most


@block(AFTER, level="group")
def keep_groups(
    values: Values,
    key: Key,
    stat: Rows,
    *,
    count: Annotated[int, COUNT],
    by: Annotated[str, one_of("variance", "middle")] = "variance",
) -> Rows:
    """The ``count`` groups of the batch whose rewards vary most, or whose mean is nearest to the ``middle`` of the
    smallest and the largest reward of the batch: with more prompts per step than are trained, the round is oversampled.

    Means 1, .5, .25, 0 of rewards 0 and 1: with a count of 2 the second and the third, by either. Ties by number."""
    first, mean = groups.group_first(key, stat), groups.group_mean(values, key, stat)
    if by == "variance":
        loss = -groups.group_std(values, key, stat, ddof=0)
    else:
        loss = (mean - (values[stat].max() + values[stat].min()) / 2).abs() if bool(stat.any()) else mean
    _, index = torch.unique(key, return_inverse=True)
    batch = torch.zeros_like(key)
    kept = first & (groups.group_rank(loss, batch, first) < count)
    return torch.isin(index, index[kept])


@block(AFTER, level="group")
def common_calls(
    key: Key,
    keep: Rows,
    decision_mask: Bool[Tensor, "B T"],
    turn: Int[Tensor, "B T"],
    call: Int[Tensor, "B T"],
) -> Bool[Tensor, "B T"]:
    """Leave out calls of a program that not all remaining samples of the group make: the k-th of a module is trained if
    none asks it fewer than k times. mmGRPO's default, ``truncate`` (arXiv:2508.04660)."""
    makes_call = by_turns(decision_mask.long(), decision_mask, turn) > 0
    rows = makes_call & keep[:, None]
    same = same_state(key, decision_mask, turn, call)
    makers = torch.zeros(makes_call.shape, dtype=torch.double)
    makers[rows] = groups.group_count(same[rows], torch.ones_like(same[rows], dtype=torch.bool))
    everywhere = makers == groups.group_count(key, keep)[:, None]
    return of_turns((everywhere & rows).double(), decision_mask, turn) > 0


@block(AFTER)
def drop_truncated(truncated: Shaped[Tensor, "B"]) -> Rows:
    """Rows that ended before the length limit (DAPO's overlong filtering, arXiv:2503.14476): ``truncated`` is 0."""
    return truncated == 0


@block(AFTER)
def better(advantages: Values) -> Rows:
    """Rows of positive advantage (A-LoL, arXiv:2305.14718: answers with more reward than their prompt's baseline)."""
    return advantages > 0


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
    members: Rewards = (),
) -> Rows:
    """The rows of each group that no other dominates in all rewards (Parrot, arXiv:2401.05675), and with ``fronts``
    those of further fronts.

    (.9, .1), (.5, .5), (.4, .4), (.1, .9) leave the rows 1, 2 and 4. Rewards of negative weight are to be small, those
    of weight 0 take no part. With one reward only the best rows are left; with many hardly any row is dominated.
    ``members`` names the rewards instead, whatever their weights, all to be large.
    """
    used = torch.tensor([name in members for name in names]) if members else weights != 0
    signs = torch.ones_like(weights) if members else weights.sign()
    return pareto_fronts(streams[:, used] * signs[used], key, keep) < fronts


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


@block(AFTER, level="group", requires={"tree": {}, "positions": {}, "later_steps": {}})
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
    # A parent of its own per row, so the first decision of a group's trees is not taken for a split.
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
