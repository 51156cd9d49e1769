"""Credit assignment: from a sample's advantage [B] to those of its decisions [B, T].

Rows that share a decision have the same ``node`` there, and these numbers alone define a tree. Decisions of
one depth of a tree are at one position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.config.ranges import (
    ANY_NUMBER,
    COUNT_OR_ZERO,
    DDOF,
    FRACTION,
    POSITIVE,
    POSITIVE_FRACTION,
    UPPER_BOUND,
    one_of,
    within,
)
from mmgrpo.config.registry import Reward, Rewards, block, table_of

CREDITS = table_of("credit")


AT_LEAST_ONE = within("[1, inf)")
OVER = one_of("position", "group", "batch")
"""Which decisions are compared with each other."""
MARKS, SHARES = "marks", "shares"
"""Fields of decisions with what a judge says of each (``mmgrpo/scoring/remarks.py``)."""
REMARKED = frozenset({MARKS, SHARES})
Matrix: TypeAlias = Float[Tensor, "B T"]
Node: TypeAlias = Int[Tensor, "B T"]
Mask: TypeAlias = Bool[Tensor, "B T"]


def mean_over_sharing_rows(matrix: Matrix, keep: Rows, node: Node, decision_mask: Mask) -> Matrix:
    """At every decision, the mean over the rows of ``keep`` that share it; 0 where there is none."""
    entries = decision_mask & keep[:, None]
    if not has_shared_decisions(node, decision_mask):
        return torch.where(entries, matrix, 0.0)
    means = torch.zeros_like(matrix)
    means[decision_mask] = groups.group_mean(matrix[decision_mask], node[decision_mask], entries[decision_mask])
    return means


def has_shared_decisions(node: Node, decision_mask: Mask) -> bool:
    """True if any two rows share a decision."""
    numbers = node[decision_mask].sort().values
    return bool((numbers[1:] == numbers[:-1]).any())


@block(CREDITS, level="group")
def broadcast(advantages: Values, keep: Rows, node: Node, decision_mask: Mask) -> Matrix:
    """Every decision has its row's advantage; a shared one has the mean over the rows of ``keep`` that share it."""
    return mean_over_sharing_rows(advantages[:, None].expand(node.shape), keep, node, decision_mask)


@block(CREDITS, level="group", requires={"tree": {}})
def leaf_sum(advantages: Values, keep: Rows, node: Node, decision_mask: Mask) -> Matrix:
    """Every decision has the sum of the advantages of the rows of ``keep`` that share it, as if each trained it:
    Tree-GRPO (arXiv:2509.21240), whose code trains every leaf whole. Unshared it is ``broadcast``. Leaves 1, 0 and -3
    below one turn: -2, where ``broadcast`` has -2/3."""
    entries = decision_mask & keep[:, None]
    sums = torch.where(entries, advantages[:, None].expand(node.shape), 0.0)
    if has_shared_decisions(node, decision_mask):
        sums[decision_mask] = groups.group_sum(sums[decision_mask], node[decision_mask], entries[decision_mask])
    return sums


def fuse(values: Values, node: Key, tail: Values, rows: Rows, beta: float) -> Values:
    """Path-weighted mean of the leaf values below each row's node at one position, for every row.

    sum_l w_l r_l with w_l proportional to exp(beta * log-prob of the path from the node to leaf l).
    """
    logits = beta * tail
    weight = torch.exp(logits - groups.group_max(logits, node, rows))  # the largest is 1, and their sum no less
    return groups.group_sum(weight * values, node, rows) / groups.group_sum(weight, node, rows).clamp(min=1)


def tails(log_probs: Matrix, decision_mask: Mask) -> Matrix:
    """At every position, the sum of the row's log-probs at all later positions."""
    terms = torch.where(decision_mask, log_probs, 0.0)
    return terms.flip(1).cumsum(1).flip(1) - terms


@block(CREDITS, level="group", requires={"tree": {}, "positions": {}})
def tree_depth(
    advantages: Values,
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    log_probs: Matrix,
    beta: float = 1.0,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
) -> Matrix:
    """Standardize fused leaf values over the distinct nodes of each depth (BranchGRPO, arXiv:2509.06040).

    v(n) is the path-weighted mean of the leaves below n (``fuse``; with beta 0 their plain mean);
    A(n) = (v(n) - mean) / (std + eps) over the nodes of the group at that position, each counted once;
    0 where there is only one. Affine maps of the leaf values cancel, so baseline and scale should be ``none``.
    """
    tail = tails(log_probs, decision_mask)
    credit = torch.zeros_like(tail)
    for t in range(node.shape[1]):
        rows = decision_mask[:, t] & stat
        value = fuse(advantages, node[:, t], tail[:, t], rows, beta)
        first = groups.group_first(node[:, t], rows)  # one row per node, so wide subtrees do not count more
        std = groups.group_std(value, key, first, ddof)
        score = (value - groups.group_mean(value, key, first)) / (std + eps)
        credit[:, t] = torch.where(rows & (std > 0), score, 0.0)
    return credit


