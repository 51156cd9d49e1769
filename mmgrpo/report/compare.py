"""Several runs beside each other: held-out means over their seeds, with intervals that are paired by prompt.

Runs that differ in nothing but their seed are one row. With S seeds and P prompts, x[s, p] before and y[s, p] after
training:

    gain      mean over s and p of y - x; its interval is of the bootstrap over prompts of the means over seeds
    by seed   the mean over p of y - x, seed by seed: what the interval does not show is how far seeds differ
    against   mean over s of y, minus that of the first row, prompt by prompt; where both have the same prompts

A seed counts if its run has ended. The folders are untrusted input, as for reports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.config.reading import flatten
from mmgrpo.report.run_folder import read_evaluation, read_measured
from mmgrpo.report.terminal import style
from mmgrpo.report.untrusted import MAX_CONFIG, MAX_JSON, mapping, parse_json, parse_yaml, printable, read_text
from mmgrpo.statistics import Interval, best_of, bootstrap_mean
from mmgrpo.terminal import style_text
from mmgrpo.terminal import table as terminal_table

WHICH = {
    "seed",
    "name",
    "output_dir",
    "overwrite",
    "resume",
    "resume_from",
    "dry_run",
    "strict",
    "trackers",
    "save_every",
}
"""Settings in which the runs of a row may differ."""


@dataclass(frozen=True)
class Run:
    """An ended run: its settings, and its held-out rewards before and after training."""

    folder: Path
    seed: int
    settings: Mapping[str, Any]
    """By their names with dots, without those of ``WHICH``."""
    prompts: Sequence[str]
    """Ids of the held-out prompts, in the order of the values."""
    before: Mapping[str, npt.NDArray[np.float64]]
    after: Mapping[str, npt.NDArray[np.float64]]
    directions: Mapping[str, float]
    """The rewards that are trained on: 1 for those that are to rise, -1 for those that are to fall."""
    curve: Mapping[int, Mapping[str, float]]
    """Held-out means at each evaluated step."""
    samples: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    """Reward to the values [P, samples] that ``mmgrpo evaluate --samples`` measured, if it did."""


@dataclass(frozen=True)
class Row:
    """One reward of the runs that differ in their seed alone."""

    label: str
    reward: str
    seeds: Sequence[int]
    before: float
    after: float
    gain: Interval
    by_seed: Sequence[float]
    against: Interval | None
    """The difference to the first row; None for the first one, and where the prompts are others."""
    direction: float
    """1 for a reward that is to rise, -1 for one that is to fall, 0 for one that is not trained on."""
    passes: Mapping[int, float]
    """k to pass@k, of evaluations with several samples and values 0 and 1; empty without."""


def read_ended(folder: Path) -> Run:
    """A run that has ended; ValueError or FileNotFoundError that names the folder for any other."""
    if not (folder / "config.yaml").is_file():
        raise FileNotFoundError(f"{printable(folder)} is no run folder: it has no config.yaml")
    config = mapping(parse_yaml(read_text(folder, "config.yaml", MAX_CONFIG), folder / "config.yaml") or {}, folder)
    sides = {title: read_evaluation(folder, title) for title in ("before", "after")}
    missing = [title for title, side in sides.items() if side is None]
    if missing:
        why = "has not ended; finish it with --resume" if (folder / "metrics.jsonl").is_file() else "was not evaluated"
        raise ValueError(f"{printable(folder)} {why} (evaluations/{missing[0]}.json is missing)")
    before, after = sides["before"], sides["after"]
    assert before is not None and after is not None
    if before.prompts != after.prompts:
        raise ValueError(f"{printable(folder)} was evaluated on other prompts before training than after it")
    seed = config.get("seed")
    return Run(
        folder=folder,
        seed=seed if isinstance(seed, int) else 0,
        settings={name: value for name, value in flatten(config).items() if name.split(".")[0] not in WHICH},
        prompts=after.prompts,
        before=before.values,
        after=after.values,
        directions=after.directions,
        curve={point.step: {n: _mean(values) for n, values in point.values.items()} for point in read_measured(folder)},
        samples=_samples(folder, after.prompts),
    )


def _samples(folder: Path, prompts: Sequence[str]) -> dict[str, list[list[float]]]:
    """The samples of ``evaluation.json``, if it is there, with several samples of the same prompts."""
    record = mapping(parse_json(read_text(folder, "evaluation.json", MAX_JSON) or "{}", folder / "evaluation.json"), "")
    rows = [row for row in record.get("values", ()) if isinstance(row, Mapping)]
    if record.get("samples", 1) == 1 or [row.get("id") for row in rows] != [*prompts]:
        return {}
    names = [name for name, values in rows[0].items() if isinstance(values, list)] if rows else []
    return {name: [row[name] for row in rows] for name in names}


def compare(runs: Sequence[Run]) -> list[Row]:
    """The rows of all rewards that every run has, those that are trained on first."""
    groups = group_by_settings(runs)
    shared = [name for name in runs[0].after if all(name in run.after and name in run.before for run in runs)]
    if not shared:
        raise ValueError("the runs have no reward in common: each was evaluated with others")
    trained = {name for run in runs for name in run.directions}
    rows = []
    for reward in sorted(shared, key=lambda name: name not in trained):
        first = next(iter(groups.values()))
        for label, members in groups.items():
            rows.append(_row(label, reward, members, first if members is not first else None))
    return rows


def group_by_settings(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed alone, by a label of the settings in which they differ from the others."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(json.dumps(run.settings, sort_keys=True, default=str), []).append(run)
    for members in kinds.values():
        seeds = [run.seed for run in members]
        if twice := next((run for run in members if seeds.count(run.seed) > 1), None):
            raise ValueError(
                f"{printable(twice.folder)}: another of the runs has its settings and its seed {twice.seed}; name each "
                "run once"
            )
    names = {name for members in kinds.values() for name in members[0].settings}
    apart = [name for name in sorted(names) if len({repr(m[0].settings.get(name)) for m in kinds.values()}) > 1]
    return {
        ", ".join(f"{name}={members[0].settings.get(name)}" for name in apart) or members[0].folder.name: members
        for members in kinds.values()
    }


def _row(label: str, reward: str, runs: Sequence[Run], first: Sequence[Run] | None) -> Row:
    gains = np.stack([run.after[reward] - run.before[reward] for run in runs])
    after = _over_seeds([run.after[reward] for run in runs])
    against = None
    if first is not None and {tuple(run.prompts) for run in (*runs, *first)} == {tuple(runs[0].prompts)}:
        against = _interval(after - _over_seeds([run.after[reward] for run in first]))
    return Row(
        label=label,
        reward=reward,
        seeds=[run.seed for run in runs],
        before=_mean(np.concatenate([run.before[reward] for run in runs])),
        after=_mean(after),
        gain=_interval(_over_seeds([*gains])),
        by_seed=[_mean(row) for row in gains],
        against=against,
        direction=next((run.directions[reward] for run in runs if reward in run.directions), 0),
        passes=_passes(reward, runs),
    )


def _over_seeds(columns: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    """The mean over seeds, prompt by prompt; NaN where a seed has none, since rows are compared prompt by prompt."""
    if len({len(column) for column in columns}) > 1:
        raise ValueError("runs that differ in their seed alone were evaluated on different numbers of prompts")
    return np.stack(columns).mean(axis=0)


def _interval(values: npt.NDArray[np.float64]) -> Interval:
    scored = values[np.isfinite(values)]
    return bootstrap_mean(scored) if scored.size else Interval(math.nan, math.nan, math.nan, 0)


def _mean(values: npt.NDArray[np.float64]) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean()) if scored.size else math.nan


def _passes(reward: str, runs: Sequence[Run]) -> dict[int, float]:
    """pass@k at the powers of two up to the number of samples, where every run has samples that are 0 or 1."""
    tables = [run.samples.get(reward, ()) for run in runs]
    if not all(tables) or any(value not in (0, 1) for table in tables for row in table for value in row):
        return {}
    most = min(len(row) for table in tables for row in table)
    return {
        k: float(np.mean([best_of(row, k) for table in tables for row in table]))
        for k in (2**power for power in range(most.bit_length()))
        if k <= most
    }


HEADINGS = (
    "runs",
    "reward",
    "seeds",
    "before",
    "after",
    "gain [95 %]",
    "by seed",
    "against the first [95 %]",
    "pass@k",
)


def cells(row: Row) -> list[str]:
    """A row in words, under ``HEADINGS``."""
    return [
        row.label,
        row.reward,
        str(len(row.seeds)),
        f"{row.before:.3f}",
        f"{row.after:.3f}",
        _in_words(row.gain),
        " ".join(f"{gain:+.3f}" for gain in row.by_seed),
        _in_words(row.against) if row.against else "",
        ", ".join(f"@{k} {value:.3f}" for k, value in row.passes.items()),
    ]


def coloured_cells(row: Row) -> list[str]:
    """``cells`` with significant differences in colours, where the output has any."""
    line = cells(row)
    for place, difference in ((5, row.gain), (7, row.against)):
        line[place] = style_text(line[place], *(style(difference.as_dict(), row.direction) if difference else ()))
    return line


def _in_words(interval: Interval) -> str:
    return f"{interval.mean:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]" if interval.n else "–"


def table(rows: Sequence[Row], markdown: bool = False) -> str:
    """The rows as a table for a terminal, or in Markdown; columns without an entry are left out."""
    lines = [list(HEADINGS), *((cells if markdown else coloured_cells)(row) for row in rows)]
    kept = [number for number in range(len(HEADINGS)) if any(line[number] for line in lines[1:])]
    lines = [[line[number] for number in kept] for line in lines]
    if markdown:
        escaped = [[cell.replace("|", "\\|") for cell in line] for line in lines]
        head, *rest = (f"| {' | '.join(line)} |" for line in escaped)
        return "\n".join([head, f"|{' --- |' * len(kept)}", *rest])
    return "\n".join(terminal_table(lines[0], lines[1:]))


def as_dict(row: Row) -> dict[str, Any]:
    """A row as JSON has it: null where there is no number."""
    return {name: plain(value) for name, value in asdict(row).items()}


def plain(value: Any) -> Any:
    """A value as JSON has it: names as texts, lists for tuples, null for a number that is not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def curves(runs: Sequence[Run], reward: str) -> dict[str, tuple[list[int], npt.NDArray[np.float64]]]:
    """Label to the steps at which all seeds were evaluated, and their means [seeds, steps]."""
    lines = {}
    for label, members in group_by_settings(runs).items():
        steps = [step for step in sorted(members[0].curve) if all(reward in run.curve.get(step, {}) for run in members)]
        lines[label] = steps, np.array([[run.curve[step][reward] for step in steps] for run in members])
    return lines
