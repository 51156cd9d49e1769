"""Objectives of sequence ratios: the unit of importance sampling is the row, not the decision.

A row's ratio is over all its decisions, also those that it does not own or train.
Throughout, l_t = log_probs - old_log_probs at decision t of a row.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE, UPPER_BOUND
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, Loss, exp_ratio, row_mean, row_sum, unclipped
from mmgrpo.objectives.surrogates import clipped, stop


@block(OBJECTIVES, level="row")
def gspo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 3e-4,
    high: Annotated[float, UPPER_BOUND] = 4e-4,
) -> Loss:
    """The clipped surrogate of the length-normalized sequence ratio s = exp(mean_t l_t).

    -min(s A, clip(s, 1 - low, 1 + high) A), the same at every decision of a row. GSPO (2507.18071),
    eqs. 5 and 7. Its clip range is far smaller than PPO's because s is a mean.
    """
    mean = row_mean(log_probs - old_log_probs, decision_mask)[:, None].expand_as(log_probs)
    return clipped(mean, advantages, low, high)


@block(OBJECTIVES, level="row")
def gspo_token(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 3e-4,
    high: Annotated[float, UPPER_BOUND] = 4e-4,
) -> Loss:
    """``gspo`` with a gradient per decision, so that advantages may differ within a row.

    s_t = sg[s] * pi_t / sg[pi_t]: the value is the sequence ratio, the gradient s grad log pi_t.
    GSPO (2507.18071), section 4.3.
    """
    mean = row_mean(log_probs - old_log_probs, decision_mask)[:, None].detach()
    return clipped(mean + (log_probs - log_probs.detach()), advantages, low, high)


@block(OBJECTIVES, level="row")
def gmpo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    clip: Annotated[float, UPPER_BOUND] = 0.4,
) -> Loss:
    """The geometric mean of one-sidedly clipped ratios, robust to the outlier of a single decision.

    -A exp(mean_t l'_t) with l'_t = min(l_t, clip) where A > 0 and max(l_t, -clip) where A < 0.
    GMPO (2507.20673). ``clip`` is on the log-ratio: 0.4 is the range (0.67, 1.49).
    """
    stopped, below, above = stop(log_probs - old_log_probs, advantages, floor=-clip, roof=clip)
    return Loss(-advantages * exp_ratio(row_mean(stopped, decision_mask))[:, None], below, above)


@block(OBJECTIVES, level="row")
def sequence_sum(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 0.2,
    high: Annotated[float, UPPER_BOUND] = 0.2,
) -> Loss:
    """The clipped surrogate of the exact sequence ratio W = exp(sum_t l_t).

    -min(W A, clip(W, 1 - low, 1 + high) A), the same at every decision of a row: the row is one
    action, as in RLOO (2402.14740). The variance of W grows with the length of the row. Under
    ``per_sample`` weights the gradient at W = 1 is that of ``policy_gradient`` under ``sample_sum``.
    """
    total = row_sum(log_probs - old_log_probs, decision_mask)[:, None].expand_as(log_probs)
    return clipped(total, advantages, low, high)


@block(OBJECTIVES, level="row")
def vespo(
    log_probs: Float[Tensor, "B T"],
    old_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    power_positive: float = 2.0,
    rate_positive: Annotated[float, POSITIVE] = 3.0,
    power_negative: float = 3.0,
    rate_negative: Annotated[float, POSITIVE] = 2.0,
) -> Loss:
    """Policy gradient with a smooth, detached weight of the exact sequence ratio W = exp(sum_t l_t).

    -sg[phi(W)] A log_probs, phi(W) = e^rate W^power e^(-rate W); phi(1) = 1, and phi fades on both
    sides. The ``_positive`` pair where A > 0, the ``_negative`` pair elsewhere. VESPO, as in TRL.
    """
    total = row_sum(log_probs - old_log_probs, decision_mask)[:, None]
    positive = advantages > 0
    power = torch.full_like(advantages, power_negative).masked_fill(positive, power_positive)
    rate = torch.full_like(advantages, rate_negative).masked_fill(positive, rate_positive)
    weight = (rate + power * total - rate * exp_ratio(total)).exp().detach()
    return unclipped(-weight * advantages * log_probs)