@block(CREDITS, level="group", requires={"tree": {}, "positions": {}})
def tree_softmax(
    advantages: Values,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    log_probs: Matrix,
    beta: float = 1.0,
) -> Matrix:
    """A(edge) = sum over its child edges e of softmax(beta * log_prob(e)) * A(e) (TreeGRPO for flow models,
    ICLR 2026). The last edge of a sample has the sample's advantage.
    """
    credit = torch.zeros_like(log_probs)
    # Of each row's child edge, the one after position t: its advantage, its logit and the number of rows that share it.
    value, logit, multiplicity = advantages, torch.zeros_like(advantages), torch.ones_like(advantages)
    for t in reversed(range(node.shape[1])):
        rows = decision_mask[:, t] & stat
        # A child edge that m rows share occurs m times among the rows of its parent: each has 1/m of its weight.
        parent = fuse(value, node[:, t], logit - multiplicity.log(), rows, 1.0)
        # Rows without a decision here keep their child edge: the tree skips deterministic steps.
        value = torch.where(rows, parent, value)
        logit = torch.where(rows, beta * log_probs[:, t], logit)
        multiplicity = torch.where(rows, groups.group_count(node[:, t], rows).clamp(min=1), multiplicity)
        credit[:, t] = torch.where(rows, value, 0.0)
    return credit


@block(CREDITS, level="group", requires={"tree": {}})
def tree_siblings(
    advantages: Values, key: Key, stat: Rows, node: Node, decision_mask: Mask, eps: float = 1e-6
) -> Matrix:
    """Compare the children of one node: A = (v - m) / (m (1 - m) + eps) (TreeRPO, arXiv:2506.05183).

    v is the mean of the leaf values below a child, in [0, 1]; m the mean of v over the distinct children.
    An only child has the advantage of its parent. Baseline and scale should be ``none``.
    """
    credit = torch.zeros(node.shape, dtype=advantages.dtype, device=node.device)
    inherited = torch.zeros_like(advantages)
    _, dense = torch.unique(node, return_inverse=True)
    parent = -1 - groups.group_index(key)[0]  # the root of each group; negative, since nodes are numbered from 0
    for t in range(node.shape[1]):
        rows = decision_mask[:, t] & stat
        value = groups.group_mean(advantages, dense[:, t], rows)
        first = groups.group_first(dense[:, t], rows)
        mean = groups.group_mean(value, parent, first)
        only_child = groups.group_count(parent, first) < 2
        score = (value - mean) / (mean * (1 - mean) + eps)
        inherited = torch.where(rows & ~only_child, torch.where(value == mean, 0.0, score), inherited)
        credit[:, t] = torch.where(rows, inherited, 0.0)
        parent = torch.where(rows, dense[:, t], parent)
    return credit


@block(CREDITS, level="group")
def top_entropy(
    advantages: Values,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    entropy: Matrix,
    fraction: Annotated[float, POSITIVE_FRACTION] = 0.2,
) -> Matrix:
    """``broadcast``, and 0 on all but the given fraction of decisions, those of highest entropy in the batch.

    "Beyond the 80/20 rule", arXiv:2506.01939; as there, the others stay in the denominators of the loss.
    """
    ranked = entropy[decision_mask & keep[:, None]].sort(descending=True).values
    if ranked.numel() == 0:
        return broadcast(advantages, keep, node, decision_mask)
    threshold = ranked[max(1, round(fraction * ranked.numel())) - 1]
    return torch.where(entropy >= threshold, broadcast(advantages, keep, node, decision_mask), 0.0)


