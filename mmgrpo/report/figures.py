"""Formatted numbers, and their substitutes where an untrusted file has no number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MINUS, NONE = "\N{MINUS SIGN}", "\N{EN DASH}"

LARGEST = 1e300
"""JSON can contain larger integers, which do not fit into a float."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: a number, its interval, and whether it is a significant change for the better or the worse."""

    text: str
    interval: str = ""
    kind: Literal["", "good", "bad"] = ""


def is_number(value: Any) -> bool:
    """Whether a JSON value is a finite number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def number(value: Any, form: str = ".3f") -> str:
    """The number in the format ``form``, 0 without a sign; a dash for None, and other values as text."""
    if not is_number(value):
        return NONE if value is None else str(value)
    text = format(value, form)
    zero = not any(digit in text for digit in "123456789")
    return text.lstrip("+-") if zero else MINUS + text[1:] if text.startswith("-") else text


def decimals(*estimates: Any) -> int:
    """Decimals that show two digits of the narrowest interval, at least 3 for numbers below 10, at most 6: 3 for 0.1 to
    0.2, 5 for 0.0012 to 0.0019, 0 for 120 to 190; 3 where every interval is a point."""
    intervals = [
        (estimate["low"], estimate["high"])
        for estimate in estimates
        if _is_estimate(estimate) and estimate["high"] > estimate["low"]
    ]
    if not intervals:
        return 3
    narrow = 1 - math.floor(math.log10(min(high - low for low, high in intervals)))
    large = max(abs(end) for interval in intervals for end in interval) >= 10
    return min(max(narrow, 0 if large else 3), 6)


def mean_cell(estimate: Any, places: int = 3) -> Cell:
    """A mean and its interval: ``{mean, low, high}``."""
    form = f".{places}f"
    if not _is_estimate(estimate):
        return Cell(number(estimate, form))
    low, high = number(estimate["low"], form), number(estimate["high"], form)
    return Cell(number(estimate["mean"], form), f"{low} to {high}")


def difference_cell(estimate: Any, less_is_better: bool = False, places: int = 3) -> Cell:
    """A signed difference and its interval, marked good or bad if the interval excludes 0."""
    form = f"+.{places}f"
    if not _is_estimate(estimate):
        return Cell(number(estimate, form))
    low, high = number(estimate["low"], form), number(estimate["high"], form)
    sign = change(estimate)
    kind = "" if sign == 0 else "good" if (sign > 0) != less_is_better else "bad"
    return Cell(number(estimate["mean"], form), f"{low} to {high}", kind)


def change(difference: Any) -> int:
    """1 or -1 where the interval of a difference excludes 0, else 0: the change is within noise."""
    if not _is_estimate(difference):
        return 0
    return (difference["low"] > 0) - (difference["high"] < 0)


def duration(seconds: Any) -> str:
    """A time in hours and minutes, minutes and seconds, or seconds; empty for a value that is not a number."""
    if not is_number(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _is_estimate(estimate: Any) -> bool:
    return isinstance(estimate, Mapping) and all(is_number(estimate.get(name)) for name in ("mean", "low", "high"))
