"""Curves as mark-up, in the page's own colours: lines, bands and points that name their values under the pointer.

Positions are in units of a square of side ``SIDE``, which the page stretches; texts, points and what the pointer meets
stand over it, in percent, so they keep their size in every window. Nothing of it is a script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import MaxNLocator

from mmgrpo.report.figures import number
from mmgrpo.report.plots import running_mean, thin_out, title_of
from mmgrpo.report.results import Point

SIDE = 1000.0
POINTS = 250
"""Points of a curve of a metric; of a longer one every k-th."""
STOPS = 60
"""Places of a curve whose values the pointer can ask for."""
MARGIN = 0.06
"""Space above and below the values, as a share of their range."""


@dataclass(frozen=True)
class Stop:
    """A place under the pointer: its left side and width, the height of its point, and what it says, in percent."""

    left: float
    width: float
    x: float
    y: float
    text: str


@dataclass
class Chart:
    """What the template draws."""

    title: str
    about: str
    """For those who cannot see it: first and last values."""
    thin: Sequence[str] = ()
    """Lines as SVG points, between gaps."""
    thick: Sequence[str] = ()
    bands: Sequence[str] = ()
    """Polygons, the widest first."""
    bars: Sequence[tuple[float, float, float]] = ()
    """Intervals: across, and their two ends."""
    base: float | None = None
    """The height of a line to compare with: the value before training."""
    dots: bool = False
    """Whether each stop has a dot."""
    stops: Sequence[Stop] = ()
    high: Sequence[tuple[float, str]] = field(default_factory=list)
    """Height of each tick in percent, and its text."""
    wide: Sequence[tuple[float, str]] = field(default_factory=list)


class Scale:
    """From values to positions from 0 to ``SIDE``."""

    def __init__(self, values: npt.ArrayLike, margin: float = 0.0) -> None:
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        self.low, self.high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        if not self.low / 2 < self.high / 2:  # equal, or too near each other to be told apart
            space = abs(self.low) * 0.1 or 1.0
            self.low, self.high = self.low - space, self.high + space
        space = margin * (self.high / 2 - self.low / 2) * 2
        if math.isfinite(self.low - space) and math.isfinite(self.high + space):
            self.low, self.high = self.low - space, self.high + space

    def __call__(self, value: float) -> float:
        # Halves, since the difference of two large numbers may not be one.
        return round(SIDE * ((value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)), 1)

    def ticks(self, most: int = 5, integer: bool = False) -> list[tuple[float, str]]:
        """Positions in percent of round values, and how they are written."""
        places = MaxNLocator(nbins=most, integer=integer).tick_values(self.low, self.high)
        return [(self(float(v)) / 10, number(float(v), ".4g")) for v in places if self.low <= v <= self.high]


def metric_chart(title: str, steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> Chart:
    """A metric over optimizer steps: every value as a thin line, their running mean as a thick one."""
    x, thin = thin_out(steps, values, POINTS)
    _, thick = thin_out(steps, running_mean(values), POINTS)
    known = np.isfinite(thin)
    across, high = Scale(x), Scale(thin[known], MARGIN)
    texts = [f"step {step}: {number(float(value), '.4g')}" for step, value in zip(x, thin)]
    return Chart(
        title_of(title),
        _about(title, x[known], thin[known]),
        thin=_lines(x, thin, across, high),
        thick=_lines(x, thick, across, high),
        dots=int(known.sum()) < 3,
        stops=_stops(x, thin, across, high, texts),
        high=flip(high.ticks(3)) if known.any() else [],
        wide=across.ticks(4, integer=True) if known.any() else [],
    )


def interval_chart(title: str, points: Sequence[Point], places: int = 3) -> Chart:
    """A held-out mean at every evaluation with its interval, and the level before training, to compare with. Of several
    points the first has no interval of its own: those of the others are of the change since then."""
    if len(points) > 1:
        points = [Point(points[0].step, points[0].mean, points[0].mean, points[0].mean), *points[1:]]
    x = np.array([point.step for point in points])
    mean, low, high = (np.array([getattr(point, name) for point in points]) for name in ("mean", "low", "high"))
    across, up = Scale(x), Scale(np.concatenate([low, high]), MARGIN)
    form = f".{places}f"
    texts = [
        f"step {point.step}: {number(point.mean, form)}"
        + (f" [{number(point.low, form)}, {number(point.high, form)}]" if point.high > point.low else "")
        for point in points
    ]
    corners = [*zip(x, high), *zip(x[::-1], low[::-1])]
    return Chart(
        title_of(title),
        _about(title, x, mean),
        thick=_lines(x, mean, across, up),
        bands=[" ".join(f"{across(a):g},{SIDE - up(b):g}" for a, b in corners)] if len(points) > 1 else [],
        bars=[(across(a), SIDE - up(b), SIDE - up(c)) for a, b, c in zip(x, low, high)],
        base=SIDE - up(float(mean[0])) if len(points) > 1 else None,
        dots=True,
        stops=_stops(x, mean, across, up, texts),
        high=flip(up.ticks()),
        wide=across.ticks(6, integer=True),
    )


def quantile_chart(title: str, steps: npt.NDArray[np.float64], levels: npt.NDArray[np.float64]) -> Chart:
    """The middle of a distribution over steps, and two bands around it; ``levels`` [steps, 5] are the quantiles .1,
    .25, .5, .75, .9."""
    stride = -(-len(steps) // POINTS) or 1
    steps, levels = steps[::stride], levels[::stride]
    across, high = Scale(steps), Scale(levels, MARGIN)
    bands = [
        " ".join(f"{across(a):g},{SIDE - high(b):g}" for a, b in [*zip(steps, upper), *zip(steps[::-1], lower[::-1])])
        for lower, upper in ((levels[:, 0], levels[:, 4]), (levels[:, 1], levels[:, 3]))
    ]
    texts = [
        f"round {step:g}: middle {number(float(row[2]), '.4g')}, 10 to 90 %: {number(float(row[0]), '.4g')} to "
        f"{number(float(row[4]), '.4g')}"
        for step, row in zip(steps, levels)
    ]
    return Chart(
        title,
        _about(title, steps, levels[:, 2]),
        thick=_lines(steps, levels[:, 2], across, high),
        bands=bands,
        dots=len(steps) < 3,
        stops=_stops(steps, levels[:, 2], across, high, texts),
        high=flip(high.ticks(3)),
        wide=across.ticks(4, integer=True),
    )


def _about(title: str, x: npt.NDArray[np.generic], values: npt.NDArray[np.float64]) -> str:
    if not len(values):
        return f"{title_of(title)}: no values"
    first, last = (number(float(values[place]), ".4g") for place in (0, -1))
    return f"{title_of(title)} over steps {x[0]:g} to {x[-1]:g}, from {first} to {last}"


def flip(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Ticks of a scale that runs upwards, from the top."""
    return [(round(100 - at, 2), text) for at, text in ticks]


