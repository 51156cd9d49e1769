"""Numbers of the policy's own decisions as a reward: how likely a sample was, how sure its steps, how many."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Decisions, Output, Prompt

STATISTICS = ("log_prob_mean", "log_prob_sum", "entropy_mean", "decisions")


@reward(
    "Text", "Image", "Video", "Audio", range=(-inf, inf), scale="nats, or a number of decisions", reads=("rollout",)
)
def decision_statistic(
    prompts: Sequence[Prompt], outputs: Sequence[Output], of: str = "log_prob_mean", *, rollout: Decisions
) -> list[float]:
    """A statistic over the decisions of each row, under the policy that sampled it: the mean or sum of their
    log-probabilities, their mean entropy in nats, or their number.

    Only policies that record it have an entropy. A row without decisions is NaN, its number 0. Its uses are bonuses and
    regularizers of other rewards, with a small weight of either sign, and logging with weight 0: alone, it rewards
    a policy for being sure of anything.
    """
    if of not in STATISTICS:
        raise ValueError(f"decision_statistic: got of={of!r}, expected one of {', '.join(STATISTICS)}")
    mask = rollout.decision_mask
    counts = mask.sum(1)
    if of == "decisions":
        return counts.double().tolist()
    values = rollout.log_probs
    if of == "entropy_mean":
        if "entropy" not in rollout.fields:
            known = ", ".join(sorted(rollout.fields)) or "none"
            raise ValueError(
                f"decision_statistic: the policy records no entropy (its fields: {known}), expected one that does, "
                "such as a token policy; use log_prob_mean"
            )
        values = rollout.fields["entropy"]
    sums = values.double().where(mask, 0.0).sum(1)
    rows = sums if of == "log_prob_sum" else sums / counts
    return rows.where(counts > 0, math.nan).tolist()
