"""The value of an objective, and the sums over rows and groups that objectives consist of.

Ratios stay logarithms until the last exponential: Gaussian decisions have clip ranges near 1e-6,
which the log-ratio resolves in fp32 and ``1 + 1e-6`` hardly does, and a ratio that overflows has the
gradient NaN (zero times infinity) even where the clip discards it.

Decisions that several rows share: each is scored once, at its owner.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.registry import table_of

OBJECTIVES = table_of("objective")
"""Functions that return a ``Loss`` to minimize."""
OFF_POLICY_OBJECTIVES = table_of("off_policy")
"""The same for decisions that a data set supplied."""
TERMS = table_of("term")
"""Functions that return a penalty per decision, which is added to the loss."""
AGGREGATIONS = table_of("aggregation")
"""Functions that return the weight of each decision of the whole optimizer step."""
MISMATCH = table_of("mismatch")
"""Functions that return a detached factor of each decision's loss."""

LARGEST_LOG_RATIO = 80.0
"""exp(80) = 5.5e34 is still finite in fp32, and so is its product with any sane advantage."""


class Loss(NamedTuple):
    """A loss per decision, to minimize, and the decisions that are clipped from below or above.

    The update is the gradient of ``sum(weights * values)``. ``low`` and ``high`` are for reporting,
    and False everywhere for an objective without a clip.
    """

    values: Float[Tensor, "*shape"]
    low: Bool[Tensor, "*shape"]
    high: Bool[Tensor, "*shape"]


def unclipped(values: Float[Tensor, "*shape"]) -> Loss:
    """A loss without a clip."""
    nowhere = torch.zeros_like(values, dtype=torch.bool)
    return Loss(values, nowhere, nowhere)


def exp_ratio(log_ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """exp(log_ratio), bounded by e^80 so that value and gradient stay finite."""
    return log_ratio.clamp(max=LARGEST_LOG_RATIO).exp()


def row_sum(values: Float[Tensor, "B T"], decision_mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Sum over the decisions of each row; values outside the mask, NaN included, have no effect."""
    return torch.where(decision_mask, values, 0.0).sum(1)


def row_mean(values: Float[Tensor, "B T"], decision_mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Mean over the decisions of each row; 0 for a row without decisions."""
    return row_sum(values, decision_mask) / decision_mask.sum(1).clamp_min(1)


def row_advantage(advantages: Float[Tensor, "B T"], decision_mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """The advantage of each row, taken from its first decision (it is the same at all of them)."""
    first = decision_mask.int().argmax(1, keepdim=True)
    return advantages.gather(1, first).squeeze(1)


def peers(key: Int[Tensor, " B"], members: Bool[Tensor, " B"]) -> Bool[Tensor, "B B"]:
    """[b, j]: row j is a member of row b's group. Groups may be ragged and in any order."""
    return (key[:, None] == key[None, :]) & members[None, :]


def at_decisions(group_loss: Float[Tensor, " B"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The loss of each row's group at every trained decision of the row.

    Each decision has the whole loss, so weights determine only how much a group counts and
    never distort its gradient: under ``per_sample`` groups of equal size count equally (the mean over
    groups) and ragged ones by their size, under ``per_prompt`` all count equally.
    """
    return torch.where(loss_mask, group_loss[:, None], 0.0)
