"""The contents of a run folder, for a report. The folder may be incomplete, and is untrusted input.

    config.yaml              the configuration
    metrics.jsonl            one line per optimizer step
    evaluations/<title>.json values per held-out prompt: before, after, step-000050, ...
    samples/<title>.png      grids of samples, if they are pictures
    samples/<title>.jsonl    completions, if they are texts or sounds (mmgrpo/report/completions.py)
    summary.json             written only at the end of a run

Links to outside the folder are not followed; the report lists them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.figures import is_number
from mmgrpo.report.media import contained
from mmgrpo.report.statistics import bootstrap_mean
from mmgrpo.runtime.metrics import read_metrics

SIDES = ("before", "after", "difference")
PARTS = ("config.yaml", "metrics.jsonl", "summary.json", "evaluations", "samples")
FILES = ("evaluations/*.json", "samples/*.png", "samples/*.jsonl")


@dataclass(frozen=True)
class RunFolder:
    """The parts of a run folder, every one of which may be missing."""

    name: str
    config_text: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    samples: Mapping[str, str]
    """Grids of pictures: title to file name in ``samples``; ``before`` is first for each file of prompts."""
    rates: Sequence[Mapping[str, Any]]
    """``step`` and the held-out error rates of every evaluation, ordered by step."""
    evaluation: Mapping[str, Any]
    """``before``, ``after``, ``difference`` to reward name to mean, low, high, n."""
    links_out: Sequence[str] = field(default=())
    """Names of files that are links to outside the folder, which are not read."""

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return bool(self.summary)

    @property
    def last_step(self) -> int:
        """The last recorded optimizer step, or 0."""
        return self.metrics[-1]["step"] if self.metrics else 0

    def metric_names(self) -> list[str]:
        """Metrics whose values are all numbers or null, in order of appearance."""
        names = dict.fromkeys(name for row in self.metrics for name in row if name != "step")
        return [name for name in names if all(_is_metric(row.get(name)) for row in self.metrics)]


def read_run(folder: Path) -> RunFolder:
    """Read a run folder."""
    config_text = _text(folder, "config.yaml")
    config = mapping(yaml.safe_load(config_text) or {}, folder / "config.yaml")
    summary = mapping(json.loads(_text(folder, "summary.json") or "{}"), folder / "summary.json")
    metrics = read_metrics(folder / "metrics.jsonl") if _files(folder, "metrics.jsonl") else []
    name = config.get("name")
    return RunFolder(
        name=name if isinstance(name, str) and name else folder.resolve().name,
        config_text=config_text,
        config=config,
        metrics=metrics,
        summary=summary,
        samples={path.stem: path.name for path in sorted(_files(folder, "samples/*.png"), key=_order)},
        rates=_rates(folder),
        evaluation=mapping(summary.get("eval") or _intervals(folder), "summary.json: eval"),
        links_out=_links_out(folder),
    )


def mapping(value: Any, place: str | Path) -> Mapping[str, Any]:
    """The value, if it is a mapping; else a ValueError that names ``place``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}: got {str(value)[:80]!r}, expected a mapping")
    return value


def _intervals(folder: Path) -> dict[str, dict[str, Any]]:
    """Means and intervals from the per-prompt values of a run without summary.json."""
    intervals: dict[str, dict[str, Any]] = {}
    for title in ("before", "after"):
        if text := _text(folder, f"evaluations/{title}.json"):
            place = f"evaluations/{title}.json"
            values = mapping(mapping(json.loads(text), place).get("values"), f"{place}: values")
            columns = {name: _array(column) for name, column in values.items()}
            finite = {name: column[np.isfinite(column)] for name, column in columns.items()}
            intervals[title] = {
                name: bootstrap_mean(column).as_dict() for name, column in finite.items() if column.size
            }
    return intervals


def _rates(folder: Path) -> list[dict[str, Any]]:
    """Held-out corpus error rates, sum of errors / sum of units, at every evaluated step."""
    rates: dict[int, dict[str, float]] = {}
    for path in _files(folder, "evaluations/*.json"):
        moment, name = split_title(path.stem)
        if name != HELDOUT or not (moment in ("before", "after") or moment.startswith("step-")):
            continue
        evaluation = mapping(json.loads(path.read_text("utf-8")), path)
        step = evaluation.get("step")
        if not isinstance(step, int):
            raise ValueError(f"{path}: 'step': got {str(step)[:80]!r}, expected an integer")
        for rate, counts in mapping(evaluation.get("counts", {}), f"{path}: counts").items():
            counts = mapping(counts, f"{path}: counts: {rate}")
            if units := np.nansum(_array(counts.get("units"))):
                rates.setdefault(step, {})[rate] = float(np.nansum(_array(counts.get("errors"))) / units)
    return [{"step": step, **rates[step]} for step in sorted(rates)]


def _order(path: Path) -> tuple[str, int, str]:
    """Sort key: file of prompts, then before, steps in between, after."""
    moment, name = split_title(path.stem)
    return name, {"before": 0, "after": 2}.get(moment, 1), moment


def _array(values: Any) -> npt.NDArray[np.float64]:
    """The numbers of a list, with NaN in the place of other values."""
    values = values if isinstance(values, list) else []
    return np.array([value if is_number(value) else np.nan for value in values], dtype=np.float64)


def _is_metric(value: Any) -> bool:
    return value is None or isinstance(value, bool) or is_number(value)


def _files(folder: Path, pattern: str) -> list[Path]:
    """Files of the folder, without links to outside it."""
    return [
        path
        for path in sorted(folder.glob(pattern))
        if path.is_file() and contained(folder, path.relative_to(folder).as_posix())
    ]


def _links_out(folder: Path) -> list[str]:
    """Parts of a run folder that are links to outside it: subfolders, or files in them."""
    out: list[str] = []
    for pattern in (*PARTS, *FILES):
        names = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
        out += [name for name in names if name.split("/")[0] not in out and not contained(folder, name)]
    return out


def _text(folder: Path, name: str) -> str:
    path = contained(folder, name)
    return path.read_text(encoding="utf-8") if path and path.is_file() else ""
