"""Objectives that regress log-ratios on rewards, within a group and without a ratio clip.

All of them are means of (d_i - d_j)^2 over the pairs of a group, where the residual d of a row is the
reward that its log-ratios imply minus its reward. Pairs cancel what the group has in common, so that
the target is the row's advantage, centred or not.

Rows without a trained decision are not members of their group. L = sum_t (log_probs - old_log_probs) of a
row is over all its decisions (``decision_mask``).
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.ranges import COUNT, POSITIVE, UPPER_BOUND
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, Loss, at_decisions, peers, row_advantage, row_sum, unclipped


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
