"""What the tab Runs shows, as plain values: runs as they are now, curves, settings that differ, moments.

Run folders are untrusted input, and can be written at the same time: a run that cannot be read is a sentence that says
why, and the other runs are shown.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.cards import Row, read_completions
from mmgrpo.report.media import contained
from mmgrpo.report.plots import running_mean, series, thinned
from mmgrpo.report.run_folder import FILES, PARTS, RunFolder, read_run
from mmgrpo.report.untrusted import printable

KEPT = 8
"""Runs that are kept in memory."""
POINTS = 1000
"""Points of a curve; a longer one has every k-th of its smoothed values."""
SETTINGS, LETTERS, LEVELS = 2000, 400, 8
"""Largest number of settings of a run, of characters of a value, and of levels of names: aliases can make a file of a
kilobyte a value of gigabytes."""
METRICS = 10_000
"""Names to choose from."""

Points = list[tuple[float, float]]
Signature = tuple[tuple[str, int, int], ...]
"""Names, times in nanoseconds and sizes of the files of a run."""


@dataclass(frozen=True)
class Look:
    """A run as it was read."""

    name: str
    folder: Path
    run: RunFolder | None
    """None if it cannot be read."""
    problem: str = ""
    completions: Mapping[str, Mapping[str, Sequence[Row]]] = field(default_factory=dict)
    """Completions by file of prompts and moment."""

    @property
    def running(self) -> bool:
        """Whether there may be more of the run later."""
        return self.run is None or not self.run.finished

    def titles(self, moment: str) -> list[tuple[str, str]]:
        """Titles of the grids of a moment, and the names of their prompts."""
        split = [(title, *split_title(title)) for title in (self.run.samples if self.run else ())]
        return [(title, name) for title, when, name in split if when == moment]

    def moments(self) -> set[str]:
        """Moments of which there are samples."""
        grids = {split_title(title)[0] for title in (self.run.samples if self.run else ())}
        return grids | {moment for moments in self.completions.values() for moment in moments}


class Reader:
    """Runs by name, each read again only after its files have changed; from several threads, one at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, tuple[Signature, Look]] = OrderedDict()
        self._lock = threading.Lock()

    def looks(self, runs: Mapping[str, Path]) -> list[Look]:
        """Every run as it is now."""
        return [self.look(name, folder) for name, folder in runs.items()]

    def look(self, name: str, folder: Path) -> Look:
        """A run as it is now."""
        with self._lock:
            now = signature(folder)
            kept = self._kept.get(folder)
            if kept is None or kept[0] != now or kept[1].name != name:
                kept = now, read_look(name, folder)
            self._kept[folder] = kept
            self._kept.move_to_end(folder)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return kept[1]


def signature(folder: Path) -> Signature:
    """What differs after a file of the run was written, added or removed."""
    found = []
    for pattern in (*PARTS, *FILES):
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            try:
                if contained(folder, name):
                    status = path.stat()
                    found.append((name, status.st_mtime_ns, status.st_size))
            except OSError:  # it has vanished since it was listed, or is a link to nothing
                continue
    return tuple(found)


def read_look(name: str, folder: Path) -> Look:
    """Read a run. Files can vanish between listing and reading, so it is tried once more."""
    problem = ""
    for _ in range(2):
        try:
            samples = folder / "samples"
            completions = read_completions(samples) if contained(folder, "samples") else {}
            return Look(name, folder, read_run(folder), completions=completions)
        except FileNotFoundError as error:
            problem = f"{Path(error.filename or '').name} has vanished while it was read"
        except OSError as error:
            problem = f"{Path(error.filename or '').name} cannot be read: {error.strerror}"
        except ValueError as error:
            # Visitors need not know where on the disk the folder is.
            problem = printable(str(error).replace(f"{folder}/", ""))
            break
    return Look(name, folder, None, f"This run cannot be read: {problem}.")


def metrics_of(looks: Sequence[Look]) -> list[str]:
    """Names of all metrics, those of most runs first, rewards before others, then in order of appearance."""
    counts = Counter(name for look in looks if look.run for name in look.run.metric_names())

    def rank(name: str) -> tuple[bool, int]:
        return not (name.startswith("reward/") and name.endswith("/mean")), -counts[name]

    return sorted(counts, key=rank)[:METRICS]


def curve_points(look: Look, metric: str, seconds: bool, percent: int) -> Points:
    """The curve of a metric in a run: steps, or seconds since the start, and values; empty if it has none.

    ``percent`` is the length of the window of the running mean, in percent of the curve; 0 leaves values as they are.
    """
    if not look.run or metric not in look.run.metric_names():
        return []
    across, values = series(look.run.metrics, metric)
    if seconds:
        timed = "seconds" in look.run.metric_names()
        across = series(look.run.metrics, "seconds")[1] if timed else np.full_like(values, np.nan)
    x, y = thinned(across, running_mean(values, percent) if percent else values, POINTS)
    known = np.isfinite(x) & np.isfinite(y)
    return list(zip(x[known].astype(float).tolist(), y[known].tolist(), strict=True))


def differences(looks: Sequence[Look]) -> dict[str, list[str]]:
    """Settings by their flat names whose values differ among the runs, and the values; a dash where there is none."""
    settings = [dict(islice(flat(look.run.config), SETTINGS)) for look in looks if look.run]
    names = dict.fromkeys(name for one in settings for name in one)
    rows = {name: [one.get(name, "\N{EN DASH}") for one in settings] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}


def flat(value: Any, name: str = "", level: int = 0) -> Iterator[tuple[str, str]]:
    """Settings by flat names (``optim.lr``) with their values as text of a bounded length."""
    if isinstance(value, Mapping) and value and level < LEVELS:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key), level + 1)
    elif name:
        yield name[:LETTERS], "".join(islice(pieces(value), LETTERS))[:LETTERS]


def pieces(value: Any) -> Iterator[str]:
    """The parts of a value as text. A value can contain itself: take as many as are needed."""
    if isinstance(value, Mapping | list | tuple):
        yield "{" if isinstance(value, Mapping) else "["
        for number, item in enumerate(value):
            yield ", " if number else ""
            if isinstance(value, Mapping):
                yield f"{item}: "[:LETTERS]
                yield from pieces(value[item])
            else:
                yield from pieces(item)
        yield "}" if isinstance(value, Mapping) else "]"
    else:
        # An integer of thousands of digits cannot be written.
        yield "a very large number" if isinstance(value, int) and abs(value) > 1e300 else str(value)[:LETTERS]


def moments_of(looks: Sequence[Look]) -> list[str]:
    """The moments of which any of the runs has samples: before, steps, others, after."""

    def rank(moment: str) -> tuple[bool, bool, bool, int, str]:
        return moment != "before", moment == "after", not moment.startswith("step-"), len(moment), moment

    return sorted({moment for look in looks for moment in look.moments()}, key=rank)


def heading(moment: str, name: str = HELDOUT) -> str:
    """A moment in words."""
    step = moment.removeprefix("step-")
    words = f"step {int(step)}" if moment.startswith("step-") and step.isdecimal() and len(step) < 20 else moment
    return words if name == HELDOUT else f"{words}, prompts of {name}"
