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
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.figures import is_number
from mmgrpo.report.hacking import Alarm, Measured, alarms
from mmgrpo.report.idle import Idle, read_alarms
from mmgrpo.report.media import resolve_within
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
from mmgrpo.statistics import Interval, bootstrap_mean, bootstrap_ratio, paired_ratio_difference

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
RESAMPLES = 2_000
"""Largest number of resamples of an interval in a curve."""
EVALUATIONS = 60
"""Largest number of evaluations in a curve."""
LAST_STEP = 2**53
"""Larger steps are not exact as floats."""


@dataclass(frozen=True)
class Evaluated:
    """The results on the held-out prompts at one step: mean, low, high and n, where the interval is that of the paired
    change since the evaluation before training."""

    step: int
    title: str
    """``before``, ``step-000050``, ``after``."""
    rewards: Mapping[str, Mapping[str, Any]]
    rates: Mapping[str, Mapping[str, Any]]
    """Corpus error rates: sum of errors / sum of units."""


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
    history: Sequence[Evaluated]
    """The evaluations of the held-out prompts, by step."""
    evaluation: Mapping[str, Any]
    """``before``, ``after``, ``difference`` to reward name to mean, low, high, n. Before the run has ended, ``after``
    is the latest evaluation."""
    directions: Mapping[str, float]
    """The rewards that the run trains on: 1 for those that are to rise, -1 for those that are to fall; empty where no
    evaluation states them."""
    alarms: Sequence[Idle | Alarm]
    """What trains nothing, then held-out rewards that fell while a trained one rose, by step."""
    links_out: Sequence[str]
    """Names of files that are links to outside the folder, which are not read."""

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return bool(self.summary)

    @property
    def latest(self) -> str:
        """The name of the later side of ``evaluation``: ``after``, or the step of a run that has not ended."""
        steps = [evaluation.step for evaluation in self.history if evaluation.title != "before"]
        return "after" if self.finished or not steps or self.history[-1].title == "after" else f"step {steps[-1]}"

    @property
    def last_step(self) -> int:
        """The last recorded optimizer step, or 0."""
        return self.metrics[-1]["step"] if self.metrics else 0

    def metric_names(self) -> list[str]:
        """Metrics whose values are all numbers or null, in order of appearance."""
        return self._metric_names

    @cached_property
    def _metric_names(self) -> list[str]:
        others = {name for row in self.metrics for name, value in row.items() if not _is_metric(value)}
        names = dict.fromkeys(name for row in self.metrics for name in row if name != "step" and name not in others)
        return list(names)


