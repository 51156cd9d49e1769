"""Aggregations: the weight of each trained decision in the loss of one optimizer step.

They are computed once from the loss mask of the whole gathered step, before it is split into parts, so
that denominators are those of the step and no split of rows or decisions changes the gradient. They are
zero outside ``loss_mask``; a row or prompt without a trained decision is in no denominator.

``per_decision``, ``per_sample``, ``per_prompt`` and ``noise_aware`` sum to one, ``rectified`` nearly. ``sample_sum``
sums to the mean number of decisions of a row and ``constant_horizon`` to that over ``length``: both keep the gradient
of a sum over decisions, which a normalization by the realized lengths would bias.

Mismatch corrections: detached factors for samples of another engine, or in another precision, than the trainer's.

Throughout, w = exp(old_log_probs - sampler_log_probs): the probability of the decision under the trainer's
old policy over that under the sampler. The factor multiplies the objective of a decision and not its terms,
so a KL still acts on a decision whose factor is 0, as in DeepSeek-V3.2 (2512.02556), TRL and verl.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.ranges import COUNT_OR_ZERO, POSITIVE, UPPER_BOUND
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import AGGREGATIONS, MISMATCH, exp_ratio, row_mean


@block(AGGREGATIONS, level="group")
def per_decision(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Mean over all decisions of the step: 1 / sum(loss_mask). DAPO (2503.14476); "token-mean"."""
    return loss_mask / loss_mask.sum().clamp_min(1)


