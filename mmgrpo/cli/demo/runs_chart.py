"""The curves of several runs as one chart. Its lines stretch with the page, and its words do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from mmgrpo.cli.demo.runs_read import Look, Points, curve_points
from mmgrpo.report.figures import number
from mmgrpo.report.plots import title_of
from mmgrpo.report.render import render

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7c7c84", "#9a8700")
"""Colours that also the colour-blind tell apart (Okabe and Ito), with a darker yellow, and grey for black."""
SIDE = 1000.0
"""Units of the chart on either side."""


@dataclass(frozen=True)
class Line:
    """The curve of a run: every value as a thin line, the running mean as a thick one."""

    name: str
    colour: str
    thin: str
    thick: str
    last: str
    """The last value of the thick line."""


@dataclass(frozen=True)
class Chart:
    """Lines, and the ticks of both axes: positions from the top left, and what they say."""

    metric: str
    axis: str
    lines: Sequence[Line]
    wide: Sequence[tuple[float, str]]
    high: Sequence[tuple[float, str]]
    without: Sequence[str]
    """Names of the runs that have no value."""


def chart_html(looks: Sequence[Look], metric: str, axis: str, seconds: bool, percent: int) -> str:
    """The curves of a metric, a colour for each run."""
    return render("demo_curves.html", {"chart": chart(looks, metric, axis, seconds, percent)})


def chart(looks: Sequence[Look], metric: str, axis: str, seconds: bool, percent: int) -> Chart:
    """The curves of a metric in common axes."""
    raw = [curve_points(look, metric, seconds, 0) for look in looks]
    smooth = [curve_points(look, metric, seconds, percent) for look in looks]
    points = [point for curve in raw for point in curve]
    title, without = title_of(metric), [look.name for look, curve in zip(looks, raw) if not curve]
    if not points:
        return Chart(title, axis, (), (), (), without if metric else ())
    wide, high = Scale([x for x, _ in points]), Scale([y for _, y in points])
    lines = [
        Line(look.name, colour, path(thin, wide, high), path(thick, wide, high), number(thick[-1][1], ".4g"))
        for look, colour, thin, thick in zip(looks, COLOURS, raw, smooth)
        if thin
    ]
    return Chart(title, axis, lines, wide.ticks(), [(SIDE - at, text) for at, text in high.ticks()], without)


class Scale:
    """From values to positions on a side of the chart."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = min(values), max(values)
        if not self.low < self.high:
            margin = abs(self.low) * 0.1 or 1.0
            self.low, self.high = self.low - margin, self.high + margin

    def __call__(self, value: float) -> float:
        # Halves, since the difference of two large numbers may not be one.
        return round(SIDE * ((value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)), 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Positions of at most six round values, and how they are written."""
        inside = [float(v) for v in MaxNLocator(nbins=5).tick_values(self.low, self.high) if self.low <= v <= self.high]
        return [(self(value), number(value, ".4g")) for value in inside]


def path(points: Points, wide: Scale, high: Scale) -> str:
    """The points of a line in units of the chart."""
    return " ".join(f"{wide(x):g},{SIDE - high(y):g}" for x, y in points)
