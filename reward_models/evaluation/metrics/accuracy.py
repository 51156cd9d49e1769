"""Pairwise accuracy, under every rule of ties in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

TieRule: TypeAlias = Literal["wrong", "right", "half"]
CREDIT: Mapping[str, float] = {"wrong": 0.0, "right": 1.0, "half": 0.5}
"""What an exact tie of the reward counts where people have a preference."""

Signs: TypeAlias = Int[np.ndarray, "N"]
Values: TypeAlias = Float[np.ndarray, "N"]


def without_ties(human: Signs, difference: Values, ties: TieRule) -> Values:
    """Credit of each pair on which people have a preference: 1 if the reward has the same one, ``ties`` for none.

    NaN for ties of people and for pairs that could not be scored. VideoAlign, ImageReward and HPSv3 count an exact tie
    of the reward as wrong; half is what a coin would earn.
    """
    credit = np.where(difference == 0, CREDIT[ties], np.sign(difference) == human)
    return np.where((human == 0) | np.isnan(difference), np.nan, credit)


def with_ties(human: Signs, difference: Values, threshold: float) -> Values:
    """Credit of each pair where the reward predicts a tie if |difference| <= threshold; NaN if it is not scored.

    An exact tie of the reward is a tie at every threshold.
    """
    predicted = np.where(np.abs(difference) <= threshold, 0, np.sign(difference))
    return np.where(np.isnan(difference), np.nan, predicted == human)


def best_threshold(human: Signs, difference: Values) -> tuple[float, float]:
    """The threshold with the highest accuracy ``with_ties``, the smallest of equals, and that accuracy.

    Candidates are 0 and every |difference| (Deutsch et al. 2023, arXiv:2305.14324, section 5; VideoAlign). Tuned
    and measured on the same pairs it is optimistic: see ``cross_tuned``. Both NaN without a scored pair.

    With k pairs of |d| at most the threshold: accuracy = (ties of people among them + correct signs among the
    others) / N.
    """
    scored = ~np.isnan(difference)
    if not scored.any():
        return float("nan"), float("nan")
    h, d = human[scored], difference[scored]
    order = np.argsort(np.abs(d))
    size = np.abs(d)[order]
    tied = np.concatenate([[0], np.cumsum(h[order] == 0)])
    correct = ((h == np.sign(d)) & (d != 0))[order]
    later = np.concatenate([np.cumsum(correct[::-1])[::-1], [0]])
    candidates = np.unique(np.concatenate([[0.0], size]))
    within = np.searchsorted(size, candidates, side="right")
    right = tied[within] + later[within]
    best = int(np.argmax(right))
    return float(candidates[best]), float(right[best] / len(h))


def cross_tuned(human: Signs, difference: Values, cluster: Int[np.ndarray, "N"], seed: int = 0) -> Values:
    """Credit ``with_ties`` where the threshold of each half of the clusters (prompts) is tuned on the other half."""
    credit = np.full(len(human), np.nan)
    half = halves(cluster, seed)
    for measured in (half, ~half):
        threshold, _ = best_threshold(human[~measured], difference[~measured])
        if not np.isnan(threshold):
            credit[measured] = with_ties(human[measured], difference[measured], threshold)
    return credit


def halves(cluster: Int[np.ndarray, "N"], seed: int = 0) -> np.ndarray:
    """True for the pairs of a random half of the clusters [N]; no cluster is in both halves."""
    names, place = np.unique(cluster, return_inverse=True)
    chosen = np.random.default_rng(seed).permutation(len(names)) < (len(names) + 1) // 2
    return chosen[place]


def mean_credit(credit: Values) -> float:
    """Mean over all pairs that count (micro); NaN without any."""
    return float(np.nanmean(credit)) if np.isfinite(credit).any() else float("nan")


def mean_of_means(credit: Values, group: Int[np.ndarray, "N"]) -> float:
    """Mean over groups (prompts, categories) of their means (macro); groups in which no pair counts are left out."""
    means = [mean_credit(credit[group == one]) for one in np.unique(group)]
    return mean_credit(np.array(means))