@block(CREDITS, level="group")
def divergence_weight(
    advantages: Values,
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    divergence: Matrix,
    alpha: Annotated[float, AT_LEAST_ONE] = 1.4,
) -> Matrix:
    """``broadcast``, times a weight from 1 to ``alpha`` where the members of a group differ in what they say next.

    w = 1 + (alpha - 1) (D - min D) / (max D - min D + 1e-8) over the positions of the group, D the divergence of its
    members from their mean at that position (``policies.divergence``). TW-GRPO (arXiv:2505.24718), as in its released
    code; positions are compared by their number, whatever was said before. A reference answer has weight 1.
    """
    entries = decision_mask & stat[:, None]
    least = -groups.group_max(torch.where(entries, -divergence, -torch.inf).amax(1), key, stat)[:, None]
    most = groups.group_max(torch.where(entries, divergence, -torch.inf).amax(1), key, stat)[:, None]
    share = (divergence - least) / (most - least + 1e-8)
    weight = torch.where(entries, 1 + (alpha - 1) * share, 1.0)
    return weight * broadcast(advantages, keep, node, decision_mask)


@block(CREDITS)
def temporal(
    advantages: Values, keep: Rows, node: Node, decision_mask: Mask, lam: Annotated[float, FRACTION] = 0.3
) -> Matrix:
    """``broadcast``, times 1 + lam (2 t / (L - 1) - 1)^2, t the place among the row's L decisions: the first and the
    last count more than the middle (temporal advantage shaping of AVATAR, arXiv:2508.03100). The weights of 5 decisions
    are 1.3, 1.075, 1, 1.075, 1.3, so the mean rises by 15 %; that of a single decision, where the formula is
    0 / 0, is taken as 1."""
    place, last = decision_mask.cumsum(1) - 1, decision_mask.sum(1, keepdim=True) - 1
    weight = torch.where(last > 0, 1 + lam * (2 * place / last.clamp(min=1) - 1).square(), 1.0)
    return weight * broadcast(advantages, keep, node, decision_mask)


@block(CREDITS, level="group")
def denoising_discount(
    advantages: Values, keep: Rows, node: Node, decision_mask: Mask, gamma: Annotated[float, FRACTION] = 0.99
) -> Matrix:
    """``broadcast``, times gamma for every decision of the row that is still to come: early steps, nearest to the
    noise, count less (DPPO, arXiv:2409.00588, gamma_denoising of its code)."""
    later = decision_mask.flip(1).cumsum(1).flip(1) - 1
    return broadcast(advantages, keep, node, decision_mask) * torch.where(decision_mask, gamma**later, 0.0)


def returns(step_rewards: Matrix, decision_mask: Mask, gamma: float) -> Matrix:
    """Discounted sums over this and later decisions of the row, G_t = r_t + gamma G_(t+1); 0 where there is none."""
    after, sums = torch.zeros_like(step_rewards[:, 0]), torch.zeros_like(step_rewards)
    for t in reversed(range(step_rewards.shape[1])):
        here = decision_mask[:, t]
        after = torch.where(here, step_rewards[:, t] + gamma * after, after)
        sums[:, t] = torch.where(here, after, 0.0)
    return sums


def standardize(
    matrix: Matrix,
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    over: str,
    ddof: int,
    eps: float,
    scaled: bool = True,
) -> Matrix:
    """(x - mean) / (std + eps), or centred alone, over the distinct decisions of a group at one ``position``, of a
    whole ``group`` or of the ``batch``; 0 where the std is 0, and outside of the decisions and of ``stat``."""
    index, _ = groups.group_index(key)
    position = torch.arange(node.shape[1], device=node.device)
    compared = {"position": index[:, None] * node.shape[1] + position, "group": index[:, None], "batch": 0 * position}
    return standardize_among(matrix, compared[over].expand(node.shape), stat, node, decision_mask, ddof, eps, scaled)


def standardize_among(
    matrix: Matrix,
    together: Node,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    ddof: int,
    eps: float,
    scaled: bool = True,
) -> Matrix:
    """``standardize``, or centred alone, over the distinct decisions whose number ``together`` is the same."""
    entries = decision_mask & stat[:, None]
    together = together[entries]
    values, everything = matrix[entries], torch.ones_like(node[entries], dtype=torch.bool)
    first = groups.group_first(node[entries], everything)  # a decision that several rows share counts once
    std = groups.group_std(values, together, first, ddof)
    centred = values - groups.group_mean(values, together, first)
    credit = torch.zeros_like(matrix)
    credit[entries] = torch.where(std > 0, centred / (std + eps if scaled else 1.0), 0.0)
    return credit


