"""Uncertainty of an accuracy, and of the difference between two rewards on the same pairs.

Pairs of a prompt are not independent: a bootstrap draws whole prompts (clusters), which makes intervals wider than one
over pairs, and honest.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int

from mmgrpo.statistics import Interval, bootstrap_ratio, paired_ratio_difference
from reward_models.evaluation.metrics.accuracy import Values

DRAWS = 1000


def accuracy_interval(credit: Values, cluster: Int[np.ndarray, "N"], seed: int = 0) -> Interval | None:
    """Mean credit of the pairs that count, with its 95 % percentile bootstrap interval over clusters.

    None if no pair counts. ``n`` is the number of clusters.
    """
    counted = np.isfinite(credit)
    if not counted.any():
        return None
    parts, wholes = _sums(credit[counted], cluster[counted])
    return bootstrap_ratio(parts, wholes, DRAWS, seed)


def accuracy_difference(first: Values, second: Values, cluster: Int[np.ndarray, "N"], seed: int = 0) -> Interval | None:
    """Mean credit of ``second`` minus that of ``first``, paired over the pairs that count for both; None without."""
    counted = np.isfinite(first) & np.isfinite(second)
    if not counted.any():
        return None
    before, wholes = _sums(first[counted], cluster[counted])
    after, _ = _sums(second[counted], cluster[counted])
    return paired_ratio_difference(before, after, wholes, DRAWS, seed)


def _sums(credit: Values, cluster: Int[np.ndarray, "N"]) -> tuple[Values, Values]:
    """Sum and number of credits of each cluster."""
    _, place = np.unique(cluster, return_inverse=True)
    return np.bincount(place, credit), np.bincount(place).astype(np.float64)


def mcnemar(first: Values, second: Values) -> float:
    """Exact two-sided p-value that two rewards are right equally often (McNemar 1947, with the binomial distribution).

    b pairs only the first has right, c only the second: p = min(1, 2 P(Bin(b + c, 1/2) <= min(b, c))). Credits between
    0 and 1 are neither right nor wrong and left out. It takes pairs as independent; the bootstrap does not.
    """
    only_first = int(((first == 1) & (second == 0)).sum())
    only_second = int(((first == 0) & (second == 1)).sum())
    total, fewer = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * sum(math.comb(total, k) for k in range(fewer + 1)) / 2**total)


def agreement(first: Values, second: Values) -> float:
    """Share of the pairs scored by both rewards on which their differences have the same sign; NaN without any."""
    both = ~np.isnan(first) & ~np.isnan(second)
    return float((np.sign(first) == np.sign(second))[both].mean()) if both.any() else float("nan")
