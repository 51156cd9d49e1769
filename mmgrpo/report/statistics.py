"""How sure a mean is: percentile bootstrap over prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Interval:
    """A mean (or a ratio of sums) and the range that holds it with 95 % confidence; ``n`` prompts were seen."""

    mean: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def bootstrap_mean(values: npt.ArrayLike, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of one number per prompt, and the 2.5 % and 97.5 % points of its bootstrap distribution.

    mean_k = mean of n values drawn with replacement, k = 1 .. resamples
    low, high = the 2.5 and 97.5 percentiles of mean_k

    (Efron 1979; percentile interval.) Draws of one prompt depend on each other: average them first
    (``per_prompt``). A single value, or equal values, give an interval of no width, not a surer mean.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"wanted one number per prompt, as a list [n] with n > 0; got shape {array.shape}")
    if not np.isfinite(array).all():
        places = np.flatnonzero(~np.isfinite(array)).tolist()
        raise ValueError(f"values {places} are not finite; leave out what could not be scored, and say so")
    means = np.concatenate([array[places].mean(axis=1) for places in draws(array.size, resamples, seed)])
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(array.mean()), float(low), float(high), array.size)


def bootstrap_ratio(parts: npt.ArrayLike, wholes: npt.ArrayLike, resamples: int = 10_000, seed: int = 0) -> Interval:
    """sum(parts) / sum(wholes), one of each per prompt, and its bootstrap interval over prompts.

    ratio_k = sum of parts / sum of wholes of n prompts drawn with replacement, k = 1 .. resamples
    low, high = the 2.5 and 97.5 percentiles of ratio_k

    This is how a corpus word error rate is resampled: a clip is drawn with its errors and its words (Bisani and Ney,
    ICASSP 2004). Resamples whose wholes sum to 0 have no ratio and are left out.
    """
    top, bottom = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if top.ndim != 1 or top.shape != bottom.shape:
        raise ValueError(f"wanted one part and one whole per prompt; got shapes {top.shape} and {bottom.shape}")
    if not (np.isfinite(top).all() and np.isfinite(bottom).all() and (bottom >= 0).all() and bottom.sum() > 0):
        raise ValueError("a ratio of sums needs finite parts, and wholes that are not negative and not all 0")
    sums = [(top[places].sum(axis=1), bottom[places].sum(axis=1)) for places in draws(top.size, resamples, seed)]
    above, below = (np.concatenate(side) for side in zip(*sums, strict=True))
    low, high = np.percentile(above[below > 0] / below[below > 0], [2.5, 97.5])
    return Interval(float(top.sum() / bottom.sum()), float(low), float(high), top.size)


def draws(size: int, resamples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Places of prompts drawn with replacement, [some, size] at a time: all at once could be gigabytes."""
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1; got {resamples}")
    generator = np.random.default_rng(seed)
    slice_size = max(1, 4_000_000 // size)
    for done in range(0, resamples, slice_size):
        yield generator.integers(size, size=(min(slice_size, resamples - done), size))


def paired_difference(before: npt.ArrayLike, after: npt.ArrayLike, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of ``after - before``, prompt by prompt: ``bootstrap_mean`` of the differences.

    The same prompts in the same order on both sides; how hard a prompt is then cancels.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"before has shape {first.shape} and after {second.shape}; wanted the same prompts")
    return bootstrap_mean(second - first, resamples, seed)


def paired_ratio_difference(
    before: npt.ArrayLike, after: npt.ArrayLike, wholes: npt.ArrayLike, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """sum(after) / sum(wholes) - sum(before) / sum(wholes): ``bootstrap_ratio`` of the differences.

    The same prompts, with the same wholes, on both sides: each is drawn with what both made of it.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"before has shape {first.shape} and after {second.shape}; wanted the same prompts")
    return bootstrap_ratio(second - first, wholes, resamples, seed)


def best_of(values: npt.ArrayLike, k: int) -> float:
    """The expected best of ``k`` of the ``n`` draws of a prompt, over all choices of k: unbiased.

    sum_i v_i C(i - 1, k - 1) / C(n, k), with v_1 <= ... <= v_n; for values 0 and 1 with c ones it is
    pass@k = 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, equation 1).
    """
    ranked = np.sort(np.asarray(values, dtype=np.float64)).tolist()
    if not 1 <= k <= len(ranked):
        raise ValueError(f"the best of {k} draws cannot be told from {len(ranked)}; draw more samples a prompt")
    chosen = math.comb(len(ranked), k)
    return sum(value * (math.comb(below, k - 1) / chosen) for below, value in enumerate(ranked))


def per_prompt(ids: Sequence[str], values: npt.ArrayLike) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Mean of the values of each id, ids in order of first appearance: [B] to [P]."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (len(ids),):
        raise ValueError(f"{len(ids)} ids but values of shape {array.shape}; wanted one value per id")
    places: dict[str, list[int]] = {}
    for place, identity in enumerate(ids):
        places.setdefault(identity, []).append(place)
    return list(places), np.array([array[rows].mean() for rows in places.values()])
