"""How sure a mean is: percentile bootstrap over prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Interval:
    """A mean and the range that holds it with 95 % confidence; ``n`` prompts were seen."""

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
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1; got {resamples}")
    generator = np.random.default_rng(seed)
    # In slices, since resamples x n indices at once would be gigabytes for large sets of prompts.
    slice_size = max(1, 4_000_000 // array.size)
    means = np.concatenate(
        [
            array[generator.integers(array.size, size=(min(slice_size, resamples - done), array.size))].mean(axis=1)
            for done in range(0, resamples, slice_size)
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(array.mean()), float(low), float(high), array.size)


def paired_difference(before: npt.ArrayLike, after: npt.ArrayLike, resamples: int = 10_000, seed: int = 0) -> Interval:
    """The mean of ``after - before``, prompt by prompt: ``bootstrap_mean`` of the differences.

    The same prompts in the same order on both sides; how hard a prompt is then cancels.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"before has shape {first.shape} and after {second.shape}; wanted the same prompts")
    return bootstrap_mean(second - first, resamples, seed)


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
