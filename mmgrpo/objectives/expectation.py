"""The expected reward over a list of completions, with probabilities renormalized over the list."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmgrpo.config.registry import block
from mmgrpo.objectives.base import OBJECTIVES, Loss, at_decisions, peers, row_advantage, row_sum, unclipped
from mmgrpo.objectives.discriminative import weighted_mean


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
