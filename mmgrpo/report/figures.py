"""Formatted numbers, and their substitutes where an untrusted file has no number."""

from __future__ import annotations

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


def mean_cell(estimate: Any) -> Cell:
    """A mean and its interval: ``{mean, low, high}``."""
    if not _is_estimate(estimate):
        return Cell(number(estimate))
    return Cell(number(estimate["mean"]), f"{number(estimate['low'])} to {number(estimate['high'])}")


def difference_cell(estimate: Any, less_is_better: bool = False) -> Cell:
    """A signed difference and its interval, marked good or bad if the interval excludes 0."""
    if not _is_estimate(estimate):
        return Cell(number(estimate))
    low, high = estimate["low"], estimate["high"]
    sign = (low > 0) - (high < 0)
    kind = "" if sign == 0 else "good" if (sign > 0) != less_is_better else "bad"
    return Cell(number(estimate["mean"], "+.3f"), f"{number(low, '+.3f')} to {number(high, '+.3f')}", kind)


def duration(seconds: Any) -> str:
    """A time in hours and minutes, minutes and seconds, or seconds; empty for a value that is not a number."""
    if not is_number(seconds):
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _is_estimate(estimate: Any) -> bool:
    return isinstance(estimate, Mapping) and all(is_number(estimate.get(name)) for name in ("mean", "low", "high"))
