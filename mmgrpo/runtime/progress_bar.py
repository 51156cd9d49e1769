"""Progress of what takes long: a bar in a terminal; in a log, a line per interval and no control characters."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import tqdm

from mmgrpo.terminal import is_interactive

INTERVAL = 30.0
"""Seconds between two lines of a log."""

LINE = "{desc}: {n_fmt} of {total_fmt}, {elapsed} passed, {remaining} left, {rate_fmt}{postfix}"


class Lines:
    """A stream that turns a bar, which overwrites itself, into lines: its state once per interval and at its end."""

    def __init__(self, stream: TextIO, interval: float) -> None:
        self.stream, self.interval, self.state, self.written = stream, interval, "", time.monotonic()

    def write(self, text: str) -> None:
        """Take in a new state behind a carriage return, or the end of the bar: a newline where it stays."""
        ended, now = text == "\n", time.monotonic()
        if text.startswith("\r"):
            self.state = text.strip()
        if self.state and (ended or now - self.written >= self.interval):
            self.stream.write(f"{self.state}\n")
            self.state, self.written = "", now

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


def progress_bar(
    items: Iterable[Any] | None = None,
    title: str = "",
    *,
    total: float | None = None,
    done: int = 0,
    unit: str = "it",
    stays: bool = False,
    quiet: bool = False,
) -> tqdm:
    """Progress through ``items``, or through ``total`` steps of which some are ``done``; ``stays``: its end is left on
    the screen. In standard error."""
    if is_interactive(sys.stderr):
        return tqdm(items, title, total, leave=stays, initial=done, unit=unit, disable=quiet, dynamic_ncols=True)
    return tqdm(
        items,
        title,
        total,
        leave=stays,
        initial=done,
        unit=unit,
        disable=quiet,
        position=0,  # one inside of another moves no cursor either
        file=Lines(sys.stderr, INTERVAL),
        bar_format=LINE,
    )