@block(CREDITS, level="group")
def step_return(
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    gamma: Annotated[float, FRACTION] = 0.0,
    over: Annotated[str, OVER] = "position",
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-4,
    limit: Annotated[float, UPPER_BOUND] = torch.inf,
) -> Matrix:
    """Standardized discounted sums of the rewards of this and later decisions; the row's own reward takes no part.

    G_t = r_t + gamma G_(t+1), then (G - mean) / (std + eps) ``over`` the group's decisions at one position (DenseGRPO,
    arXiv:2601.20218), over all of the group (Stepwise-Flow-GRPO, arXiv:2603.28718) or the batch, within +-limit. A
    decision that rows share has the mean of theirs, and counts once. In texts one position means nothing: take
    group there. Over a group advantages are not centred per step: where all members gain, all are positive.
    """
    sums = mean_over_sharing_rows(returns(step_rewards, decision_mask, gamma), stat, node, decision_mask)
    return standardize(sums, key, stat, node, decision_mask, over, ddof, eps).clamp(-limit, limit)


@block(CREDITS, level="group")
def step_mixture(
    advantages: Values,
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    process: float = 1.0,
    outcome: float = 1.0,
    gamma: Annotated[float, FRACTION] = 0.0,
    over: Annotated[str, OVER] = "position",
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-4,
) -> Matrix:
    """``outcome`` times ``broadcast`` plus ``process`` times ``step_return``: rewards of steps and of samples, each
    normalized by itself (as Euphonium mixes them, without its drift; the paper's weights were not found).
    """
    steps = step_return(key, stat, node, decision_mask, step_rewards, gamma, over, ddof, eps)
    return outcome * broadcast(advantages, keep, node, decision_mask) + process * steps


@block(CREDITS)
def step_gain(step_rewards: Matrix, step_ends: Matrix, decision_mask: Mask) -> Matrix:
    """Every token of a step of a text has what the step gained, V(s_(k+1)) - V(s_k) (VinePPO, arXiv:2410.01679).

    The values are those of completions drawn from there (``sampling.states completed(...)``) and 0 gain is 0 advantage.
    V = .25, .5, .5, .125 and a reward of 1: .25, 0, -.375, .875, whose sum is 1 - .25 whatever the values between.
    """
    return spread_backward(step_rewards, step_ends, decision_mask)


@block(CREDITS, level="group")
def process_reward(
    values: Values,
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    step_values: Matrix,
    step_ends: Matrix,
    *,
    alpha: Annotated[float, ANY_NUMBER],
    clip: Annotated[float, UPPER_BOUND] = torch.inf,
    delta: bool = True,
    outcome: Annotated[float, ANY_NUMBER] = 1.0,
    over: Annotated[str, OVER] = "group",
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
) -> Matrix:
    """Returns of ``alpha`` times the step rewards q_k of a process reward model, and of ``outcome`` times the reward at
    the last step, standardized over the tokens of the group (arXiv:2410.15115; its alpha was not found).

    q_k is the value of the text after step k (``sampling.states judged(by=...)``). Clip: min(q_k - clip, 0), .9 in a
    note on the paper. Delta, after it: d_k = q_k - q_(k+1), d_(K-1) = q_(K-1), d_K = 0, so the return from step k
    is q_k, not a sum that grows with the number of steps. q = .9, .6, .8, .3: clip(.7) 0, -.1, 0, -.4; delta .3, -.2,
    .8, 0; both .1, -.1, 0, 0. The paper's PPO has a value network where this has the group.
    """
    ends = (step_ends > 0) & decision_mask
    quality = torch.where(ends, step_values + step_rewards, 0.0)
    if clip < torch.inf:
        quality = torch.where(ends, (quality - clip).clamp(max=0), 0.0)
    later = ends.flip(1).cumsum(1).flip(1)  # steps from this one to the last
    rewards = quality
    if delta:
        following = _following(quality, ends)
        rewards = torch.where(later > 2, quality - following, torch.where(later == 2, quality, 0.0))
    last = ends & (later == 1)
    whole = torch.where(ends, alpha * rewards, 0.0) + torch.where(last, outcome * values[:, None], 0.0)
    return standardize(returns(whole, decision_mask, 1.0), key, stat, node, decision_mask, over, ddof, eps)


def spread_backward(matrix: Matrix, ends: Matrix, decision_mask: Mask) -> Matrix:
    """Every decision has the entry of the end of its step."""
    spread, here = torch.zeros_like(matrix), torch.zeros_like(matrix[:, 0])
    for t in reversed(range(matrix.shape[1])):
        here = torch.where(ends[:, t] > 0, matrix[:, t], here)
        spread[:, t] = torch.where(decision_mask[:, t], here, 0.0)
    return spread


