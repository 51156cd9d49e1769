"""Objectives that tell good samples of a group from bad ones, whatever the share of each.

Positives are members with advantage > 0, negatives the other members; a group that lacks either has
loss 0. Rows without a trained decision are no members. Groups count equally under ``per_sample``
weights, however hard their prompt: that is the point of DisCO (2505.12366). Pair these with the
``kl_hinge`` term, which keeps the policy near the one that sampled.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.objectives.base import Loss, at_decisions, exp_ratio, peers, row_advantage, row_mean, unclipped


def row_score(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    score: str,
) -> Float[Tensor, " B"]:
    """How much the policy likes each row: its mean log-prob ("log") or its mean ratio ("ratio")."""
    if score == "log":
        return row_mean(log_probs, decision_mask)
    if score == "ratio":
        return row_mean(exp_ratio(log_probs - old_log_probs), decision_mask)
    raise ValueError(f"there is no score '{score}'; known are 'log' (mean log-prob) and 'ratio' (mean ratio)")


def share_mean(
    values: Float[Tensor, " B"], among: Bool[Tensor, "B B"], log_share: Float[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """For each row: the mean of values over ``among``, with shares proportional to exp(log_share)."""
    lowest = torch.finfo(values.dtype).min
    return log_share.expand_as(among).masked_fill(~among, lowest).softmax(1) @ values


def soft_mean(values: Float[Tensor, " B"], among: Bool[Tensor, "B B"], tau: float) -> Float[Tensor, " B"]:
    """For each row: tau log mean exp(values / tau) over ``among``; the maximum of them as tau shrinks."""
    # Finite, so that an empty set gives a number whose gradient the caller can drop.
    lowest = torch.finfo(values.dtype).min
    scaled = (values / tau).expand_as(among).masked_fill(~among, lowest)
    return tau * (scaled.logsumexp(1) - among.sum(1).clamp_min(1).to(values.dtype).log())


def disco(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    tau: float = 10.0,
    score: str = "log",
) -> Loss:
    """Raise positives over the hardest negatives: -(mean s+ - tau log mean exp(s- / tau)).

    s is the row's mean log-prob (``score="log"``, tau 10) or mean ratio (``score="ratio"``, tau 1).
    DisCO (2505.12366), its L-ratio and log-L scores.
    """
    values = row_score(log_probs, old_log_probs, decision_mask, score)
    positive, negative = _sides(advantages, loss_mask, decision_mask, key)
    gap = share_mean(values, positive, torch.zeros_like(values)) - soft_mean(values, negative, tau)
    return _contrast(gap, positive, negative, loss_mask)


def disco_basic(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    score: str = "log",
) -> Loss:
    """Raise positives over the average negative: -(mean s+ - mean s-).

    DisCO-b (2505.12366): ``disco`` for tau to infinity.
    """
    values = row_score(log_probs, old_log_probs, decision_mask, score)
    positive, negative = _sides(advantages, loss_mask, decision_mask, key)
    equal = torch.zeros_like(values)
    gap = share_mean(values, positive, equal) - share_mean(values, negative, equal)
    return _contrast(gap, positive, negative, loss_mask)


def drpo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
    *,
    length: int,
    lam: float = 0.1,
    tau: float = 10.0,
    score: str = "log",
) -> Loss:
    """``disco`` that prefers short positives: a long right answer counts less, never as wrong.

    Positives have shares proportional to exp((1 - T / length) / lam), T their number of decisions
    and ``length`` the longest allowed. DRPO (2510.04474); lam to infinity is ``disco``.
    """
    values = row_score(log_probs, old_log_probs, decision_mask, score)
    positive, negative = _sides(advantages, loss_mask, decision_mask, key)
    brevity = (1 - decision_mask.sum(1) / length).to(values.dtype) / lam
    gap = share_mean(values, positive, brevity) - soft_mean(values, negative, tau)
    return _contrast(gap, positive, negative, loss_mask)


def _sides(
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    key: Int[Tensor, " B"],
) -> tuple[Bool[Tensor, "B B"], Bool[Tensor, "B B"]]:
    """[b, j]: row j is a positive, a negative of row b's group."""
    members, good = loss_mask.any(1), row_advantage(advantages, decision_mask) > 0
    return peers(key, members & good), peers(key, members & ~good)


def _contrast(
    gap: Float[Tensor, " B"],
    positive: Bool[Tensor, "B B"],
    negative: Bool[Tensor, "B B"],
    loss_mask: Bool[Tensor, "B T"],
) -> Loss:
    """The negated gap at every trained decision of groups that have both sides."""
    mixed = positive.any(1) & negative.any(1)
    return unclipped(at_decisions(torch.where(mixed, -gap, 0.0), loss_mask))
