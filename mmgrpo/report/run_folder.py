"""The contents of a run folder, for a report. The folder may be incomplete, and is untrusted input.

    config.yaml              the configuration
    metrics.jsonl            one line per optimizer step
    evaluations/<title>.json values per held-out prompt: before, after, step-000050, ...
    samples/<title>.png      grids of samples, if they are images; of clips strips of frames, and next to them
    samples/<title>.webp     the same grid, which moves
    groups/step-000040/      a training group: group.json and its media (mmgrpo/report/groups.py)
    samples/<title>.jsonl    completions, if they are texts or recordings (mmgrpo/report/completions.py)
    prompts.jsonl            the ledger: numbers per prompt (mmgrpo/report/ledger.py)
    alarms.json              what trains nothing, if anything (mmgrpo/report/idle.py)
    summary.json             written only at the end of a run

Links to outside the folder are not followed; the report lists them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.figures import is_number
from mmgrpo.report.hacking import Alarm, Measured, alarms
from mmgrpo.report.idle import Idle, read_alarms
from mmgrpo.report.media import contained
from mmgrpo.report.untrusted import (
    MAX_CONFIG,
    MAX_JSON,
    MAX_METRICS,
    brief,
    mapping,
    parse_json,
    parse_yaml,
    printable,
    read_text,
)
from mmgrpo.statistics import bootstrap_mean

SIDES = ("before", "after", "difference")
PARTS = (
    *("config.yaml", "metrics.jsonl", "prompts.jsonl", "alarms.json", "summary.json"),
    *("evaluations", "samples", "groups"),
)
FILES = ("evaluations/*.json", "samples/*.png", "samples/*.webp", "samples/*.jsonl", "groups/*")

MAX_CELLS = 50_000_000
"""Rows times names in metrics.jsonl."""
MAX_VALUES = 1_000_000
"""Numbers in an evaluation whose intervals are computed here."""
DRAWS = 500_000_000
"""Draws of all bootstraps of an evaluation; from 50,000 values on there are fewer than 10,000 resamples."""
LAST_STEP = 2**53
"""Larger steps are not exact as floats."""


@dataclass(frozen=True)
class RunFolder:
    """The parts of a run folder, every one of which may be missing."""

    name: str
    config_text: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    samples: Mapping[str, str]
    """Grids of images or clips: title to file name in ``samples``; ``before`` is first for each file of prompts."""
    rates: Sequence[Mapping[str, Any]]
    """``step`` and the held-out error rates of every evaluation, ordered by step."""
    evaluation: Mapping[str, Any]
    """``before``, ``after``, ``difference`` to reward name to mean, low, high, n."""
    alarms: Sequence[Idle | Alarm]
    """What trains nothing, then held-out rewards that fell while a trained one rose, by step."""
    links_out: Sequence[str]
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
        others = {name for row in self.metrics for name, value in row.items() if not _is_metric(value)}
        names = dict.fromkeys(name for row in self.metrics for name in row if name != "step" and name not in others)
        return list(names)


def read_run(folder: Path) -> RunFolder:
    """Read a run folder."""
    config_text = read_text(folder, "config.yaml", MAX_CONFIG)
    config = mapping(parse_yaml(config_text, folder / "config.yaml") or {}, folder / "config.yaml")
    summary = mapping(_json(folder, "summary.json", "{}"), folder / "summary.json")
    name = config.get("name")
    return RunFolder(
        name=name if isinstance(name, str) and name else folder.resolve().name,
        config_text=config_text,
        config=config,
        metrics=_metrics(folder),
        summary=summary,
        # Of clips there are both: a grid that moves replaces the still one.
        samples={p.stem: p.name for s in ("png", "webp") for p in sorted(_files(folder, f"samples/*.{s}"), key=_order)},
        rates=_rates(folder),
        evaluation=mapping(summary.get("eval") or _intervals(folder), "summary.json: eval"),
        alarms=[*read_alarms(folder), *alarms(read_measured(folder))],
        links_out=_links_out(folder),
    )


def _json(folder: Path, name: str, absent: str) -> Any:
    return parse_json(read_text(folder, name, MAX_JSON) or absent, folder / name)


def _metrics(folder: Path) -> list[Mapping[str, Any]]:
    """The rows of metrics.jsonl. A partial last line, of a run that was killed, is left out."""
    path = folder / "metrics.jsonl"
    *complete, partial = read_text(folder, path.name, MAX_METRICS).split("\n")
    rows = [_metrics_row(line, f"{path}:{n}") for n, line in enumerate(complete, start=1) if line.strip()]
    if partial.strip():
        try:
            rows.append(_metrics_row(partial, f"{path}:{len(complete) + 1}"))
        except ValueError:
            return rows
    names = len({name for row in rows for name in row})
    if len(rows) * names > MAX_CELLS:
        raise ValueError(
            f"{printable(path)}: got {len(rows):,} rows and {names:,} names, expected at most {MAX_CELLS:,} values; "
            "shorten it"
        )
    return rows


def _metrics_row(line: str, place: str) -> Mapping[str, Any]:
    row = parse_json(line, place)
    if not isinstance(row, dict):
        raise ValueError(f"{printable(place)}: got {brief(row)}, expected an object with the metrics of a step")
    _step(row, place)
    return row


def _step(row: Mapping[str, Any], place: str | Path) -> int:
    step = row.get("step")
    if not isinstance(step, int) or not 0 <= step < LAST_STEP:
        raise ValueError(f"{printable(place)}: 'step': got {brief(step)}, expected an integer of at least 0")
    return step


def _intervals(folder: Path) -> dict[str, dict[str, Any]]:
    """Means and intervals from the per-prompt values of a run without summary.json."""
    return {
        title: dict(_means(mapping(evaluation, place).get("values"), f"{place}: values"))
        for title in ("before", "after")
        if (evaluation := _json(folder, place := f"evaluations/{title}.json", "null")) is not None
    }


def _means(values: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mean of every column without NaN, and its interval."""
    columns = {name: _array(column) for name, column in mapping(values, place).items()}
    if (total := sum(column.size for column in columns.values())) > MAX_VALUES:
        raise ValueError(f"{place}: got {total:,} numbers, expected at most {MAX_VALUES:,}; shorten it")
    resamples = min(10_000, DRAWS // max(1, total))
    for name, column in columns.items():
        if (finite := column[np.isfinite(column)]).size:
            yield name, bootstrap_mean(finite, resamples).as_dict()


def _rates(folder: Path) -> list[dict[str, Any]]:
    """Held-out corpus error rates, sum of errors / sum of units, at every evaluated step."""
    rates: dict[int, dict[str, float]] = {}
    for path in _files(folder, "evaluations/*.json"):
        moment, name = split_title(path.stem)
        if name != HELDOUT or not (moment in ("before", "after") or moment.startswith("step-")):
            continue
        evaluation = mapping(_json(folder, f"evaluations/{path.name}", "null"), path)
        step = _step(evaluation, path)
        for rate, counts in mapping(evaluation.get("counts", {}), f"{path}: counts").items():
            counts = mapping(counts, f"{path}: counts: {rate}")
            if units := np.nansum(_array(counts.get("units"))):
                rates.setdefault(step, {})[rate] = float(np.nansum(_array(counts.get("errors"))) / units)
    return [{"step": step, **rates[step]} for step in sorted(rates)]


@dataclass(frozen=True)
class Recorded:
    """An evaluation of a run folder."""

    step: int
    prompts: Sequence[str]
    """Ids of its prompts, in the order of the values."""
    values: Mapping[str, npt.NDArray[np.float64]]
    """By reward and prompt, NaN where none could be scored."""
    directions: Mapping[str, float]
    """The rewards that the run trains on: 1 for those that are to rise, -1 for those that are to fall."""


def read_evaluation(folder: Path, title: str) -> Recorded | None:
    """The evaluation ``before``, ``after``, ``step-000050``, ... of a run; None where it is not there."""
    path = folder / "evaluations" / f"{title}.json"
    if not path.is_file():
        return None
    record = mapping(_json(folder, f"evaluations/{path.name}", "null"), path)
    ids = record.get("prompts")
    return Recorded(
        step=_step(record, path),
        prompts=[str(one) for one in ids] if isinstance(ids, list) else [],
        values={n: _array(v) for n, v in mapping(record.get("values"), f"{path}: values").items()},
        directions={
            n: -1.0 if is_number(d) and d < 0 else 1.0
            for n, d in mapping(record.get("trained", {}), f"{path}: trained").items()
        },
    )


def read_measured(folder: Path) -> list[Measured]:
    """The evaluations of the held-out prompts that say which rewards are trained on, if all are of the same prompts."""
    found, ids, total = list[Measured](), None, 0
    for path in _files(folder, "evaluations/*.json"):
        moment, name = split_title(path.stem)
        if name != HELDOUT or not (moment in ("before", "after") or moment.startswith("step-")):
            continue
        one = read_evaluation(folder, path.stem)
        if one is None:
            continue
        total += sum(column.size for column in one.values.values())
        ids = one.prompts if ids is None else ids
        if one.directions and one.prompts == ids and total <= MAX_VALUES:
            found.append(Measured(one.step, one.values, one.directions, final=moment == "after"))
    return found


def print_alarms(folder: Path, step: int) -> None:
    """Print the alarms of the evaluation at ``step``, one line each."""
    for alarm in alarms(read_measured(folder)):
        if alarm.step == step:
            print(alarm, flush=True)


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
