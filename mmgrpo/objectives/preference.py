"""Objectives of preferences: the best sample of a group against its worst one."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmgrpo.config.ranges import POSITIVE, UPPER_BOUND
from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, Loss, at_decisions, peers, row_advantage, row_mean, row_sum, unclipped


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