def read_run(folder: Path) -> RunFolder:
    """Read a run folder."""
    config_text = read_text(folder, "config.yaml", MAX_CONFIG)
    config = mapping(parse_yaml(config_text, folder / "config.yaml") or {}, folder / "config.yaml")
    summary = mapping(_json(folder, "summary.json", "{}"), folder / "summary.json")
    name, recorded = config.get("name"), _read_evaluations(folder)
    return RunFolder(
        name=name if isinstance(name, str) and name else folder.resolve().name,
        config_text=config_text,
        config=config,
        metrics=_metrics(folder),
        summary=summary,
        # Of clips there are both: a grid that moves replaces the still one.
        samples={p.stem: p.name for s in ("png", "webp") for p in sorted(_files(folder, f"samples/*.{s}"), key=_order)},
        history=_history(recorded),
        evaluation=mapping(summary.get("eval") or _compare_ends(recorded), "summary.json: eval"),
        directions=next(
            (evaluation.directions for evaluation in reversed(list(recorded.values())) if evaluation.directions), {}
        ),
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


def _read_evaluations(folder: Path) -> dict[str, Recorded]:
    """The evaluations of the held-out prompts by title, in their order; of many, evenly chosen ones."""
    titles = [path.stem for path in sorted(_files(folder, "evaluations/*.json"), key=_order) if _held_out(path.stem)]
    first = read_evaluation(folder, titles[0]) if titles else None
    most = min(EVALUATIONS, max(2, MAX_VALUES // max(1, first.size))) if first else 0
    if len(titles) > most:
        titles = [titles[round(i * (len(titles) - 1) / (most - 1))] for i in range(most)]
    recorded = {title: evaluation for title in titles if (evaluation := read_evaluation(folder, title)) is not None}
    for title, evaluation in recorded.items():
        if evaluation.size > MAX_VALUES:
            place = printable(folder / "evaluations" / f"{title}.json")
            raise ValueError(
                f"{place}: values: got {evaluation.size:,} numbers, expected at most {MAX_VALUES:,}; shorten it"
            )
    return recorded


def _held_out(title: str) -> bool:
    """Whether an evaluation is one of the held-out prompts while the run trained."""
    moment, name = split_title(title)
    return name == HELDOUT and (moment in ("before", "after") or moment.startswith("step-"))


def _history(recorded: Mapping[str, Recorded]) -> list[Evaluated]:
    """The results of every evaluation, by step.

    Their intervals are those of the paired change since the evaluation ``before``, around the mean; of that one itself,
    and where its prompts were others, those of the mean.
    """
    total = sum(evaluation.size for evaluation in recorded.values())
    resamples, before = min(RESAMPLES, DRAWS // max(1, total)), recorded.get("before")
    history = []
    for title, evaluation in recorded.items():
        first = before if before is not evaluation and before and before.prompts == evaluation.prompts else None
        rewards, rates = dict[str, Any](), dict[str, Any]()
        for name, values in evaluation.values.items():
            earlier = first.values.get(name) if first else None
            finite = values[np.isfinite(values)]
            if earlier is not None and len(earlier) == len(values) and finite.size:
                gains = (values - earlier)[np.isfinite(values - earlier)]
                rewards[name] = _around(float(finite.mean()), bootstrap_mean(gains, resamples)) if gains.size else {}
            elif finite.size:
                rewards[name] = bootstrap_mean(finite, resamples).as_dict()
        for rate, (errors, units) in evaluation.counts.items():
            known = np.isfinite(errors) & (units >= 0)
            if not units[known].any():
                continue
            earlier = first.counts.get(rate) if first else None
            if (
                earlier is not None
                and len(earlier[0]) == len(errors)
                and (both := known & np.isfinite(earlier[0])).any()
            ):
                change = paired_ratio_difference(earlier[0][both], errors[both], units[both], resamples)
                rates[rate] = _around(float(errors[known].sum() / units[known].sum()), change)
            else:
                rates[rate] = bootstrap_ratio(errors[known], units[known], resamples).as_dict()
        history.append(Evaluated(evaluation.step, title, {name: e for name, e in rewards.items() if e}, rates))
    return sorted(history, key=lambda evaluation: evaluation.step)


def _around(mean: float, change: Interval) -> dict[str, Any]:
    """The interval of a change, moved to stand around the mean that it led to."""
    return {
        "mean": mean,
        "low": mean + change.low - change.mean,
        "high": mean + change.high - change.mean,
        "n": change.n,
    }


def _compare_ends(recorded: Mapping[str, Recorded]) -> dict[str, dict[str, Any]]:
    """``before`` and ``after``, the latest, of a run without summary.json, and their paired difference."""
    before = recorded.get("before")
    after = next((evaluation for title, evaluation in reversed(list(recorded.items())) if title != "before"), None)
    resamples = min(10_000, DRAWS // max(1, sum(side.size for side in (before, after) if side)))
    sides = {
        title: dict(_means(side.values, resamples)) for title, side in (("before", before), ("after", after)) if side
    }
    if before and after and before.prompts == after.prompts:
        shared = [
            name
            for name in before.values
            if name in after.values and len(before.values[name]) == len(after.values[name])
        ]
        gains = {name: after.values[name] - before.values[name] for name in shared}
        sides["difference"] = dict(_means(gains, resamples))
    return sides


def _means(columns: Mapping[str, npt.NDArray[np.float64]], resamples: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mean of every column without NaN, and its interval."""
    for name, column in columns.items():
        if (finite := column[np.isfinite(column)]).size:
            yield name, bootstrap_mean(finite, resamples).as_dict()


@dataclass(frozen=True)
class Recorded:
    """An evaluation of a run folder."""

    step: int
    prompts: Sequence[str]
    """Ids of its prompts, in the order of the values."""
    values: Mapping[str, npt.NDArray[np.float64]]
    """By reward and prompt, NaN where none could be scored."""
    counts: Mapping[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
    """By error rate the errors and the units of each prompt, of equal lengths."""
    directions: Mapping[str, float]
    """The rewards that the run trains on: 1 for those that are to rise, -1 for those that are to fall."""

    @property
    def size(self) -> int:
        """Numbers in it."""
        return sum(map(len, self.values.values())) + sum(len(errors) for errors, _ in self.counts.values())


def read_evaluation(folder: Path, title: str) -> Recorded | None:
    """The evaluation ``before``, ``after``, ``step-000050``, ... of a run; None where it is not there."""
    path = folder / "evaluations" / f"{title}.json"
    if not path.is_file():
        return None
    record = mapping(_json(folder, f"evaluations/{path.name}", "null"), path)
    ids, counts = record.get("prompts"), mapping(record.get("counts", {}), f"{path}: counts")
    return Recorded(
        step=_step(record, path),
        prompts=[str(prompt) for prompt in ids] if isinstance(ids, list) else [],
        values={n: _array(v) for n, v in mapping(record.get("values"), f"{path}: values").items()},
        counts={rate: _counts(value, f"{path}: counts: {rate}") for rate, value in counts.items()},
        directions={
            n: -1.0 if is_number(d) and d < 0 else 1.0
            for n, d in mapping(record.get("trained", {}), f"{path}: trained").items()
        },
    )


def _counts(value: Any, place: str) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Errors and units of an error rate, cut to the shorter."""
    pair = [_array(mapping(value, place).get(name)) for name in ("errors", "units")]
    shorter = min(map(len, pair))
    return pair[0][:shorter], pair[1][:shorter]


def read_measured(folder: Path) -> list[Measured]:
    """The evaluations of the held-out prompts that say which rewards are trained on, if all are of the same prompts."""
    measured, ids, total = list[Measured](), None, 0
    for path in _files(folder, "evaluations/*.json"):
        evaluation = read_evaluation(folder, path.stem) if _held_out(path.stem) else None
        if evaluation is None:
            continue
        total += sum(column.size for column in evaluation.values.values())
        ids = evaluation.prompts if ids is None else ids
        if evaluation.directions and evaluation.prompts == ids and total <= MAX_VALUES:
            measured.append(
                Measured(evaluation.step, evaluation.values, evaluation.directions, final=path.stem == "after")
            )
    return measured


def print_alarms(folder: Path, step: int) -> None:
    """Print the alarms of the evaluation at ``step``, one line each."""
    for alarm in alarms(read_measured(folder)):
        if alarm.step == step:
            print(alarm, flush=True)


def _order(path: Path) -> tuple[str, int, int, str]:
    """Sort key: file of prompts, then before, steps in between, after."""
    moment, name = split_title(path.stem)
    return name, {"before": 0, "after": 2}.get(moment, 1), len(moment), moment


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
        if path.is_file() and resolve_within(folder, path.relative_to(folder).as_posix())
    ]


def _links_out(folder: Path) -> list[str]:
    """Parts of a run folder that are links to outside it: subfolders, or files in them."""
    out: list[str] = []
    for pattern in (*PARTS, *FILES):
        names = sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))
        out += [name for name in names if name.split("/")[0] not in out and not resolve_within(folder, name)]
    return out