def _following(matrix: Matrix, ends: Mask) -> Matrix:
    """At each end of a step, the entry of the next one; 0 after the last."""
    following, here = torch.zeros_like(matrix), torch.zeros_like(matrix[:, 0])
    for t in reversed(range(matrix.shape[1])):
        following[:, t] = torch.where(ends[:, t], here, 0.0)
        here = torch.where(ends[:, t], matrix[:, t], here)
    return following


@block(CREDITS, level="group")
def turning_points(
    values: Values,
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    step_values: Matrix,
    eta: float = 1.0,
    balanced: bool = True,
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-4,
    limit: Annotated[float, UPPER_BOUND] = 5.0,
) -> Matrix:
    """Gains of steps, but where the trend turns the rest of the way (TP-GRPO, arXiv:2602.06422), per position.

    With R_0 the reward of the ODE from the first state, R_t that after decision t and R the sample's: d_t = R_t -
    R_(t-1), s_t = sign(d_t) sign(R - R_0). Decision t turns if s_(t-1) < 0 < s_t (the first: 0 < s_1) and sign(d_t) =
    sign(R - R_t); its reward is then eta (R - R_(t-1)), else d_t. The last decision, after which only the ODE follows,
    never turns. ``balanced`` leaves as many positive as negative ones in a group, those of largest size (the set over
    which the paper balances is not known). The advantage clip of 5 is Flow-GRPO's.
    """
    rest = values[:, None] - step_values
    turns = _turns(values, decision_mask & stat[:, None], step_rewards, step_values)
    later = decision_mask.flip(1).cumsum(1).flip(1) > 1  # where rounding could tell R from R_t, they are the same
    turns = turns & later & (step_rewards.sign() == (rest - step_rewards).sign())
    if balanced:
        turns = _balance(turns, rest, key)
    rewards = torch.where(turns, eta * rest, step_rewards)
    shared = mean_over_sharing_rows(rewards, stat, node, decision_mask)
    return standardize(shared, key, stat, node, decision_mask, "position", ddof, eps).clamp(-limit, limit)


@block(CREDITS, level="group")
def turning_points_released(
    values: Values,
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    step_values: Matrix,
    eta: float = 1.0,
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-4,
    limit: Annotated[float, UPPER_BOUND] = 5.0,
) -> Matrix:
    """What the released configurations of TP-GRPO compute: R - R_0 at every decision, plus eta d_t where s_(t-1) < 0 <
    s_t (``turning_points``), without its condition on R - R_t and without its balance; per position.
    """
    turns = _turns(values, decision_mask & stat[:, None], step_rewards, step_values)
    whole = values - _first(step_values, decision_mask)
    rewards = whole[:, None] + torch.where(turns, eta * step_rewards, 0.0)
    shared = mean_over_sharing_rows(rewards, stat, node, decision_mask)
    return standardize(shared, key, stat, node, decision_mask, "position", ddof, eps).clamp(-limit, limit)


@block(CREDITS, level="group")
def process_value(
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    step_rewards: Matrix,
    step_values: Matrix,
    gamma: Annotated[float, FRACTION] = 1.0,
    k: float = 1.0,
    early: Annotated[int, COUNT_OR_ZERO] = 5,
    limit: Annotated[float, UPPER_BOUND] = torch.inf,
) -> Matrix:
    """After VGPO (arXiv:2512.12387): relative values of steps and, in the first ``early`` ones, absolute ones.

    With R_t the reward of the state after decision t: Q_t = sum over later decisions of gamma^(i - t) R_i (equation
    10), w_t = Q_t / mean of Q over the row's decisions (11), and per position A = w (Q - mean) / std + k Q, which
    stays where all members are equal. The second term stands for alpha Q / std with alpha = k std, the form of the
    paper's proof; equation 13 itself, gamma and k were not found: 1 leaves both out. ValueError for negative rewards,
    for which w means nothing.
    """
    after = step_values + step_rewards
    entries = decision_mask & stat[:, None]
    if bool((after[entries] < 0).any()):
        raise ValueError(
            f"algorithm.credit: process_value: got a reward of {float(after[entries].min()):g}, expected none below 0; "
            "choose another credit, or rewards that are not negative"
        )
    value = mean_over_sharing_rows(returns(after, decision_mask, gamma), stat, node, decision_mask)
    mean = torch.where(entries, value, 0.0).sum(1) / entries.sum(1).clamp(min=1)
    weight = torch.where(mean[:, None] > 0, value / mean[:, None], 1.0)
    relative = standardize(value, key, stat, node, decision_mask, "position", 0, 0.0)
    absolute = torch.where(entries & (torch.arange(node.shape[1], device=node.device) < early), k * value, 0.0)
    credit = mean_over_sharing_rows(weight * relative + absolute, stat, node, decision_mask)
    return credit.clamp(-limit, limit)


