"""Uncertainty of means: percentile bootstrap over prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Interval:
    """A mean (or a ratio of sums) over ``n`` prompts, and its 95 % confidence interval ``low`` to ``high``."""

    mean: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


NOTHING: Mapping[str, Any] = {"mean": None, "low": None, "high": None, "n": 0}
"""The dict of an interval over no prompt, where a reward could score none."""


def mean_of_scored(values: npt.ArrayLike) -> dict[str, Any]:
    """``bootstrap_mean`` of the values that are not NaN, as a dict; ``NOTHING`` if there are none."""
    array = np.asarray(values)
    scored = array[~np.isnan(array)]
    return bootstrap_mean(scored).as_dict() if scored.size else dict(NOTHING)


def bootstrap_mean(values: npt.ArrayLike, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of one number per prompt, and the 2.5 and 97.5 percentiles of its bootstrap distribution.

    mean_k = mean of n values drawn with replacement, k = 1 .. resamples
    low, high = the 2.5 and 97.5 percentiles of mean_k

    (Percentile interval: Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.) Samples of the same
    prompt are not independent: average them first (``per_prompt``). A single value, or equal values, have an interval
    of width zero, which does not mean certainty.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"got shape {array.shape}, expected one number per prompt: a list [n] with n > 0")
    if not np.isfinite(array).all():
        positions = np.flatnonzero(~np.isfinite(array)).tolist()
        raise ValueError(f"values {positions} are not finite; leave out what could not be scored, and report how many")
    means = np.concatenate([array[rows].mean(axis=1) for rows in draws(array.size, resamples, seed)])
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(array.mean()), float(low), float(high), array.size)


def bootstrap_ratio(parts: npt.ArrayLike, wholes: npt.ArrayLike, resamples: int = 10_000, seed: int = 0) -> Interval:
    """sum(parts) / sum(wholes), with one part and one whole per prompt, and its bootstrap interval over prompts.

    ratio_k = sum of parts / sum of wholes of n prompts drawn with replacement, k = 1 .. resamples
    low, high = the 2.5 and 97.5 percentiles of ratio_k

    This is the bootstrap of a corpus word error rate, whose clips are drawn with their errors and words (Bisani and
    Ney, ICASSP 2004). Resamples whose wholes sum to 0 have no ratio and are left out.
    """
    top, bottom = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if top.ndim != 1 or top.shape != bottom.shape:
        raise ValueError(f"got shapes {top.shape} and {bottom.shape}, expected one part and one whole per prompt")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all() and (bottom >= 0).all() and bottom.any()):
        raise ValueError(
            "got parts or wholes out of range, expected finite parts, and wholes that are not negative and not all 0"
        )
    sums = [(top[rows].sum(axis=1), bottom[rows].sum(axis=1)) for rows in draws(top.size, resamples, seed)]
    above, below = (np.concatenate(side) for side in zip(*sums, strict=True))
    low, high = np.percentile(above[below > 0] / below[below > 0], [2.5, 97.5])
    return Interval(float(top.sum() / bottom.sum()), float(low), float(high), top.size)


def draws(size: int, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of prompts drawn with replacement: ``resamples`` rows of ``size``, in blocks of at most 4 million."""
    if resamples < 1:
        raise ValueError(f"got {resamples} resamples, expected at least 1")
    generator = np.random.default_rng(seed)
    block = max(1, 4_000_000 // size)
    for start in range(0, resamples, block):
        yield generator.integers(size, size=(min(block, resamples - start), size))


def paired_ratio_difference(
    before: npt.ArrayLike, after: npt.ArrayLike, wholes: npt.ArrayLike, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """sum(after) / sum(wholes) - sum(before) / sum(wholes): ``bootstrap_ratio`` of the differences.

    Both have the same prompts with the same wholes, and a prompt is drawn with both of its parts.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"got shapes {first.shape} before and {second.shape} after, expected the same prompts")
    return bootstrap_ratio(second - first, wholes, resamples, seed)


def best_of(values: npt.ArrayLike, k: int) -> float:
    """The expected maximum of ``k`` of the ``n`` samples of a prompt, over all choices of k; unbiased.

    sum_i v_i C(i - 1, k - 1) / C(n, k), with v_1 <= ... <= v_n; for values 0 and 1 with c ones it is
    pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, equation 1).
    """
    ranked = np.sort(np.asarray(values, dtype=np.float64)).tolist()
    if not 1 <= k <= len(ranked):
        raise ValueError(
            f"got k = {k}, expected 1 to {len(ranked)} (samples per prompt); draw more samples for a larger k"
        )
    choices = math.comb(len(ranked), k)
    return sum(value * (math.comb(below, k - 1) / choices) for below, value in enumerate(ranked))


def per_prompt(ids: Sequence[str], values: npt.ArrayLike) -> tuple[list[str], npt.NDArray[np.float64]]:
    """The unique ids in order of first appearance, and the mean value of each: [B] to [P]."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (len(ids),):
        raise ValueError(f"got {len(ids)} ids and values of shape {array.shape}, expected one value per id")
    rows: dict[str, list[int]] = {}
    for row, id in enumerate(ids):
        rows.setdefault(id, []).append(row)
    return list(rows), np.array([array[members].mean() for members in rows.values()])
