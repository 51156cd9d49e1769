"""The alarm for reward hacking: over evaluations a trained reward rises while a held-out one falls.

    s     the earlier evaluation with the highest mean of the held-out reward
    apart at evaluation k: prompt by prompt, the trained reward has risen and the held-out one has fallen since s,
          both with an interval that excludes 0
    alarm at evaluation k: apart at k and at the one before (``NEEDED`` in a row; where a run is evaluated only before
          and after, the latter alone)

Intervals are Student's, of the paired differences over prompts, at 95 % divided among the evaluations from which s was
chosen (Bonferroni), since the best of several noisy means is too high. The alarm shows that two rewards part, not which
of them is wrong: look at the samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.statistics import Interval

NEEDED = 2
"""Evaluations in a row at which two rewards must be apart."""
ERROR = 0.05
"""One minus the confidence of the intervals."""
FEWEST = 8
"""Prompts that are needed for an interval."""


@dataclass(frozen=True)
class Measured:
    """The values of every reward on the held-out prompts at one step, NaN where none could be scored."""

    step: int
    values: Mapping[str, npt.NDArray[np.float64]]
    directions: Mapping[str, float]
    """The rewards that the run trains on: 1 for those that are to rise, -1 for those that are to fall."""
    final: bool = False
    """Whether it is the evaluation after training."""


@dataclass(frozen=True)
class Alarm:
    """A trained and a held-out reward that part between two steps."""

    trained: str
    held_out: str
    since: int
    step: int
    gain: Interval
    """Paired difference of the trained reward."""
    loss: Interval
    """Paired difference of the held-out reward."""

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "reward hacking", **asdict(self), "message": str(self)}

    def __str__(self) -> str:
        return (
            f"possible reward hacking: from step {self.since} to {self.step} the trained reward '{self.trained}' "
            f"changed by {self.gain} and the held-out reward '{self.held_out}' by {self.loss} over {self.loss.n} "
            "held-out prompts (paired, intervals of at least 95 %); look at the samples, and go back to an earlier "
            "checkpoint if they are worse"
        )


def alarms(evaluations: Sequence[Measured]) -> list[Alarm]:
    """The alarms of a run, at most one per evaluation and held-out reward, ordered by step."""
    ordered = sorted(
        {evaluation.step: evaluation for evaluation in evaluations}.values(), key=lambda evaluation: evaluation.step
    )
    raised = []
    for held_out in dict.fromkeys(
        name for evaluation in ordered for name in evaluation.values if name not in evaluation.directions
    ):
        apart = [_apart(ordered[:k], ordered[k], held_out) for k in range(1, len(ordered))]
        for k, alarm in enumerate(apart):
            recent = apart[max(0, k + 1 - NEEDED) : k + 1]
            if alarm is not None and None not in recent and (len(recent) == NEEDED or ordered[k + 1].final):
                raised.append(alarm)
    return sorted(raised, key=lambda alarm: alarm.step)


def _apart(earlier: Sequence[Measured], now: Measured, held_out: str) -> Alarm | None:
    """The held-out reward against the trained reward that has risen most significantly, if they are apart."""
    known = [evaluation for evaluation in earlier if np.isfinite(evaluation.values.get(held_out, np.array([]))).any()]
    if not known or held_out not in now.values:
        return None
    start = max(known, key=lambda evaluation: float(np.nanmean(evaluation.values[held_out])))
    error = ERROR / len(known)
    loss = paired_interval(start.values[held_out], now.values[held_out], error)
    if loss is None or loss.high >= 0:
        return None
    best: Alarm | None = None
    for trained, direction in now.directions.items():
        if trained in start.values and trained in now.values:
            gain = paired_interval(start.values[trained], now.values[trained], error)
            if gain is None or (gain.low if direction > 0 else -gain.high) <= 0:
                continue
            if best is None or _clearness(gain) > _clearness(best.gain):
                best = Alarm(trained, held_out, start.step, now.step, gain, loss)
    return best


def _clearness(interval: Interval) -> float:
    return abs(interval.mean) / max(interval.high - interval.low, 1e-300)


def paired_interval(before: npt.ArrayLike, after: npt.ArrayLike, error: float = ERROR) -> Interval | None:
    """Mean of ``after - before`` over prompts and its interval mean -+ t s / sqrt(n), of confidence 1 - ``error``.

    Prompts that are NaN on either side are left out; None for fewer than ``FEWEST``, or where the numbers of prompts
    differ.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        return None
    difference = second - first
    difference = difference[np.isfinite(difference)]
    if (n := difference.size) < FEWEST:
        return None
    mean = float(difference.mean())
    margin = student_quantile(1 - error / 2, n - 1) * float(difference.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - margin, mean + margin, n)


def student_quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t, by its expansion about the normal quantile (Abramowitz and Stegun 26.7.5).

    Within 1 % for 7 degrees of freedom or more and probabilities up to .9995.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
