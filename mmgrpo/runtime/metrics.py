"""The metrics of a run: one JSON object per optimizer step, appended to ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo.files import naming, write_text
from mmgrpo.runtime.distributed import largest, sum_by_name

Row = dict[str, Any]

PEAK = "ratio/max_minus_one"
"""Metric of a part of the rows: the largest |ratio - 1| of its decisions in a step, from the stored log-probs on."""


@dataclass
class Tally:
    """Sums over the parts of one optimizer step, on this rank."""

    added: list[tuple[str, Tensor]] = field(default_factory=list)
    """Summands by name, on the device."""
    gaps: list[Tensor] = field(default_factory=list)
    present: list[tuple[tuple[Tensor, Tensor], Tensor]] = field(default_factory=list)
    """The log-probs that a step on policy computed, in parts: their (rows, positions) in the batch and their values."""
    peaks: dict[str, list[Tensor]] = field(default_factory=dict)
    """The ratio gaps of each part of the rows, by the name of the metric."""

    def add(self, name: str, value: Tensor) -> None:
        """Add a number on the device, which is not waited for."""
        self.added.append((name, value.detach()))

    def compare(self, present: Tensor, stored: Tensor, entries: Tensor) -> None:
        """Measure the ratio gap of some entries."""
        gap = (torch.exp(present.detach() - stored) - 1).abs().masked_fill(~entries, 0.0)
        self.gaps += [gap.max()] if gap.numel() else []

    def join(self, part: Tally, name: str) -> None:
        """Add the sums of one part of the rows, together and under its name, and its largest |ratio - 1|."""
        self.added += [pair for key, value in part.added for pair in ((key, value), (f"{name}/{key}", value))]
        self.gaps += part.gaps
        self.present += part.present
        self.peaks[f"{name}/{PEAK}"] = part.gaps

    def read(self) -> tuple[dict[str, float], float]:
        """The sums by name, and the largest |ratio - 1| of present and stored log-probs of decisions that the policy
        drew in this round: one copy to the host."""
        scalars = [value for _, value in self.added] + self.gaps
        scalars = [value.float() if value.device.type == "mps" else value.double() for value in scalars]
        values, sums = torch.stack(scalars).tolist() if scalars else [], dict[str, float]()
        for (name, _), value in zip(self.added, values):
            sums[name] = sums.get(name, 0.0) + value
        return sums, max([0.0, *values[len(self.added) :]])

    def sum_named(self, names: Sequence[str], accelerator: Accelerator) -> tuple[dict[str, float], float]:
        """``read`` with the sums over all ranks of those that are named; others are this rank's."""
        sums, gap = self.read()
        peaks = {name: largest(float(max([0.0, *gaps])), accelerator) for name, gaps in self.peaks.items()}
        return sums | sum_by_name(sums, names, accelerator) | peaks, gap

    @property
    def sums(self) -> dict[str, float]:
        """The sums by name; each access is a copy to the host."""
        return self.read()[0]

    @property
    def ratio_gap(self) -> float:
        """The largest |ratio - 1|; each access is a copy to the host."""
        return self.read()[1]


class MetricsLog:
    """Appends to ``metrics.jsonl`` in a folder; every line is in the file before ``write`` returns.

    The file is opened for each line, so a run which ends by an error leaves none open. With the id of a run every
    line has it as ``run``, and a file with lines of another run is an error.
    """

    def __init__(self, folder: str | Path, decay: float = 0.9, run: str = "") -> None:
        self.path: Final = Path(folder) / "metrics.jsonl"
        self._run = {"run": run} if run else {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._decay = decay
        self._averages: dict[str, tuple[float, float]] = {}
        if self.path.exists():
            _repair(self.path)
            foreign = {str(row.get("run")) for row in read_metrics(self.path)} - {run}
            if run and foreign:
                raise ValueError(
                    f"{self.path}: got lines of run {sorted(foreign)[0]}, expected {run} as the folder; move it away"
                )
        self.path.touch()

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Append the metrics of one optimizer step; NaN and infinities are written as null."""
        row = {"step": step, **self._run, **{name: _finite(value) for name, value in values.items()}}
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        for name, value in row.items():
            if isinstance(value, float | int) and name != "step":
                total, weight = self._averages.get(name, (0.0, 0.0))
                self._averages[name] = (self._decay * total + value, self._decay * weight + 1.0)

    def truncate(self, step: int) -> None:
        """Remove the lines after ``step``: a run that resumes there writes them again. Missing lines are reported."""
        rows = [row for row in read_metrics(self.path) if row["step"] <= step]
        if lost := sorted(set(range(1, step + 1)) - {row["step"] for row in rows}):
            print(f"{self.path}: the lines of {len(lost)} steps are lost, from step {lost[0]} on", flush=True)
        write_text(self.path, _lines(rows))
        self._averages.clear()

    def flush(self) -> None:
        """Flush to disk, so no checkpoint is ahead of its metrics after a loss of power."""
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())

    def average(self, name: str) -> float:
        """The exponentially weighted mean of the finite values of a metric; NaN if there are none.

        sum_i decay^(n-i) x_i / sum_i decay^(n-i), without bias towards the first value.
        """
        total, weight = self._averages.get(name, (math.nan, 1.0))
        return total / weight

    def summary(self, *names: str) -> str:
        """``name average`` pairs for a progress bar; ``reward/ocr/mean`` is called ``ocr``."""
        return "  ".join(f"{name.removesuffix('/mean').rsplit('/', 1)[-1]} {self.average(name):.4g}" for name in names)


def read_metrics(path: str | Path) -> list[Row]:
    """All rows. A partial last line (of a killed run) is dropped; any other invalid line is a ValueError."""
    path = Path(path)
    content = path.read_text(encoding="utf-8")
    *complete, partial = content.split("\n")
    rows = [_row(line, f"{path}:{number}") for number, line in enumerate(complete, start=1) if line.strip()]
    with suppress(ValueError):
        rows.append(_row(partial, f"{path}:{len(complete) + 1}"))
    return rows


def _row(line: str, place: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON ({error.msg}); repair or remove this line") from error
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise ValueError(
            f'{place}: got {line:.80}, expected an object with an integer "step", e.g. {{"step": 3, "loss": 0.1}}'
        )
    return row


def _repair(path: Path) -> None:
    """Terminate a partial last line, or remove it if it is not JSON, so the next row starts on a new line."""
    content = path.read_text(encoding="utf-8")
    if content and not content.endswith("\n"):
        write_text(path, _lines(read_metrics(path)))


def _lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _finite(value: Any) -> Any:
    """A plain JSON value: scalar tensors as numbers, non-finite numbers as None, also inside lists and mappings."""
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def peak_memory_gib(device: torch.device) -> float:
    """Peak memory so far in GiB: of the CUDA device, or of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
