"""Baselines: what is subtracted from a reward. Each function returns one baseline per row, [B].

For r = [1, 0, 0, 1], r - b is [.5, -.5, -.5, .5] with group_mean and [.667, -.667, -.667, .667] with leave_one_out.

What samples are compared with beyond their group: their prompt's greedy output, or a value of the data set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.config.ranges import ANY_NUMBER, FRACTION, POSITIVE, one_of, within
from mmgrpo.config.registry import block, table_of
from mmgrpo.scoring import RewardScores
from mmgrpo.types import REPLAYED, Prompt

BASELINES = table_of("baseline")


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


@block(BASELINES, level="group")
def group_mean_shifted(values: Values, key: Key, stat: Rows, delta: Annotated[float, ANY_NUMBER] = -0.1) -> Values:
    """Mean of the group plus ``delta``: below 0 it learns more from good samples than from bad ones, as an off-policy
    REINFORCE should (AsymRE, arXiv:2506.20520; -.1 in Trinity-RFT). [1, 0, 0, 1] gives A = [.6, -.4, -.4, .6].
    """
    return groups.group_mean(values, key, stat) + delta


@block(BASELINES, level="group")
def group_log_mean_exp(values: Values, key: Key, stat: Rows, tau: Annotated[float, POSITIVE] = 1.0) -> Values:
    """tau log mean exp(r / tau) of the group: OPMD (online policy mirror descent; arXiv:2509.24203 and Trinity-RFT).

    [1, 0, 0, 1] with tau 1: .620. A large tau gives the mean, a small one the largest reward.
    """
    top = groups.group_max(values, key, stat)
    top = torch.where(torch.isfinite(top), top, 0.0)
    return top + tau * groups.group_mean(((values - top) / tau).exp(), key, stat).clamp(min=1e-300).log()


@block(BASELINES)
def static_reference(reference_value: Values) -> Values:
    """The prompt's ``reference_value``: the mean reward of a frozen policy's samples, a column of the data set (PVPO,
    arXiv:2508.21104)."""
    return reference_value


@block(BASELINES)
def tracker(tracker_value: Values) -> Values:
    """The prompt's success rate as the tracker ``beta`` of the ledger had it before the round (SPO, arXiv:2509.13232).
    It needs no group: with data.group_size 1 a round compares samples of different prompts only."""
    return tracker_value


@block(BASELINES, level="group")
def measured(values: Values, measured_value: Values, key: Key, stat: Rows) -> Values:
    """The prompt's mean reward under an earlier policy, as the tracker ``reference_mean`` keeps it (PVPO,
    arXiv:2508.21104); at a prompt's first visit, unless it was measured before (``data.ledger``), the group's mean."""
    return torch.where(measured_value.isnan(), groups.group_mean(values, key, stat), measured_value)


@block(BASELINES, level="group", requires={"replay": {}})
def replayed_by_window(values: Values, window_mean: Values, key: Key, stat: Rows, origin: Int[Tensor, "B"]) -> Values:
    """For rows of earlier rounds (``replay``) the mean of the last rewards of their prompt, as the tracker ``window``
    keeps them, for others the mean of their group (AVATAR, arXiv:2508.03100: the last 20).

    Replayed 1, 0, 1, 0 at a window mean of .25: .75, -.25, .75, -.25, by their std of .577: 1.299, -.433.
    """
    return torch.where(origin == REPLAYED, window_mean, groups.group_mean(values, key, stat))


@block(BASELINES, level="group")
def prefix_value(
    values: Values,
    key: Key,
    stat: Rows,
    prefix_value: Values,
    alpha: Annotated[float, FRACTION] = 0.5,
    how: Annotated[str, one_of("expectation", "optimistic", "pessimistic")] = "expectation",
) -> Values:
    """``alpha`` V of the beginning that a sample was given (``sampling.variants: prefixes``), plus the group's mean of
    what is left: r - alpha V, centred. Tree-OPO (arXiv:2509.09284), whose samples of a group begin differently.

    V is the share of right solutions of the teacher below it, 1 where one was right (``optimistic``), or where none was
    wrong (``pessimistic``). r 0 1 0 1, V .25 .5 .25 1, alpha .5: A = -.375 .5 -.375 .25. alpha 0 is ``group_mean``.
    """
    expected = {
        "expectation": prefix_value,
        "optimistic": (prefix_value > 0).to(values.dtype),
        "pessimistic": (prefix_value >= 1).to(values.dtype),
    }[how]
    return alpha * expected + groups.group_mean(values - alpha * expected, key, stat)


@block(BASELINES, level="group")
def staged(
    values: Values,
    key: Key,
    stat: Rows,
    variant: Values,
    prefix_end: Values,
    prefix_parent: Values,
    delta: Annotated[float, within("[0, 0.5]")] = 0.01,
    right: Annotated[float, ANY_NUMBER] = 0.5,
) -> Values:
    """r - a, a the staged advantages of samples that begin at nodes of a tree (``sampling.variants: prefixes``): the
    nearest to r - mean r whose sum is 0 and whose squares sum to at most their number N, with a_i + delta <= a_j for
    every pair of ``staged_pairs``. Tree-OPO (arXiv:2509.09284), its soft quadratic program; delta .01.

    A node that failed is so below its child that succeeded, and one whose child succeeds below a sibling that fails
    too: what it wrote itself was at fault. r 0 1 0 0, pairs (0, 1) and (0, 2), delta .1: a = -.3 .75 -.2 -.25. Without
    a pair that is violated this is ``group_mean``.
    """
    mean = groups.group_mean(values, key, stat)
    centred = values - mean
    staged = centred.clone()
    for name in torch.unique(key[stat]):
        rows = torch.nonzero(stat & (key == name)).flatten()
        members = [column[rows] for column in (values >= right, variant, prefix_end, prefix_parent)]
        staged[rows] = project_onto_order(centred[rows], staged_pairs(*members), delta)
    return values - staged


def staged_pairs(
    right: Bool[Tensor, "N"], place: Float[Tensor, "N"], end: Float[Tensor, "N"], parent: Float[Tensor, "N"]
) -> list[tuple[int, int]]:
    """Which samples (i, j) of a group are to be ordered, a_i below a_j: i fails and j, at a child of its node,
    succeeds; and i and j fail at siblings, and a sample below i's node succeeds, none below j's."""
    below = (place[None] > place[:, None]) & (place[None] <= end[:, None])
    saved = (below & right).any(1)
    child = (parent[None] == place[:, None]) & ~right[:, None] & right[None]
    sibling = (parent[None] == parent[:, None]) & (place[None] != place[:, None]) & ~right[:, None] & ~right[None]
    return [(i, j) for i, j in torch.nonzero(child | sibling & saved[:, None] & ~saved[None]).tolist()]


def project_onto_order(
    centred: Float[Tensor, "N"], pairs: Sequence[tuple[int, int]], delta: float
) -> Float[Tensor, "N"]:
    """The projection of numbers of sum 0 onto a_i + delta <= a_j for all pairs and sum a^2 <= N, by the algorithm of
    Dykstra (Boyle and Dykstra 1986), whose steps all keep the sum."""
    a, moved = centred.clone(), [centred.new_zeros(len(centred)) for _ in range(len(pairs) + 1)]
    for _ in range(1000 if pairs else 1):
        change = 0.0
        for number, pair in enumerate((*pairs, None)):
            # What a constraint moved last time is given back first: plain projections in turn end at some point that
            # satisfies all of them, these at the nearest one.
            y = a + moved[number]
            a = y.clone()
            if pair is None:
                a = y * min(1.0, math.sqrt(len(y)) / max(float(y.norm()), 1e-300))
            elif (excess := float(y[pair[0]] + delta - y[pair[1]])) > 0:
                a[pair[0]] -= excess / 2
                a[pair[1]] += excess / 2
            change = max(change, float((y - a - moved[number]).abs().max()))
            moved[number] = y - a
        if change < 1e-12:
            break
    return a


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


COMPARISON_FIELDS = frozenset({"greedy_value", "reference_value", "reference_rewards"})
"""Fields of decisions that a round adds to those of the policy, for recipes that need them."""


def reference_values(prompts: Sequence[Prompt]) -> list[float]:
    """``meta.reference_value`` of each prompt, in units of the weighted sum of rewards; an error names one without.

    It is the mean reward of a frozen policy's samples, computed once before the run (PVPO, arXiv:2508.21104), or the
    reward of the data set's own answer (AAPO, arXiv:2505.14264).
    """
    values = []
    for prompt in prompts:
        value = prompt.meta.get("reference_value")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(
                f"prompt '{prompt.id}': got reference_value {value!r}, expected a number, the reward that samples of "
                "this prompt are compared with; add the column reference_value to the data set (e.g. the mean reward "
                "of a frozen policy's samples, see docs/data.md), or choose another baseline or shape"
            )
        values.append(float(value))
    return values


def reference_rewards(prompts: Sequence[Prompt], names: Sequence[str], needed: Set[str]) -> Float[Tensor, "P R M"]:
    """``meta.reference_rewards`` of each prompt: by reward the M rewards of other samples of the same prompt, from a
    policy before training (M = 10 in PAR, arXiv:2502.18770) or of a reference answer (M = 1). NaN for rewards that are
    not needed; an error names a prompt that lacks a needed one, or has not as many as the first prompt.
    """
    rows, count = [], 0
    for prompt in prompts:
        by_reward = prompt.meta.get("reference_rewards")
        columns = []
        for name in names:
            column = by_reward.get(name) if isinstance(by_reward, Mapping) else None
            numbers = column if isinstance(column, list | tuple) and all(map(_is_finite, column)) else []
            count = count or (len(numbers) if name in needed else 0)
            if name in needed and (not numbers or len(numbers) != count):
                raise ValueError(
                    f"prompt '{prompt.id}': got reference_rewards {column!r:.80} for '{name}', expected a list of "
                    f"{count or 'finite'} numbers, the rewards of other samples of this prompt; add the column "
                    f'reference_rewards, {{"{name}": [...]}}, to the data set (see docs/data.md), or choose a '
                    "transform with one reference for all prompts"
                )
            columns.append(numbers if name in needed else [])
        rows.append([column or [math.nan] * count for column in columns])
    return torch.tensor(rows, dtype=torch.float64)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def greedy_values(greedy: RewardScores, group: Int[Tensor, "B"], weights: Float[Tensor, "R"]) -> tuple[Values, Rows]:
    """For each row the weighted reward of its prompt's greedy output, and whether that could be scored: no reward that
    has a weight failed, and one at least did not abstain.

    ``greedy`` has one row per prompt, ``group`` is the index of each row's prompt. ``weights`` may have several times
    the columns of ``greedy``: those of previews, which have no greedy output of their own and share that of the output.
    """
    columns = len(weights) // greedy.values.shape[1]
    counted = weights.cpu() != 0
    valid = ~(greedy.failed.repeat(1, columns) & counted).any(1) & (greedy.valid.repeat(1, columns) & counted).any(1)
    total = greedy.values.repeat(1, columns) @ weights.cpu()
    return total[group].to(weights.device), valid[group]