def _turns(values: Values, entries: Mask, step_rewards: Matrix, step_values: Matrix) -> Mask:
    """Decisions at which the sign of the gain becomes that of the whole change."""
    whole = (values - _first(step_values, entries)).sign()
    turns, falling = torch.zeros_like(entries), torch.ones_like(values, dtype=torch.bool)
    for t in range(step_rewards.shape[1]):
        sign = step_rewards[:, t].sign() * whole
        turns[:, t] = entries[:, t] & falling & (sign > 0)
        falling = torch.where(entries[:, t], sign < 0, falling)
    return turns


def _first(matrix: Matrix, mask: Mask) -> Values:
    """The entry of each row's first decision."""
    return matrix.gather(1, mask.long().argmax(1, keepdim=True))[:, 0]


def _balance(turns: Mask, gain: Matrix, key: Key) -> Mask:
    """As many turns that gain as ones that lose in each group, those of largest size."""
    names = key[:, None].expand(turns.shape)[turns]
    sizes = gain[turns]
    signs = [sizes > 0, sizes < 0]
    most = torch.minimum(*(groups.group_count(names, sign) for sign in signs))
    kept = [sign & (groups.group_rank(-sizes.abs(), names, sign) < most) for sign in signs]
    balanced = torch.zeros_like(turns)
    balanced[turns] = kept[0] | kept[1]
    return balanced


@block(CREDITS, level="group")
def routed(
    streams: Float[Tensor, "B R"],
    weights: Float[Tensor, "R"],
    names: Sequence[str],
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    stream: Matrix,
    video: Rewards = (),
    audio: Rewards = (),
    over: Annotated[str, one_of("group", "batch")] = "group",
    eps: float = 1e-4,
) -> Matrix:
    """A_s = sum over the rewards of stream s of w_k (r_k - mean of the group) / (std + eps): the frames of a clip learn
    from the rewards ``video``, its sound from ``audio``, and both from all others; the routing of OmniNFT
    (arXiv:2605.12480), whose released std is that ``over`` the batch.

    Of a family whose decisions say of which stream they are (``ltx2``). It replaces the advantages, so baseline
    and scale should be ``none``, without a shape. A reward that abstains from a row is left out of its sum.

    Rewards of frames 1, 2, 3, 2 (mean 2, std .7071), of sound .2, .1, .4, .3 (.25, .1118) and of both .5, .7, .6, .2
    (.5, .1871): the first row has -1.4140 of its frames, -.4468 of its sound and 0 of both.
    """
    credit = torch.zeros_like(node, dtype=streams.dtype)
    for place, name in enumerate(names):
        there = ~streams[:, place].isnan()
        values, counted = streams[:, place].nan_to_num(0.0), stat & there
        std = groups.group_std(values, key if over == "group" else torch.zeros_like(key), counted, 0)
        score = (values - groups.group_mean(values, key, counted)) / (std + eps)
        contribution = torch.where(there & (std > 0), weights[place] * score, 0.0)[:, None]
        to_both = name not in video and name not in audio
        heeds = [to_both or name in named for named in (video, audio)]
        credit = credit + contribution * torch.where(stream == 0, float(heeds[0]), float(heeds[1]))
    return mean_over_sharing_rows(credit, keep, node, decision_mask)


@block(CREDITS, level="group")
def looking(
    advantages: Values,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    visual_dependency: Matrix,
    *,
    threshold: Annotated[float, within("[0, inf)")],
    gain: Annotated[float, within("[0, inf)")],
) -> Matrix:
    """``broadcast`` times w_t / mean w of the row, w = 1 + gain where the token's distribution depends on the media by
    more than ``threshold`` nats, else 1: what is seen is credited more, and the sum over a row is kept. PGPO
    (arXiv:2604.01840): gated and of constant mass; its threshold and gain were not found, so they must be given.

    Dependencies [2, 0, 0, 0] with threshold 1 and gain 1: A times [1.6, .8, .8, .8]. Gain 0, or a row without any such
    token, is ``broadcast``.
    """
    weight = torch.where(visual_dependency > threshold, 1.0 + gain, 1.0)
    mean = torch.where(decision_mask, weight, 0.0).sum(1) / decision_mask.sum(1).clamp(min=1)
    return weight / mean.clamp(min=1)[:, None] * broadcast(advantages, keep, node, decision_mask)


