"""Objectives that regress log-ratios on rewards, within a group and without a ratio clip.

All of them are means of (d_i - d_j)^2 over the pairs of a group, where the residual d of a row is the
reward that its log-ratios imply minus its reward. Pairs cancel what the group has in common, so that
the target is the row's advantage, centred or not.

Rows without a trained decision are not members of their group. L = sum_t (log_probs - old_log_probs) of a
row is over all its decisions (``decision_mask``).

Discriminative objectives: positive samples of a group are scored above negative ones, whatever their fractions.

Positives are members with advantage > 0, negatives the other members; a group that lacks either has
loss 0. Rows without a trained decision are not members. Groups count equally under ``per_sample``
weights, however hard their prompt: the motivation of DisCO (2505.12366). They are combined with the
``kl_hinge`` term, which keeps the policy near the one that sampled.

Objectives of preferences: the best sample of a group against its worst one.

The expected reward over a list of completions, with probabilities renormalized over the list.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmgrpo.config.ranges import COUNT, POSITIVE, UPPER_BOUND, one_of
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import (
    OBJECTIVES,
    Loss,
    at_decisions,
    exp_ratio,
    peers,
    row_advantage,
    row_mean,
    row_sum,
    unclipped,
)


def pair_mean(
    residuals: Float[Tensor, "versions B"], members: Bool[Tensor, " B"], key: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """For each row: the mean over pairs i < j of its group of max over versions of (d_i - d_j)^2.

    0 where a group has no pair. For one version it is twice the sample variance of d (ddof 1).
    """
    same = peers(key, members)
    each_other = same & ~torch.eye(len(key), dtype=torch.bool, device=key.device)
    gaps = (residuals[:, :, None] - residuals[:, None, :]).square().amax(0)
    total = same.to(gaps.dtype) @ torch.where(each_other, gaps, 0.0).sum(1)
    pairs = same.to(gaps.dtype) @ each_other.sum(1).to(gaps.dtype)
    return total / pairs.clamp_min(1)


@block(OBJECTIVES, level="group")
def regression_pair(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    eta: Annotated[float, POSITIVE] = 1.0,
) -> Loss:
    """Regress differences of rewards: mean over pairs of ((L_i - L_j) / eta - (A_i - A_j))^2.

    REBEL (2404.16767), with all pairs of a group in place of one.
    """
    residual = row_sum(log_probs - old_log_probs, decision_mask) / eta - row_advantage(advantages, decision_mask)
    return unclipped(at_decisions(pair_mean(residual[None], loss_mask.any(1), key), loss_mask))


@block(OBJECTIVES, level="group")
def regression_group(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    beta: Annotated[float, POSITIVE] = 0.1,
) -> Loss:
    """Regress centred implicit rewards on centred rewards over the whole group.

    1/2 sum_i [(beta L_i - mean beta L) - (A_i - mean A)]^2 / (G - 1), a quarter of the pair mean.
    GVPO (2504.19599). At L = 0 the gradient is -beta / (G - 1) sum_i (A_i - mean A) grad sum_t log_probs.
    """
    residual = beta * row_sum(log_probs - old_log_probs, decision_mask) - row_advantage(advantages, decision_mask)
    return unclipped(at_decisions(pair_mean(residual[None], loss_mask.any(1), key) / 4, loss_mask))


@block(OBJECTIVES, level="group")
def regression_standardized(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    eps: float = 1e-4,
) -> Loss:
    """Regress standardized log-ratios on standardized advantages: mean_i [z(L)_i - A_i]^2, both centred.

    z(L) = (L - mean) / (std + eps) over the group, std with ddof 1. Reg-GRPO (DeepVideo-R1,
    2506.07464). On policy all L are 0 and the gradient is that of the group policy gradient times
    2 / eps, so that ``eps`` must fit the magnitude of log-ratios.
    """
    members = loss_mask.any(1)
    same = peers(key, members).to(log_probs.dtype)
    size = same.sum(1)
    divisor = size.clamp_min(1)
    total = row_sum(log_probs - old_log_probs, decision_mask)
    centred = total - same @ total / divisor
    variance = same @ centred.square() / (size - 1).clamp_min(1)
    # Two ``where``, since the root has no derivative at 0, the variance of every group before the first update.
    spread = torch.where(variance > 0, torch.where(variance > 0, variance, 1.0).sqrt(), 0.0)
    residual = centred / (spread + eps) - row_advantage(advantages, decision_mask)
    half_share = (size - 1) / (2 * divisor)
    return unclipped(at_decisions(half_share * pair_mean(residual[None], members, key), loss_mask))


@block(OBJECTIVES, level="group")
def regression_proximal(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    clip: Annotated[float, UPPER_BOUND],
    beta: Annotated[float, POSITIVE] = 10.0,
    dimensions: Annotated[int, COUNT] = 1,
) -> Loss:
    """Regress reward differences on log-ratios to a reference, with a proximal clip of each step.

    mean over pairs of max(g, g'), g = ((R_i - R_j) - (A_i - A_j) / beta)^2, R the sum over steps of
    log_probs - reference_log_probs; g' clips each step's term to within ``clip`` of its value under
    the old log-probs. PRDP (2402.08714), beta 10; the paper does not state ``clip``.

    The paper's log-probs are sums over the latent's ``dimensions``, those of a denoising policy are means: with 1, beta
    has another scale than the paper's. ``clip`` is for the sums.
    """
    change = dimensions * (log_probs - old_log_probs)
    moved = dimensions * row_sum(old_log_probs - reference_log_probs, decision_mask)
    start = moved - row_advantage(advantages, decision_mask) / beta
    residuals = torch.stack([start + row_sum(step, decision_mask) for step in (change, change.clamp(-clip, clip))])
    loss = pair_mean(residuals, loss_mask.any(1), key)
    return Loss(at_decisions(loss, loss_mask), change < -clip, change > clip)


def row_score(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    score: str,
) -> Float[Tensor, " B"]:
    """The score of each row: its mean log-prob ("log") or its mean ratio ("ratio")."""
    if score == "log":
        return row_mean(log_probs, decision_mask)
    if score == "ratio":
        return row_mean(exp_ratio(log_probs - old_log_probs), decision_mask)
    raise ValueError(f"got score '{score}', expected 'log' (mean log-prob) or 'ratio' (mean ratio)")


def weighted_mean(
    values: Float[Tensor, " B"], among: Bool[Tensor, "B B"], log_weight: Float[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """For each row: the mean of values over ``among``, with weights proportional to exp(log_weight)."""
    lowest = torch.finfo(values.dtype).min
    return log_weight.expand_as(among).masked_fill(~among, lowest).softmax(1) @ values


def soft_mean(values: Float[Tensor, " B"], among: Bool[Tensor, "B B"], tau: float) -> Float[Tensor, " B"]:
    """For each row: tau log mean exp(values / tau) over ``among``; their maximum in the limit of tau to 0."""
    # Finite in place of -inf, so that an empty set has a number with a gradient that the caller can discard.
    lowest = torch.finfo(values.dtype).min
    scaled = (values / tau).expand_as(among).masked_fill(~among, lowest)
    return tau * (scaled.logsumexp(1) - among.sum(1).clamp_min(1).to(values.dtype).log())


@block(OBJECTIVES, level="group")
def disco(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    tau: Annotated[float, POSITIVE] = 10.0,
    score: Annotated[str, one_of("log", "ratio")] = "log",
) -> Loss:
    """Score positives above the hardest negatives: -(mean s+ - tau log mean exp(s- / tau)).

    s is the row's mean log-prob (``score="log"``, tau 10) or mean ratio (``score="ratio"``, tau 1).
    DisCO (2505.12366) with its log-L and L-ratio scores.
    """
    values = row_score(log_probs, old_log_probs, decision_mask, score)
    positive, negative = _sides(advantages, loss_mask, decision_mask, key)
    gap = weighted_mean(values, positive, torch.zeros_like(values)) - soft_mean(values, negative, tau)
    return _contrast(gap, positive, negative, loss_mask)


@block(OBJECTIVES, level="group")
def disco_basic(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    score: Annotated[str, one_of("log", "ratio")] = "log",
) -> Loss:
    """Score positives above the average negative: -(mean s+ - mean s-).

    DisCO-b (2505.12366): ``disco`` in the limit of tau to infinity.
    """
    values = row_score(log_probs, old_log_probs, decision_mask, score)
    positive, negative = _sides(advantages, loss_mask, decision_mask, key)
    equal = torch.zeros_like(values)
    gap = weighted_mean(values, positive, equal) - weighted_mean(values, negative, equal)
    return _contrast(gap, positive, negative, loss_mask)


@block(OBJECTIVES, level="group")
def drpo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    length: Annotated[int, COUNT],
    lam: Annotated[float, POSITIVE] = 0.1,
    tau: Annotated[float, POSITIVE] = 10.0,
    score: Annotated[str, one_of("log", "ratio")] = "log",
) -> Loss:
    """``disco`` with more weight on short positives: a long correct answer counts less, but never as a negative.

    Positives have weights proportional to exp((1 - T / length) / lam), T their number of decisions
    and ``length`` the longest allowed. DRPO (2510.04474); ``disco`` in the limit of lam to infinity.
    """
    values = row_score(log_probs, old_log_probs, decision_mask, score)
    positive, negative = _sides(advantages, loss_mask, decision_mask, key)
    taken = decision_mask.sum(1) / length
    brevity = (1 - taken).to(values.dtype) / lam
    gap = weighted_mean(values, positive, brevity) - soft_mean(values, negative, tau)
    return _contrast(gap, positive, negative, loss_mask)


def _sides(
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
) -> tuple[Bool[Tensor, "B B"], Bool[Tensor, "B B"]]:
    """[b, j]: row j is a positive (first) or a negative (second) of row b's group."""
    members, positive = loss_mask.any(1), row_advantage(advantages, decision_mask) > 0
    return peers(key, members & positive), peers(key, members & ~positive)


def _contrast(
    gap: Float[Tensor, " B"],
    positive: Bool[Tensor, "B B"],
    negative: Bool[Tensor, "B B"],
    loss_mask: Bool[Tensor, "B T"],
) -> Loss:
    """The negative gap at every trained decision of groups with both positives and negatives."""
    mixed = positive.any(1) & negative.any(1)
    return unclipped(at_decisions(torch.where(mixed, -gap, 0.0), loss_mask))


@block(OBJECTIVES, level="group")
def codpo(
    log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    coef: Annotated[float, UPPER_BOUND],
    beta: Annotated[float, POSITIVE] = 0.1,
) -> Loss:
    """-[log sigmoid(beta (S_p - S_n)) + coef / T_p log pi(p)], S the sum of log pi / pi_ref: direct preference
    optimization (DPO) between the best sample p of a group that satisfies its constraints and the worst one n that
    violates them, with a likelihood term so that p does not become less likely as well (CODPO of CGPO,
    arXiv:2409.20370, equations 13 to 15).

    Positive advantages mean that the constraints are satisfied: ``demote`` makes it so, with baseline and scale
    ``none``. n is the worst sample of all where none violates them; a group without a satisfying sample, or with one
    sample, has loss 0. With coef 0, beta .1 and S_p - S_n = 2 it is DPO's .598.
    """
    order = row_advantage(advantages, decision_mask)
    same = peers(key, loss_mask.any(1))
    best = torch.where(same, order, -torch.inf).argmax(1)
    worst = torch.where(same, order, torch.inf).argmin(1)
    total = row_sum(log_probs - reference_log_probs, decision_mask)
    gap = beta * (total[best] - total[worst])
    loss = -logsigmoid(gap) - coef * row_mean(log_probs, decision_mask)[best]
    paired = same.any(1) & (order[best] > 0) & (order[best] > order[worst])
    return unclipped(at_decisions(torch.where(paired, loss, 0.0), loss_mask))


@block(OBJECTIVES, level="group")
def n_best(
    log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
) -> Loss:
    """The expected advantage of a group under its members' renormalized probabilities: -sum_i P_i A_i.

    P = softmax over the group of the sums of log-probs, so that the gradient is -sum_i P_i (A_i - E[A]) grad log p_i,
    whatever baseline the advantages have. For groups from a beam search and minus the number of word errors as reward
    it is the N-best form of minimum word error rate training (1712.01818, eq. 6). Groups count equally under
    ``per_sample`` weights.
    """
    totals = row_sum(log_probs, decision_mask)
    expected = weighted_mean(row_advantage(advantages, decision_mask), peers(key, loss_mask.any(1)), totals)
    return unclipped(at_decisions(-expected, loss_mask))
