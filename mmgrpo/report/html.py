"""The report of a run: one self-contained HTML file with the results before and after, and their uncertainty.

It is made from the files of the run folder alone (mmgrpo/report/run_folder.py), so that an interrupted run has one too.
This module decides what is shown and in which order; the mark-up is in mmgrpo/report/templates/.

The tables of a report: rewards and error rates before and after, and all metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.files import write_bytes
from mmgrpo.report.cards import sections as prompt_files
from mmgrpo.report.figures import NONE, Cell, change, decimals, difference_cell, duration, is_number, mean_cell, number
from mmgrpo.report.group_page import newest_group
from mmgrpo.report.ledger import NOTE as NOTE_OF_PROMPTS
from mmgrpo.report.ledger import Hardness, read_hardness
from mmgrpo.report.media import MediaFolder, Medium, contained, image_uri, shown_image
from mmgrpo.report.plots import curve_figure, figure_file, sample_grid, series
from mmgrpo.report.render import render
from mmgrpo.report.run_folder import SIDES, RunFolder, read_run
from mmgrpo.report.untrusted import brief, mapping

BOOTSTRAP = (
    "Means over prompts with 95 % bootstrap intervals. The difference is paired prompt by prompt, and coloured where "
    "its interval excludes zero."
)
BLIND = "Blind: the same prompts with blank images and videos, which shows what can be guessed from the text alone."
SUPERVISED = "Supervised instead: the same model after supervised training for the same time on the right answers."
RATES = (
    "Corpus rates: all errors divided by all units (words or characters of the references), which differs from the "
    "mean over prompts; less is better. Intervals are 95 % bootstrap intervals over prompts, and the difference is "
    "paired."
)


CORRELATION = (
    "Pearson correlations over samples of the same prompt, mean over the last tenth of the run. Near 1: redundant; "
    "below 0: in conflict."
)
REWARD_MEAN = re.compile(r"reward/(.*)/mean", re.DOTALL)
MOST_REWARDS = 16
"""Largest number of rewards in the table of correlations."""


@dataclass(frozen=True)
class Table:
    """Rows by name, with a cell for each column."""

    heading: str
    columns: Sequence[str]
    """The first is the heading of the names of rows."""
    rows: Mapping[str, Sequence[Cell]]
    notes: Sequence[str] = ()

    @property
    def interval_columns(self) -> set[str]:
        """Columns with intervals."""
        return {column for row in self.rows.values() for column, cell in zip(self.columns[1:], row) if cell.interval}

    @property
    def dense(self) -> bool:
        """Whether intervals are set below their means, because the table would be too wide otherwise."""
        return len(self.interval_columns) > 3


def reward_table(run: RunFolder) -> Table:
    """Rewards of the held-out prompts; no rows if the run was not evaluated."""
    blind = mapping(run.summary.get("blind", {}), "summary.json: blind")
    supervised = mapping(run.summary.get("supervised", {}), "summary.json: supervised")
    supervised = mapping(supervised.get("after", {}), "summary.json: supervised: after")
    columns = [*SIDES, *(["blind, after"] if blind else []), *(["supervised instead"] if supervised else [])]
    before, after, difference = (mapping(run.evaluation.get(side, {}), f"summary.json: {side}") for side in SIDES)
    rows = {}
    for name in dict.fromkeys([*before, *after]):
        places = decimals(difference.get(name))
        cells = [mean_cell(side.get(name), places) for side in (before, after)]
        cells += [difference_cell(difference.get(name), places=places)]
        cells += [mean_cell(other.get(name), places) for other in (blind, supervised) if other]
        count = next((_count(side[name]) for side in (difference, after, before) if name in side), Cell(NONE))
        rows[name] = [*cells, count]
    notes = [BOOTSTRAP, *([BLIND] if blind else []), *([SUPERVISED] if supervised else [])]
    return Table("Held-out prompts, before and after", ["reward", *columns, "prompts"], rows, notes)


def verdict(run: RunFolder) -> str:
    """One sentence: which held-out rewards and error rates rose, which fell, and which changed within noise."""
    changes: dict[int, list[str]] = {1: [], -1: [], 0: []}
    differences = mapping(run.evaluation.get("difference", {}), "summary.json: difference")
    for name, estimate in differences.items():
        cell = difference_cell(estimate, places=decimals(estimate))
        changes[change(estimate)].append(f"{name} {cell.text}" if cell.interval else name)
    rates = run.summary.get("rates")
    for rate in rates if isinstance(rates, list) else []:
        for file, estimate in mapping(run.summary.get(str(rate)), f"summary.json: {rate}").items():
            difference = mapping(estimate, f"summary.json: {rate}: {file}").get("difference")
            cell = difference_cell(difference, places=decimals(difference))
            changes[change(difference)].append(
                f"{rate} of {file} {cell.text}" if cell.interval else f"{rate} of {file}"
            )
    parts = {"rose": changes[1], "fell": changes[-1], "within noise": changes[0]}
    texts = [f"{what}: {_listed(names)}" for what, names in parts.items() if names]
    return f"{'; '.join(texts)}.".capitalize() if texts else ""


def _listed(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def error_rate_table(run: RunFolder) -> Table:
    """Corpus error rates of every evaluated file."""
    rows, rates = {}, run.summary.get("rates", [])
    if not (isinstance(rates, list) and all(isinstance(rate, str) for rate in rates)):
        raise ValueError(f"summary.json: rates: got {brief(rates)}, expected a list of names")
    for rate in dict.fromkeys(rates):
        for name, estimate in mapping(run.summary.get(rate), f"summary.json: {rate}").items():
            estimate = mapping(estimate, f"summary.json: {rate}: {name}")
            rows[f"{rate}, {name}"] = [
                mean_cell(estimate.get("before"), places := decimals(estimate.get("difference"))),
                mean_cell(estimate.get("after"), places),
                difference_cell(estimate.get("difference"), less_is_better=True, places=places),
                Cell(number(estimate.get("relative"), "+.1%")),
                Cell(number(estimate.get("units"), ".0f")),
                _count(estimate.get("difference")),
            ]
    columns = ["error rate, file", *SIDES, "relative", "units", "prompts"]
    rules = mapping(run.summary.get("rules", {}), "summary.json: rules")
    note = f"Normalized by: {', '.join(f'{rate}: {rule}' for rate, rule in rules.items())}." if rules else ""
    return Table("Corpus-level error rates", columns, rows, [RATES, *([note] if note else [])])


def group_tables(run: RunFolder) -> list[Table]:
    """Rewards on the held-out prompts of each value of the columns of ``eval.groups``."""
    tables = []
    for column, values in mapping(run.summary.get("groups", {}), "summary.json: groups").items():
        rows = {}
        for value, evaluation in mapping(values, f"summary.json: groups: {column}").items():
            of_value = _side_rows(evaluation, f"summary.json: groups: {column}: {value}")
            rows |= {f"{reward}, {value}": cells for reward, cells in of_value.items()}
        tables.append(Table(f"Held-out prompts by {column}", [f"reward, {column}", *SIDES, "prompts"], rows))
    return tables


def extra_tables(run: RunFolder) -> list[Table]:
    """Rewards on every further file of prompts."""
    tables = []
    for name, evaluation in mapping(run.summary.get("extra", {}), "summary.json: extra").items():
        rows = _side_rows(evaluation, f"summary.json: extra: {name}")
        tables.append(Table(f"Prompts of {name}, before and after", ["reward", *SIDES, "prompts"], rows))
    return tables


def _side_rows(evaluation: Any, place: str) -> dict[str, list[Cell]]:
    """Each reward's means before and after, their difference, and the number of prompts; ``place`` is for errors."""
    sides = mapping(evaluation, place)
    before, after, difference = (mapping(sides.get(side, {}), f"{place}: {side}") for side in SIDES)
    return {
        reward: [
            mean_cell(before.get(reward), places := decimals(estimate)),
            mean_cell(after.get(reward), places),
            difference_cell(estimate, places=places),
            _count(estimate),
        ]
        for reward, estimate in difference.items()
    }


