"""Aggregations: the weight of each trained decision in the loss of one optimizer step.

They are computed once from the loss mask of the whole gathered step, before it is split into parts, so
that denominators are those of the step and no split of rows or decisions changes the gradient. They are
zero outside ``loss_mask``; a row or prompt without a trained decision is in no denominator.

``per_decision``, ``per_sample``, ``per_prompt`` and ``noise_aware`` sum to one. ``sample_sum`` sums to the
mean number of decisions of a row and ``constant_horizon`` to that over ``length``: both keep the
gradient of a sum over decisions, which a normalization by the realized lengths would bias.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.ranges import POSITIVE
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import AGGREGATIONS


@block(AGGREGATIONS, level="group")
def per_decision(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Mean over all decisions of the step: 1 / sum(loss_mask). DAPO (2503.14476); "token-mean"."""
    return loss_mask / loss_mask.sum().clamp_min(1)


@block(AGGREGATIONS, level="group")
def per_sample(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Mean over rows of the mean over their decisions: 1 / (rows T_b). GRPO (2402.03300)."""
    return sample_sum(loss_mask) / loss_mask.sum(1, keepdim=True).clamp_min(1)


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
def noise_aware(loss_mask: Bool[Tensor, "B T"], std: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """``per_sample`` in proportion to each transition's std, rescaled to sum to one.

    std / mean(std) / (rows T_b) where rows are equally long: transitions with more noise count more, nearly
    deterministic ones less. Noise-aware weighting of TempFlow-GRPO (2508.04324).
    """
    weights = per_sample(loss_mask) * torch.where(loss_mask, std, 0.0)
    return weights / weights.sum().clamp_min(torch.finfo(weights.dtype).tiny)