def _lines(x: npt.NDArray[np.generic], y: npt.NDArray[np.float64], across: Scale, high: Scale) -> list[str]:
    """Points of a line, a new one after each gap of NaN."""
    lines: list[list[str]] = [[]]
    for a, b in zip(x.tolist(), y.tolist()):
        if math.isfinite(b):
            lines[-1].append(f"{across(a):g},{SIDE - high(b):g}")
        elif lines[-1]:
            lines.append([])
    return [" ".join(line) for line in lines if len(line) > 1]


def _stops(
    x: npt.NDArray[np.generic], y: npt.NDArray[np.float64], across: Scale, high: Scale, texts: Sequence[str]
) -> list[Stop]:
    """At most ``STOPS`` places under the pointer, each as wide as to the middle of its neighbours."""
    known = [i for i, value in enumerate(y.tolist()) if math.isfinite(value)]
    known = known[:: -(-len(known) // STOPS) or 1]
    at = [across(float(x[i])) / 10 for i in known]
    ends = [0.0, *((a + b) / 2 for a, b in pairwise(at)), 100.0]
    return [
        Stop(round(left, 2), round(right - left, 2), round(a, 2), round(100 - high(float(y[i])) / 10, 2), texts[i])
        for i, a, left, right in zip(known, at, ends, ends[1:])
    ]
