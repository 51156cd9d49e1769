"""Lines in common axes, as the tabs Runs and Visual show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import MaxNLocator

from mmgrpo.report.figures import number
from mmgrpo.report.render import render

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7c7c84", "#9a8700")
"""Colours that also the colour-blind tell apart (Okabe and Ito), with a darker yellow, and grey for black."""
SIDE = 1000.0
"""Units of the chart on either side."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Curve:
    """Values as a thin line, and their running mean as a thick one; without points it is not drawn."""

    name: str
    thin: Points
    thick: Points
    low: Points = ()
    """The lower ends of the intervals of the values, where they have any."""
    high: Points = ()
    change: str = ""
    """From the first to the last value, in words."""

    @property
    def summary(self) -> str:
        """The last value; of values with intervals the first one too, and the change, else the last interval."""
        last = number(self.thick[-1][1], ".4g")
        if not self.low:
            return last
        ends = [number(points[-1][1], ".3g") for points in (self.low, self.high)]
        first = f"{number(self.thick[0][1], '.3g')} to {number(self.thick[-1][1], '.3g')}"
        return f"{first}, {self.change}" if self.change else f"{first} [{', '.join(ends)}]"


def chart_html(title: str, axis: str, curves: Sequence[Curve], notes: Sequence[str] = ()) -> str:
    """The curves, at most as many as there are colours, each with its last value, and ``notes`` below them."""
    points = [point for curve in curves for line in (curve.thin, curve.low, curve.high) for point in line]
    values: dict[str, Any] = {"title": title, "axis": axis, "lines": [], "wide": [], "high": [], "notes": notes}
    if points:
        wide, high = Scale([x for x, _ in points]), Scale([y for _, y in points])
        values["wide"], values["high"] = wide.ticks(), [(SIDE - at, text) for at, text in high.ticks()]
        values["lines"] = [
            {
                "name": curve.name,
                "colour": colour,
                "thin": path(curve.thin, wide, high),
                "thick": path(curve.thick, wide, high),
                "band": path([*curve.high, *reversed(curve.low)], wide, high),
                "last": curve.summary,
            }
            for curve, colour in zip(curves, COLOURS)
            if curve.thin
        ]
    return render("demo_curves.html", values)


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