@block(CREDITS, level="group")
def position_bonus(
    advantages: Values,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    *,
    gamma: Annotated[float, within("[0, inf)")],
    slope: Annotated[float, UPPER_BOUND],
) -> Matrix:
    """``broadcast`` plus sign(A) gamma sigmoid(slope t / (L - 1)), t the place among the row's L decisions: late ones
    count more (arXiv:2508.02260; both numbers were not found, and the sigmoid is from memory).

    gamma .1, slope 1: .05, .0622 and .0731 at the first, middle and last of three. A = 0 stays 0.
    """
    place, last = decision_mask.cumsum(1) - 1, decision_mask.sum(1, keepdim=True) - 1
    bonus = gamma * torch.sigmoid(slope * place.to(advantages.dtype) / last.clamp(min=1))
    credit = broadcast(advantages, keep, node, decision_mask)
    return credit + credit.sign() * bonus


@block(CREDITS, level="group")
def entropy_advantage(
    advantages: Values,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    entropy: Matrix,
    alpha: Annotated[float, within("[0, inf)")] = 0.4,
    kappa: Annotated[float, AT_LEAST_ONE] = 2.0,
) -> Matrix:
    """``broadcast`` plus min(alpha H_t, |A| / kappa), H_t the entropy of the decision: uncertain ones are reinforced
    more and punished less, and no sign changes ("Reasoning with Exploration", arXiv:2506.14758; .4 and 2).

    A = 1, H = .5: 1.2. A = -.2, H = 1: -.1.
    """
    credit = broadcast(advantages, keep, node, decision_mask)
    return credit + torch.where(decision_mask, torch.minimum(alpha * entropy, credit.abs() / kappa), 0.0)


@block(CREDITS, level="group")
def logit_penalty(
    advantages: Values,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    log_probs: Matrix,
    certainty: Matrix,
    scale: Annotated[float, within("[0, inf)")] = 0.05,
) -> Matrix:
    """``broadcast`` minus ``scale`` times the logit of the drawn token, min-max normalized over the batch's decisions
    (.5 where all are equal); of a positive advantage nothing below 0 is left. UCAS (arXiv:2510.10649; .05): tokens that
    the policy was sure of count less, by shape ``confidence`` and by this.

    The logit is that above the mean of its position, log p + certainty, where the paper has the raw one. Rows of
    advantage 0 are pushed down too: with ``drop_zero_spread`` they are left out.
    """
    entries = decision_mask & stat[:, None]
    logit = log_probs + certainty
    low, high = logit[entries].aminmax() if bool(entries.any()) else logit.new_zeros(2)
    share = torch.where(high > low, (logit - low) / (high - low).clamp(min=1e-12), 0.5)
    credit = broadcast(advantages, keep, node, decision_mask)
    lowered = credit - scale * torch.where(decision_mask & keep[:, None], share, 0.0)
    return torch.where(credit > 0, lowered.clamp(min=0), lowered)


@block(CREDITS, level="group")
def conflict(
    advantages: Values,
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    token_id: Node,
    weight: Annotated[float, AT_LEAST_ONE] = 2.0,
    divide: bool = True,
) -> Matrix:
    """``broadcast``, with tokens that good and bad samples of a group share at their beginning and at their end not
    punished: ``weight`` in samples of A > 0, 0 in those of A < 0 (GTPO, arXiv:2508.03772; 2).

    A token is shared that stands at the same place, counted from the beginning, of a sample with A > 0 and of one with
    A < 0, and so do all before it; likewise from the end, and both factors are multiplied. ``divide``: the row divided
    by its number of shared tokens, as the code does and the paper does not say. Good a b c d, bad a b e d: factors
    2 2 1 2 and 0 0 1 0, both divided by 3.
    """
    factor = torch.ones(decision_mask.shape, dtype=advantages.dtype, device=token_id.device)
    shared = torch.zeros_like(decision_mask)
    lengths = decision_mask.sum(1)
    for name in torch.unique(key[stat]):
        rows = torch.nonzero(stat & (key == name) & (advantages != 0)).flatten()
        texts = [token_id[row][decision_mask[row]].tolist() for row in rows.tolist()]
        good = [bool(advantages[row] > 0) for row in rows.tolist()]
        for backward in (False, True):
            runs = _shared_runs([text[::-1] if backward else text for text in texts], good)
            for row, up, run in zip(rows.tolist(), good, runs, strict=True):
                places = torch.nonzero(decision_mask[row]).flatten()
                places = places[int(lengths[row]) - run :] if backward else places[:run]
                factor[row, places] *= weight if up else 0.0
                shared[row, places] = True
    if divide:
        factor = factor / shared.sum(1, keepdim=True).clamp(min=1)
    return factor * broadcast(advantages, keep, node, decision_mask)


