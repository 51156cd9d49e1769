"""Mismatch corrections: detached factors for samples of another engine, or in another precision, than the trainer's.

Throughout, w = exp(old_log_probs - sampler_log_probs): the probability of the decision under the trainer's
old policy over that under the sampler. The factor multiplies the objective of a decision and not its terms,
so that a KL still acts on a decision whose factor is 0, as in DeepSeek-V3.2 (2512.02556), TRL and verl.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.config.ranges import UPPER_BOUND
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import MISMATCH, exp_ratio, row_mean


@block(MISMATCH)
def none(old_log_probs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """One everywhere: no correction."""
    return torch.ones_like(old_log_probs)


@block(MISMATCH)
def tis(
    old_log_probs: Float[Tensor, "*shape"],
    sampler_log_probs: Float[Tensor, "*shape"],
    cap: Annotated[float, UPPER_BOUND] = 2.0,
) -> Float[Tensor, "*shape"]:
    """Truncated importance sampling: min(w, cap). Yao et al. 2025; ``cap`` infinite is the plain weight."""
    return exp_ratio(old_log_probs - sampler_log_probs).clamp(max=cap).detach()


@block(MISMATCH)
def mis(
    old_log_probs: Float[Tensor, "*shape"],
    sampler_log_probs: Float[Tensor, "*shape"],
    low: float = 0.5,
    high: Annotated[float, UPPER_BOUND] = 2.0,
) -> Float[Tensor, "*shape"]:
    """Masked importance sampling: w where it lies in [low, high], else 0. With high 5 it is IcePop."""
    weight = exp_ratio(old_log_probs - sampler_log_probs).detach()
    return weight.masked_fill((weight < low) | (weight > high), 0.0)


@block(MISMATCH, level="row")
def sequence_mask(
    old_log_probs: Float[Tensor, "B T"],
    sampler_log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    low: float = 0.5,
    high: Annotated[float, UPPER_BOUND] = 2.0,
) -> Float[Tensor, "B T"]:
    """w in rows whose geometric mean of w lies in [low, high], 0 in the others.

    The "seq-mask-tis" of OpenRLHF and NeMo-RL: the mask is per row, the weight per decision.
    """
    gap = old_log_probs - sampler_log_probs
    mean = row_mean(gap, decision_mask)
    inside = (mean >= (math.log(low) if low > 0 else -math.inf)) & (mean <= math.log(high))
    return torch.where(decision_mask & inside[:, None], exp_ratio(gap), 0.0).detach()


@block(MISMATCH, level="row")
def off_policy_mask(
    log_probs: Float[Tensor, "B T"],
    sampler_log_probs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    *,
    delta: Annotated[float, UPPER_BOUND],
) -> Float[Tensor, "B T"]:
    """0 where A < 0 in a row that is far off policy, else 1.

    Far off policy: mean_t (sampler_log_probs - log_probs) > delta, in nats per decision. Off-policy sequence masking
    of DeepSeek-V3.2 (2512.02556), which does not state delta; TRL proposes 0.5. It changes with every update, so that
    it is computed from the present scores, of whole rows.
    """
    far = row_mean(sampler_log_probs - log_probs.detach(), decision_mask) > delta
    return torch.where(far[:, None] & (advantages < 0), 0.0, 1.0).to(log_probs.dtype)
