"""Whether differences of a reward are probabilities: P(first preferred) = sigmoid(beta * difference)."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from reward_models.evaluation.metrics.accuracy import halves

Wins: TypeAlias = Bool[np.ndarray, "N"]
Probabilities: TypeAlias = Float[np.ndarray, "N"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1 + np.tanh(x / 2))


def fit_beta(won: Wins, difference: Probabilities, largest: float = 1e6) -> float:
    """The beta >= 0 of the largest likelihood, by bisection of its slope, which falls with beta.

        d log L / d beta = sum_i d_i (won_i - sigmoid(beta d_i))

    ``largest`` where the reward is never wrong, since the likelihood has no maximum there.
    """

    def slope(beta: float) -> float:
        return float(difference @ (won - sigmoid(beta * difference)))

    if slope(0.0) <= 0:
        return 0.0
    if (np.where(won, difference, -difference) >= 0).all():
        return largest
    low, high = 0.0, largest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return (low + high) / 2


def cross_fitted(
    won: Wins, difference: Probabilities, cluster: Int[np.ndarray, "N"], seed: int = 0
) -> tuple[Probabilities, float]:
    """P(first preferred) of each pair, beta of each half of the prompts fitted on the other half; and the beta of all.

    NaN where the other half has no pair.
    """
    half, p = halves(cluster, seed), np.full(len(won), np.nan)
    for measured in (half, ~half):
        if (~measured).any():
            p[measured] = sigmoid(fit_beta(won[~measured], difference[~measured]) * difference[measured])
    return p, fit_beta(won, difference)


def expected_calibration_error(won: Wins, p: Probabilities, bins: int = 15, adaptive: bool = False) -> float:
    """sum_b n_b / N |accuracy_b - confidence_b| (Guo et al. 2017, arXiv:1706.04599, equation 3).

    The confidence of a pair is max(p, 1 - p), its accuracy whether the likelier output won, half where p = 1/2.
    ``bins`` are of equal width on [1/2, 1], or of equal counts if ``adaptive``, which suits fewer than 500 pairs.
    """
    if not len(p):
        return float("nan")
    confidence = np.maximum(p, 1 - p)
    correct = np.where(p == 0.5, 0.5, (p > 0.5) == won)
    if adaptive:
        parts = np.array_split(np.argsort(confidence, kind="stable"), min(bins, len(p)))
    else:
        place = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
        parts = [np.flatnonzero(place == one) for one in np.unique(place)]
    return float(sum(len(part) / len(p) * abs(correct[part].mean() - confidence[part].mean()) for part in parts))


def brier(won: Wins, p: Probabilities) -> float:
    """Mean of (p - won)^2 (Brier 1950); 1/4 for a coin."""
    return float(np.mean((p - won) ** 2)) if len(p) else float("nan")


def log_loss(won: Wins, p: Probabilities) -> float:
    """Mean of -log P(what happened), in nats, with p cut to [1e-12, 1 - 1e-12]; log 2 for a coin."""
    likelihood = np.maximum(np.where(won, p, 1 - p), 1e-12)
    return float(-np.log(likelihood).mean()) if len(p) else float("nan")