@block(CREDITS, level="group")
def marked_steps(
    values: Values,
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    marks: Matrix,
    *,
    by: Reward,
    whole: float = 2.0,
    process: float = 1.0,
    right: Annotated[float, ANY_NUMBER] = 0.5,
    ddof: Annotated[int, DDOF] = 1,
    eps: float = 1e-4,
) -> Matrix:
    """whole [r >= right] - process [the token is in a step that is marked wrong], standardized over all tokens of the
    group (CAPO, arXiv:2508.02298; its 2 and 1, of which the first is to be the larger).

    ``by`` is the reward whose judge marks steps with -1 (``judge_wrong_steps``). Rewards 2 2 1 1 of a right answer with
    a wrong end, 0 0 and -1 0 of wrong ones: 1.296 twice, .354 twice, -.589 twice, -1.532, -.589.
    """
    rewards = whole * (values >= right).to(values.dtype)[:, None] + process * marks.to(values.dtype).clamp(max=0.0)
    return standardize(rewards, key, stat, node, decision_mask, "group", ddof, eps)


@block(CREDITS, level="group")
def thought_rewards(
    advantages: Values,
    values: Values,
    key: Key,
    stat: Rows,
    keep: Rows,
    node: Node,
    decision_mask: Mask,
    marks: Matrix,
    *,
    by: Reward,
    alpha: Annotated[float, POSITIVE] = 1.0,
    right: Annotated[float, ANY_NUMBER] = 0.5,
) -> Matrix:
    """Of a sample of reward r >= ``right`` A, and A - alpha acc in its marked thoughts, acc the share of such samples
    in the group; of others A in their marked thoughts and 0 elsewhere (TP-GRPO, arXiv:2507.23317, as its propositions
    1 and 2 have it; alpha was not found).

    Neighbouring steps of one mark are a thought, which is charged once, however many steps it has. ``by`` is the reward
    whose judge marks steps with -1 (``judge_own_errors``). A 1 and -1 of a group half right, alpha 1, the second of two
    thoughts marked: 1 .5 and 0 -1. Where no sample is right, what no wrong answer took up is not blamed.
    """
    correct = values >= right
    share = groups.group_mean(correct.to(advantages.dtype), key, stat)
    marked = marks < 0
    blamed = advantages[:, None] - alpha * share[:, None] * marked
    matrix = torch.where(correct[:, None], blamed, advantages[:, None] * marked)
    return mean_over_sharing_rows(matrix, keep, node, decision_mask)


@block(CREDITS, level="group")
def mark_return(
    key: Key,
    stat: Rows,
    node: Node,
    decision_mask: Mask,
    marks: Matrix,
    *,
    by: Reward,
    gamma: Annotated[float, FRACTION] = 1.0,
    over: Annotated[str, one_of("group", "batch")] = "batch",
    ddof: Annotated[int, DDOF] = 0,
    eps: float = 1e-8,
) -> Matrix:
    """Standardized discounted sums of the marks of this and later tokens: the rewards of spans of Text2Grad
    (arXiv:2505.22338) without its value network, which ``mark_gae`` has. ``by`` is the reward whose judge marks
    phrases with 1 and -1 (``judge_phrases``). Marks 0 1 1 0 -1: sums 1 1 0 -1 -1.
    """
    sums = returns(marks, decision_mask, gamma)
    return standardize(sums, key, stat, node, decision_mask, over, ddof, eps)


def _shared_runs(texts: list[list[int]], good: list[bool]) -> list[int]:
    """For each text the number of its first tokens that a good and a bad text both have at their places."""
    runs = []
    sides = [[text for text, up in zip(texts, good, strict=True) if up is side] for side in (True, False)]
    for text in texts:
        run = 0
        while run < len(text) and all(
            any(len(other) > run and other[run] == text[run] for other in side) for side in sides
        ):
            run += 1
        runs.append(run)
    return runs
