"""Credit assignment: from a sample's advantage [B] to those of its decisions [B, T].

Rows that share a decision have the same ``node`` there, and these numbers alone define a tree. Decisions of
one depth of a tree are at one position.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values
from mmgrpo.config.ranges import DDOF, POSITIVE_FRACTION, within
from mmgrpo.config.registry import Block, block

CREDITS: dict[str, Block] = {}


AT_LEAST_ONE = within("[1, inf)")
Matrix: TypeAlias = Float[Tensor, "B T"]
Node: TypeAlias = Int[Tensor, "B T"]
Mask: TypeAlias = Bool[Tensor, "B T"]


def mean_over_sharing_rows(matrix: Matrix, keep: Rows, node: Node, decision_mask: Mask) -> Matrix:
    """At every decision, the mean over the rows of ``keep`` that share it; 0 where there is none."""
    entries = decision_mask & keep[:, None]
    if not any_shared(node, decision_mask):
        return torch.where(entries, matrix, 0.0)
    means = torch.zeros_like(matrix)
    means[decision_mask] = groups.group_mean(matrix[decision_mask], node[decision_mask], entries[decision_mask])
    return means


def any_shared(node: Node, decision_mask: Mask) -> bool:
    """True if any two rows share a decision."""
    numbers = node[decision_mask].sort().values
    return bool((numbers[1:] == numbers[:-1]).any())


@block(CREDITS, level="group")
def broadcast(advantages: Values, keep: Rows, node: Node, decision_mask: Mask) -> Matrix:
    """Every decision has its row's advantage; a shared one has the mean over the rows of ``keep`` that share it."""
    return mean_over_sharing_rows(advantages[:, None].expand(node.shape), keep, node, decision_mask)


def fuse(values: Values, node: Key, tail: Values, rows: Rows, beta: float) -> Values:
    """Path-weighted mean of the leaf values below each row's node at one position, for every row.

    sum_l w_l r_l with w_l proportional to exp(beta * log-prob of the path from the node to leaf l).
    """
    logits = beta * tail
    weight = torch.exp(logits - groups.group_max(logits, node, rows))  # the largest is 1, and their sum no less
    return groups.group_sum(weight * values, node, rows) / groups.group_sum(weight, node, rows).clamp(min=1)


def tails(log_probs: Matrix, decision_mask: Mask) -> Matrix:
    """At every position, the sum of the row's log-probs at all later positions."""
    own = torch.where(decision_mask, log_probs, 0.0)
    return own.flip(1).cumsum(1).flip(1) - own


@block(CREDITS, level="group")
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
        first = groups.group_first(node[:, t], rows)  # one row per node, so that wide subtrees do not count more
        std = groups.group_std(value, key, first, ddof)
        score = (value - groups.group_mean(value, key, first)) / (std + eps)
        credit[:, t] = torch.where(rows & (std > 0), score, 0.0)
    return credit


@block(CREDITS, level="group")
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


@block(CREDITS, level="group")
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


TREES_ONLY = frozenset({"tree_depth", "tree_softmax", "tree_siblings", "parent_top1"})
"""Credits and selectors for samples that share decisions. On others they would compare whatever stands at one position:
tokens by their number in the text, for example."""