def metric_table(run: RunFolder) -> Table:
    """The mean of every metric over the first and the last tenth of the run, at least one step each."""
    rows = {}
    for name in run.metric_names():
        values = series(run.metrics, name)[1]
        tenth = max(1, len(values) // 10)
        rows[name] = [_mean(values[:tenth]), _mean(values[-tenth:])]
    return Table("", ["metric", "first", "last"], rows)


def correlation_table(run: RunFolder) -> Table:
    """Mean correlation of every two rewards over the last tenth of the run; no rows where none was logged."""
    names = [name.split("/", 1)[1].removesuffix("/mean") for name in run.metric_names() if REWARD_MEAN.fullmatch(name)]
    cells: dict[tuple[str, str], Cell] = {}
    for first, second in permutations(names[:MOST_REWARDS], 2):
        if (key := f"correlation/{first}/{second}") in run.metric_names():
            values = series(run.metrics, key)[1]
            cells[first, second] = cells[second, first] = _mean(values[-max(1, len(values) // 10) :])
    names = [name for name in names if any(name in pair for pair in cells)]
    rows = {a: [Cell("1") if a == b else cells.get((a, b), Cell(NONE)) for b in names] for a in names}
    return Table("Correlation of rewards within groups", ["reward", *names], rows, [CORRELATION])


def hardest_table(hardness: Hardness | None) -> Table:
    """The hardest prompts of the run; no rows where it keeps no ledger."""
    if hardness is None:
        return Table("", [], {})
    rows = {
        f"{str(row.get('id', ''))[:40]}: {str(row.get('text', ''))[:80]}": [
            *(Cell(number(row.get(name))) for name in ("mean", "last_mean", "best")),
            *(Cell(number(row.get(name), ".0f")) for name in ("visits", "draws")),
        ]
        for row in hardness.hardest
    }
    flat = f"{hardness.flat:.0%} of the visited prompts had equal rewards at their last visit."
    return Table(
        hardness.heading, ["prompt", "mean", "last", "best", "visits", "samples"], rows, [flat, NOTE_OF_PROMPTS]
    )


def difficulty_curve(hardness: Hardness | None) -> Medium | None:
    """The distribution of the rewards of prompts over the rounds."""
    if hardness is None:
        return None
    return Medium("image", "Distribution of mean rewards of prompts", image_uri(figure_file(hardness.figure)))


def _count(estimate: Any) -> Cell:
    """The number of prompts of an estimate."""
    return Cell(number(estimate.get("n") if isinstance(estimate, Mapping) else None, ".0f"))


def _mean(values: npt.NDArray[np.float64]) -> Cell:
    finite = values[np.isfinite(values)]
    return Cell(number(float(finite.mean()), ".4g") if finite.size else NONE)


__all__ = ["curve_figure", "page", "read_run", "sample_grid", "write_report"]

ALWAYS = ("group/zero_std_fraction", "grad_norm")
"""Metrics that are always plotted, besides rewards."""
IF_NOT_ZERO = ("kl", "clip/low", "clip/high")
"""Metrics that are plotted if they are ever nonzero."""
CURVES = 60
"""Largest number of curves on a page; the table has every metric."""


@dataclass(frozen=True)
class Grids:
    """Sample grids by title; a group with a heading is collapsed."""

    heading: str
    images: Mapping[str, Medium]


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder; the page states which parts are missing."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder")
    run = read_run(folder)
    samples = MediaFolder(folder / "samples") if contained(folder, "samples") else None
    files = prompt_files(samples) if samples else []
    hardness = read_hardness(folder)
    further = [error_rate_table(run), *group_tables(run), *extra_tables(run)]
    content = render(
        "report.html",
        {
            **head(run),
            "results": [reward_table(run), *(table for table in further if table.rows)],
            "curves": curves(run) + ([difficulty] if (difficulty := difficulty_curve(hardness)) else []),
            "prompt_files": files,
            "grids": grids(run, samples, paired=bool(files)) if samples else [],
            "correlations": [table for table in [hardest_table(hardness), correlation_table(run)] if table.rows],
            "group": newest_group(folder),
            "metrics": metric_table(run),
        },
    )
    path = folder / "report.html"
    write_page(path, content)
    return path


def head(run: RunFolder, title: str = "", level: int = 1) -> dict[str, Any]:
    """The values of the template ``header.html``; ``level`` is that of its heading."""
    return {
        "title": title or run.name,
        "level": level,
        "run": run,
        "modality": _plain(run.summary.get("modality")),
        "steps": _plain(run.config.get("steps")),
        "verdict": verdict(run),
        "facts": facts(run),
    }


def write_page(path: Path, content: str) -> None:
    """Write mark-up as UTF-8. A lone surrogate, which JSON can contain but UTF-8 cannot encode, becomes a question
    mark."""
    write_bytes(path, content.encode(errors="replace"))


def page(title: str, sections: Sequence[str]) -> str:
    """A self-contained HTML page.

    ``sections`` are mark-up of this package (``completions_html``, ``player``, ``alignment``). The title and sections
    that are plain strings are escaped.
    """
    return render("page.html", {"title": title, "sections": sections})


def facts(run: RunFolder) -> dict[str, str]:
    """The facts in the header of a report: model, algorithm, length, time and seed, as far as they are recorded."""
    steps = _plain(run.config.get("steps"))
    seconds = run.metrics[-1].get("seconds") if run.metrics else None
    stopped = mapping(run.summary.get("stopped", {}), "summary.json: stopped")
    reward, best = _plain(stopped.get("reward")), _plain(stopped.get("best_step"))
    values = {
        "model": _plain(run.summary.get("family")) or _option(run.config, "model", "family"),
        "algorithm": _plain(run.summary.get("preset")) or _option(run.config, "algorithm", "preset"),
        "optimizer steps": f"{run.last_step} of {steps}" if steps else str(run.last_step),
        "stopped early": f"no new best {reward} since step {best}" if stopped else "",
        "training time": duration(run.summary.get("seconds", seconds)),
        "learning rate": _option(run.config, "optim", "lr"),
        "seed": _plain(run.config.get("seed")),
        "first |ratio − 1|": _largest(run, "ratio/first_minus_one"),
    }
    return {name: value for name, value in values.items() if value}


def curves(run: RunFolder) -> list[Medium]:
    """Curves of held-out error rates, rewards and a few other metrics, one image each so that the page can wrap."""
    names = run.metric_names()
    keys = [name for name in names if name.startswith("reward/") and name.endswith("/mean")]
    keys += [name for name in ALWAYS if name in names]
    keys += [name for name in IF_NOT_ZERO if name in names and np.nan_to_num(series(run.metrics, name)[1]).any()]
    keys += [name for name in names if name.startswith("schedule/")]
    keys = keys or [name for name in names if name == "loss"]
    plots = [(run.metrics, key) for key in keys]
    if len(run.rates) > 2:  # the table shows the first and the last already
        rates = [{n if n == "step" else f"held-out {n}": value for n, value in row.items()} for row in run.rates]
        plots = [(rates, n) for n in dict.fromkeys(n for row in rates for n in row if n != "step")] + plots
    return [
        Medium("image", f"Curve of {key}", image_uri(figure_file(curve_figure(rows, [key]))))
        for rows, key in plots[:CURVES]
    ]


def grids(run: RunFolder, samples: MediaFolder, paired: bool = False) -> list[Grids]:
    """Grids of samples: before and after (collapsed where the page shows them ``paired`` by prompt), then those of
    further files of prompts, then those during the run."""
    first = "held-out prompts as a grid" if paired else ""
    titles = {first: [title for title in run.samples if title in ("before", "after")]}
    titles["prompts of further files"] = [title for title in run.samples if split_title(title)[1] != HELDOUT]
    rest = {title for group in titles.values() for title in group}
    titles["during the run"] = [title for title in run.samples if title not in rest]
    return [
        Grids(heading, {title: shown_image(samples, run.samples[title], f"Samples, {title}") for title in group})
        for heading, group in titles.items()
        if group
    ]


def _largest(run: RunFolder, name: str) -> str:
    values = series(run.metrics, name)[1] if name in run.metric_names() else np.array([])
    return f"{np.nanmax(values):.1e}" if np.isfinite(values).any() else ""


def _option(config: Mapping[str, Any], section: str, key: str) -> str:
    options = config.get(section)
    return _plain(options.get(key)) if isinstance(options, Mapping) else ""


def _plain(value: Any) -> str:
    """A scalar as text; empty for None, and for lists and mappings, which YAML aliases can make exponentially large."""
    return str(value) if isinstance(value, str | float) or is_number(value) else ""
