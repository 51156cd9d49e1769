"""Objectives of whole groups other than preferences: discriminative ones, the expected reward of a list, and two that
another network guides.

Discriminative objectives: positive samples of a group are scored above negative ones, whatever their fractions.

Positives are members with advantage > 0, negatives the other members; a group that lacks either has
loss 0. Rows without a trained decision are not members. Groups count equally under ``per_sample``
weights, however hard their prompt: the motivation of DisCO (2505.12366). They are combined with the
``kl_hinge`` term, which keeps the policy near the one that sampled.

The expected reward over a list of completions, with probabilities renormalized over the list.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.ranges import COUNT, FRACTION, POSITIVE, POSITIVE_FRACTION, UPPER_BOUND, one_of
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
from mmgrpo.objectives.surrogates import clipped_surrogate


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
    # Finite in place of -inf, so an empty set has a number with a gradient that the caller can discard.
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
    share = decision_mask.sum(1) / length
    brevity = (1 - share).to(values.dtype) / lam
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


@block(OBJECTIVES, level="group", requires={"beam": {}})
def n_best(
    log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
) -> Loss:
    """The expected advantage of a group under its members' renormalized probabilities: -sum_i P_i A_i.

    P = softmax over the group of the sums of log-probs, so the gradient is -sum_i P_i (A_i - E[A]) grad log p_i,
    whatever baseline the advantages have. For groups from a beam search and minus the number of word errors as reward
    it is the N-best form of minimum word error rate training (1712.01818, eq. 6). Groups count equally under
    ``per_sample`` weights.
    """
    totals = row_sum(log_probs, decision_mask)
    expected = weighted_mean(row_advantage(advantages, decision_mask), peers(key, loss_mask.any(1)), totals)
    return unclipped(at_decisions(-expected, loss_mask))


@block(OBJECTIVES, level="group")
def token_rewards(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    reference_log_probs: Float[Tensor, "B T"],
    guide_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    guide: str = "teacher",
    beta: Annotated[float, POSITIVE] = 0.05,
    bound: Annotated[float, UPPER_BOUND] = 0.05,
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
) -> Loss:
    """``ppo`` with A plus the token rewards that are still to come, sum_{l >= t} r_l minus its mean over the group's
    decisions, r = beta (log pi_guide - log pi_ref) within +-``bound``: RTO (2404.18922; .05 and .05), whose guide is
    the same model after DPO.

    Log-ratios .4, -3, 1: r = .02, -.05, .05 and sums .02, 0, .05. The mean over the group stands where the paper has a
    value network. A guide that equals the reference leaves ``ppo``.
    """
    dense = (
        torch.where(decision_mask, beta * (guide_log_probs - reference_log_probs), 0.0).detach().clamp(-bound, bound)
    )
    to_come = dense.flip(1).cumsum(1).flip(1)
    together = peers(key, loss_mask.any(1)).to(dense.dtype)
    sums, counts = row_sum(to_come, decision_mask), decision_mask.sum(1).to(dense.dtype)
    mean = (together @ sums) / (together @ counts).clamp_min(1)
    return clipped_surrogate(log_probs - old_log_probs, advantages + to_come - mean[:, None], low, high)


@block(OBJECTIVES, level="group")
def visual_distillation(
    log_probs: Float[Tensor, "B T"],
    teacher_log_probs: Float[Tensor, "B T"],
    changed_teacher_log_probs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    change: str = "pixelated(ratio=0.1)",
    top: Annotated[float, POSITIVE_FRACTION] = 0.2,
    share: Annotated[float, FRACTION] = 0.5,
    tau: Annotated[float, POSITIVE] = 1.0,
) -> Loss:
    """w (log pi - log pi_teacher)^2 / 2 on the policy's own samples, of the gradient of KL(policy||teacher), with more
    weight where the teacher sees something. VA-OPD (2605.21924); rewards have no effect.

    a_t = max(log pi_teacher(y_t | image) - log pi_teacher(y_t | changed image), 0). Of a prompt's K samples each has
    the softmax of its mean a, standardized among them (population), over ``tau``; of that its ceil(top T) tokens of
    largest a have ``share`` together and the others the rest. w is that weight times K T, so it is 1 throughout
    where all samples are alike and the share is that of the tokens. Means of a of 1 and 0, with tau 1: .881 and .119.
    Ties go to the first. By a re-implementation, as the authors' code was not found.
    """
    advantage = torch.where(decision_mask, teacher_log_probs - changed_teacher_log_probs, 0.0).detach().clamp_min(0)
    members = loss_mask.any(1)
    same = peers(key, members)
    among = same.to(advantage.dtype)
    number = among.sum(1).clamp_min(1)
    mean_advantage = row_mean(advantage, decision_mask)
    mean = (among @ mean_advantage) / number
    std = ((among @ mean_advantage.square()) / number - mean.square()).clamp_min(0).sqrt()
    standard = torch.where(std > 1e-8, (mean_advantage - mean) / std.clamp_min(1e-8), 0.0)
    largest = torch.where(same, standard[None], -torch.inf).amax(1).nan_to_num(neginf=0.0)
    exponential = torch.where(same, ((standard[None] - largest[:, None]) / tau).exp(), 0.0)
    of_sample = ((standard - largest) / tau).exp() / exponential.sum(1).clamp_min(1e-12) * number

    length = decision_mask.sum(1)
    count = (top * length - 1e-6).ceil().clamp_min(1)  # .3 of 50, in fp32 15.000001, is 15
    order = torch.where(decision_mask, advantage, -1.0).sort(dim=1, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    seeing, rest = count / length.clamp_min(1), (length - count) / length.clamp_min(1)
    high = torch.where(rest > 0, share / seeing, 1.0)
    low = torch.where(rest > 0, (1 - share) / rest.clamp_min(1e-12), 1.0)
    of_token = torch.where(rank < count[:, None], high[:, None], low[:, None])
    weight = (of_sample[:, None] * of_token).detach()
    return unclipped(torch.where(loss_mask, weight * (log_probs - teacher_log_probs).square() / 2, 0.0))