@block(AGGREGATIONS, level="group")
def per_sample(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Mean over rows of the mean over their decisions: 1 / (rows T_b). GRPO (2402.03300)."""
    return sample_sum(loss_mask) / loss_mask.sum(1, keepdim=True).clamp_min(1)


@block(AGGREGATIONS, level="group")
def per_turn(loss_mask: Bool[Tensor, "B T"], turn: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Mean over rows of the mean over their turns, or calls, of the mean over the decisions of each: 1 / (rows K_b
    T_bk). AgentFlow's Flow-GRPO (2510.05592); with one turn it is ``per_sample``."""
    number = torch.where(loss_mask, turn, 0)
    width = int(number.max()) + 1 if number.numel() else 1
    counts = torch.zeros(len(turn), width, device=turn.device).scatter_add_(1, number, loss_mask.float())
    turns = (counts > 0).sum(1, keepdim=True)
    return sample_sum(loss_mask) / (turns * counts.gather(1, number)).clamp_min(1)


@block(AGGREGATIONS, level="group")
def sample_sum(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Mean over rows of the sum over their decisions: 1 / rows. REINFORCE; with ``gspo`` it is LUSPO."""
    return loss_mask / loss_mask.any(1).sum().clamp_min(1)


@block(AGGREGATIONS, level="group")
def constant_horizon(loss_mask: Bool[Tensor, "B T"], *, length: Annotated[float, POSITIVE]) -> Float[Tensor, "B T"]:
    """``sample_sum`` over a constant: 1 / (rows length). Dr. GRPO (2503.20783): length is the generation budget."""
    return sample_sum(loss_mask) / length


@block(AGGREGATIONS, level="group")
def per_prompt(loss_mask: Bool[Tensor, "B T"], key: Int[Tensor, " B"]) -> Float[Tensor, "B T"]:
    """Mean over prompts of the mean over all decisions of their group. ScaleRL (2510.13786)."""
    counts = loss_mask.sum(1)
    group = torch.unique(key, return_inverse=True)[1]
    totals = torch.zeros_like(counts).index_add(0, group, counts)
    prompts = (totals > 0).sum().clamp_min(1)
    return loss_mask / (prompts * totals[group].clamp_min(1))[:, None]


@block(AGGREGATIONS, level="group")
def by_category(
    loss_mask: Bool[Tensor, "B T"], key: Int[Tensor, " B"], category_weight: Float[Tensor, " B"]
) -> Float[Tensor, "B T"]:
    """``per_prompt`` times N / N_g alpha_g, the weight of the category g of the prompt (tracker ``worst_group``): the
    sum over categories of alpha_g times the category's mean loss (group robust preference optimization, 2405.20304).
    Equal weights balance the categories; with one of them it is ``per_prompt``."""
    return per_prompt(loss_mask, key) * category_weight[:, None]


@block(AGGREGATIONS, level="group")
def noise_aware(loss_mask: Bool[Tensor, "B T"], std: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``per_sample`` in proportion to each transition's std, rescaled to sum to one.

    std / mean(std) / (rows T_b) where rows are equally long: transitions with more noise count more, nearly
    deterministic ones less. Noise-aware weighting of TempFlow-GRPO (2508.04324).
    """
    weights = per_sample(loss_mask) * torch.where(loss_mask, std, 0.0)
    return weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)


@block(AGGREGATIONS, level="group")
def rectified(
    loss_mask: Bool[Tensor, "B T"], rectifier: Float[Tensor, "B T"], pool: Annotated[int, COUNT_OR_ZERO] = 0
) -> Float[Tensor, "B T"]:
    """``per_sample`` times w / mean w, so every step's gradient has the same scale (Flash-GRPO, 2605.15980).

    w = std / |d mean / d output| of each transition. The mean is over the decisions of the optimizer step, as in the
    released code (there of a micro-batch), or with ``pool`` over the first so many steps of the grid, from which the
    trained ones are drawn, as in UniRL; only that does not depend on the draw. The weights need not sum to one.
    """
    if pool > loss_mask.shape[1]:
        raise ValueError(
            f"algorithm.aggregation: rectified: pool: got {pool}, expected at most the {loss_mask.shape[1]} steps of a "
            "sample (sampling.steps)"
        )
    rows = loss_mask.any(1)
    candidates = rectifier[rows, :pool] if pool else rectifier[loss_mask]
    mean = candidates.mean() if candidates.numel() else rectifier.new_ones(())
    return per_sample(loss_mask) * torch.where(loss_mask, rectifier, 0.0) / mean


@block(MISMATCH)
def none(old_log_probs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """One everywhere: no correction."""
    return torch.ones_like(old_log_probs)


@block(MISMATCH, requires={"sampler": {}})
def tis(
    old_log_probs: Float[Tensor, "*shape"],
    sampler_log_probs: Float[Tensor, "*shape"],
    cap: Annotated[float, UPPER_BOUND] = 2.0,
) -> Float[Tensor, "*shape"]:
    """Truncated importance sampling: min(w, cap). Yao et al. 2025; ``cap`` infinite is the plain weight."""
    return exp_ratio(old_log_probs - sampler_log_probs).clamp(max=cap).detach()


@block(MISMATCH, requires={"sampler": {}})
def mis(
    old_log_probs: Float[Tensor, "*shape"],
    sampler_log_probs: Float[Tensor, "*shape"],
    low: float = 0.5,
    high: Annotated[float, UPPER_BOUND] = 2.0,
) -> Float[Tensor, "*shape"]:
    """Masked importance sampling: w where it lies in [low, high], else 0. With high 5 it is IcePop."""
    weight = exp_ratio(old_log_probs - sampler_log_probs).detach()
    return weight.masked_fill((weight < low) | (weight > high), 0.0)


@block(MISMATCH, level="row", requires={"sampler": {}})
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


@block(MISMATCH, level="row", requires={"sampler": {}})
def tis_beyond(
    old_log_probs: Float[Tensor, "B T"],
    sampler_log_probs: Float[Tensor, "B T"],
    decision_mask: Bool[Tensor, "B T"],
    gap: Annotated[float, POSITIVE] = 0.01,
    cap: Annotated[float, UPPER_BOUND] = 2.0,
) -> Float[Tensor, "B T"]:
    """min(w, cap) in rows whose mean |log w| exceeds ``gap``, 1 in the others: ``tis`` where an engine in another
    precision has drawn another distribution, and no noise of rounding elsewhere.

    Log-probs -1, -2 and -1.3, -1.9 of the sampler differ by .2 on average: w is e^.3 = 1.35 and e^-.1 = .905.
    """
    change = old_log_probs - sampler_log_probs
    beyond = row_mean(change.abs(), decision_mask) > gap
    return torch.where(beyond[:, None], exp_ratio(change).clamp(max=cap), 1.0).detach()


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
    of DeepSeek-V3.2 (2512.02556), which does not state delta; TRL proposes 0.5. It changes with every update, so
    it is computed from the present scores, of whole rows.
    """
    far = row_mean(sampler_log_probs - log_probs.detach(), decision_mask) > delta
    return torch.where(far[:, None] & (advantages < 0), 0.0, 1.0).to(log_probs.dtype)
