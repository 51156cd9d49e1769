"""Rank and linear correlation; ties have average ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from reward_models.evaluation.metrics.accuracy import Signs, Values


@dataclass(frozen=True)
class Counts:
    """How the pairs fall: concordant, discordant, tied by people only, by the reward only, by both."""

    concordant: int
    discordant: int
    human: int
    reward: int
    both: int

    @property
    def tau_b(self) -> float:
        """(C - D) / sqrt((C + D + T_h) (C + D + T_r)) (Kendall 1945); NaN where one side has ties only."""
        strict = self.concordant + self.discordant
        product = (strict + self.human) * (strict + self.reward)
        return (self.concordant - self.discordant) / product**0.5 if product else float("nan")

    @property
    def tau_23(self) -> float:
        """(C + T_hr - D - T_h - T_r) / N, which rewards the prediction of ties (arXiv:2305.14324, equation 10)."""
        right = self.concordant + self.both
        wrong = self.discordant + self.human + self.reward
        return (right - wrong) / (right + wrong) if right + wrong else float("nan")


def counts(human: Signs, difference: Values, threshold: float = 0.0) -> Counts:
    """The counts of all scored pairs; the reward ties where |difference| <= threshold."""
    scored = ~np.isnan(difference)
    h, d = human[scored], difference[scored]
    sign = np.where(np.abs(d) <= threshold, 0, np.sign(d))
    return Counts(
        concordant=int((h * sign > 0).sum()),
        discordant=int((h * sign < 0).sum()),
        human=int(((h == 0) & (sign != 0)).sum()),
        reward=int(((h != 0) & (sign == 0)).sum()),
        both=int(((h == 0) & (sign == 0)).sum()),
    )


def ranks(values: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[place]


def pearson(x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"]) -> float:
    """Linear correlation (PLCC) of the raw values, without the logistic fit that image quality papers often put first;
    NaN where one side is constant."""
    x, y = x - x.mean(), y - y.mean()
    product = (x @ x) * (y @ y)
    return float(x @ y / product**0.5) if product else float("nan")


def spearman(x: Float[np.ndarray, "N"], y: Float[np.ndarray, "N"]) -> float:
    """Rank correlation (SRCC): Pearson's of the average ranks; NaN where one side is constant."""
    return pearson(ranks(x), ranks(y))
