"""Lines in common axes, as the tabs Runs and Visual show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.report.chart import SIDE, Scale, flip
from mmgrpo.report.figures import number
from mmgrpo.report.render import render

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7c7c84", "#9a8700")
"""Colours that also the colour-blind tell apart (Okabe and Ito), with a darker yellow, and grey for black."""
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
        values["wide"], values["high"] = wide.ticks(), flip(high.ticks())
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


def path(points: Points, wide: Scale, high: Scale) -> str:
    """The points of a line in units of ``SIDE``."""
    return " ".join(f"{wide(x):g},{SIDE - high(y):g}" for x, y in points)
