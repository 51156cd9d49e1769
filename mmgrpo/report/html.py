"""The report of a run: one self-contained HTML file that answers first what was trained, whether it got better, and by
how much.

It is made from the files of the run folder alone (mmgrpo/report/run_folder.py), so an interrupted run has one too.
It begins with a card of the held-out results and their curve, then prompts before and after, then the table; all else
is folded. This module decides what is shown and in which order; the mark-up is in mmgrpo/report/templates/.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.files import write_bytes
from mmgrpo.report.cards import Section
from mmgrpo.report.cards import sections as prompt_files
from mmgrpo.report.chart import Chart, interval_chart, metric_chart
from mmgrpo.report.figures import NONE, Cell, decimals, difference_cell, duration, is_number, mean_cell, number
from mmgrpo.report.group_page import group_page, widest_group
from mmgrpo.report.groups import group_steps
from mmgrpo.report.ledger import NOTE as NOTE_OF_PROMPTS
from mmgrpo.report.ledger import Hardness, read_hardness
from mmgrpo.report.media import MediaFolder, Medium, resolve_within, shown_image
from mmgrpo.report.plots import series
from mmgrpo.report.render import render
from mmgrpo.report.results import Point, Result, rate_names, results, verdict
from mmgrpo.report.run_folder import SIDES, RunFolder, read_run
from mmgrpo.report.untrusted import mapping

BOOTSTRAP = (
    "Means over prompts with 95 % bootstrap intervals. The difference is paired prompt by prompt, and coloured where "
    "its interval excludes zero."
)
CHANGES = (
    "95 % intervals: of the first row of the mean, of the others of the paired change since then, around the mean."
)
BLIND = "Blind: the same prompts with blank images and videos, which shows what can be guessed from the text alone."
STAGED = "A run in stages: this is the last, after {stages} (stages/.../report.html). Before {first}: the first model."
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
    earlier = mapping(run.summary.get("stages", {}), "summary.json: stages")
    first = next(iter(earlier), "")
    start = mapping(mapping(earlier.get(first, {}), "summary.json: stages").get("eval", {}), "summary.json: stages")
    start = mapping(start.get("before", {}), "summary.json: stages")
    columns = ["before", run.latest, "difference"]
    columns += [*(["blind, after"] if blind else []), *(["supervised instead"] if supervised else [])]
    columns += [f"before {first}"] if start else []
    before, after, difference = (mapping(run.evaluation.get(side, {}), f"summary.json: {side}") for side in SIDES)
    rows = {}
    for name in dict.fromkeys([*before, *after]):
        places = decimals(difference.get(name))
        cells = [mean_cell(side.get(name), places) for side in (before, after)]
        cells += [difference_cell(difference.get(name), places=places)]
        cells += [mean_cell(other.get(name), places) for other in (blind, supervised, start) if other]
        count = next((_count(side[name]) for side in (difference, after, before) if name in side), Cell(NONE))
        rows[name] = [*cells, count]
    notes = [BOOTSTRAP, *([BLIND] if blind else []), *([SUPERVISED] if supervised else [])]
    notes += [STAGED.format(stages=", ".join(earlier), first=first)] if start else []
    return Table("All held-out rewards", ["reward", *columns, "prompts"], rows, notes)


def error_rate_table(run: RunFolder) -> Table:
    """Corpus error rates of every evaluated file."""
    rows = {}
    for rate in rate_names(run):
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


def evaluation_table(run: RunFolder) -> Table:
    """The held-out means of every evaluation; no rows where the table before and after has them all."""
    names = list(dict.fromkeys(name for evaluation in run.history for name in (*evaluation.rewards, *evaluation.rates)))
    rows, evaluations = {}, run.history if len(run.history) > 2 else ()
    places = {
        name: decimals(*({**evaluation.rewards, **evaluation.rates}.get(name) for evaluation in evaluations[1:]))
        for name in names
    }
    for evaluation in evaluations:
        estimates = {**evaluation.rewards, **evaluation.rates}
        rows[f"step {evaluation.step}"] = [mean_cell(estimates.get(name), places[name]) for name in names]
    return Table("Held-out prompts at every evaluation", ["optimizer step", *names], rows, [CHANGES])


def _count(estimate: Any) -> Cell:
    """The number of prompts of an estimate."""
    return Cell(number(estimate.get("n") if isinstance(estimate, Mapping) else None, ".0f"))


def _mean(values: npt.NDArray[np.float64]) -> Cell:
    finite = values[np.isfinite(values)]
    return Cell(number(float(finite.mean()), ".4g") if finite.size else NONE)


ALWAYS = ("group/zero_std_fraction", "grad_norm")
"""Metrics that are always plotted, besides rewards."""
IF_NOT_ZERO = ("kl", "clip/low", "clip/high")
"""Metrics that are plotted if they are ever nonzero."""
CURVES = 60
"""Largest number of curves on a page; the table has every metric."""
RESULTS = 8
"""Results in the card; the table has all."""
PROMPTS = 48
"""Prompts of a file on a report."""
PAGE_BYTES = 1_500_000
"""Size above which a report leaves out what is folded, the largest first."""
MEDIA, IMAGE, GROUP, GRIDS, GRID = 450_000, 24_000, 180_000, 180_000, 90_000
"""Bytes of the media of the prompts, of each of their images, of a group, of all grids and of one, before they are
written as text, which takes four thirds of them."""


@dataclass(frozen=True)
class Grids:
    """Sample grids by title."""

    heading: str
    images: Mapping[str, Medium]


@dataclass(frozen=True)
class Part:
    """A folded part of a report."""

    heading: str
    content: str
    """Mark-up."""
    open: bool = False


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder; the page states which parts are missing."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such run folder")
    run, left_out = read_run(folder), list[str]()
    values = page_values(folder, run)
    content = render("report.html", {**values, "left_out": left_out})
    while len(content.encode(errors="replace")) > PAGE_BYTES and values["folded"]:
        largest = max(values["folded"], key=lambda part: len(part.content))
        values["folded"].remove(largest)
        left_out.append(largest.heading)
        content = render("report.html", {**values, "left_out": left_out})
    path = folder / "report.html"
    write_page(path, content)
    return path


def page_values(folder: Path, run: RunFolder) -> dict[str, Any]:
    """The values of the template ``report.html``, without what is left out."""
    outcomes = results(run)
    main = next((result.name for result in outcomes if result.role == "trained"), "")
    samples = folder / "samples" if resolve_within(folder, "samples") else None
    files = prompt_files(MediaFolder(samples, MEDIA, IMAGE), main, PROMPTS) if samples else []
    first = [file for file in files[:1] if file.name == HELDOUT]
    sheets = grids(run, MediaFolder(samples, GRIDS, GRID)) if samples else []
    shown = [] if first else [sheet for sheet in sheets if not sheet.heading]
    tables = [reward_table(run), error_rate_table(run)]
    return {
        **head(run),
        **glance(folder, run, outcomes),
        "prompt_files": first,
        "grids": shown,
        "results": [table for table in tables if table.rows],
        "folded": folded_parts(
            folder, run, files[len(first) :], [sheet for sheet in sheets if sheet.heading], not outcomes
        ),
    }


def folded_parts(
    folder: Path, run: RunFolder, files: Sequence[Section], sheets: Sequence[Grids], never: bool
) -> list[Part]:
    """What a report folds. ``files`` are further ones of prompts; a run that was ``never`` evaluated has its group
    open, since that is all that it drew."""
    hardness, drawn = read_hardness(folder), curves(run)
    tables = [evaluation_table(run), *group_tables(run), *extra_tables(run)]
    parts = [Part(table.heading, render("table.html", {"table": table})) for table in tables if table.rows]
    parts += [Part(file.heading, render("completions.html", {"prompt_files": [file]})) for file in files]
    if hardness is not None:
        drawn.append(hardness.chart)
    if drawn:
        curve = "curve" if len(drawn) == 1 else "curves"
        parts.append(Part(f"{len(drawn)} {curve} of training", render("curves.html", {"charts": drawn})))
    if group := widest_group(folder):
        heading = f"A training group: of {len(group_steps(folder))} kept, the one whose rewards differ most"
        parts.insert(0 if never else len(parts), Part(heading, group_page(folder, group, most=GROUP), open=never))
    further = [table for table in (hardest_table(hardness), correlation_table(run)) if table.rows]
    parts += [Part(table.heading, render("table.html", {"table": table})) for table in further]
    for sheet in sheets:
        parts.append(Part(sheet.heading, render("samples.html", {"grids": [Grids("", sheet.images)]})))
    if (metrics := metric_table(run)).rows:
        parts.append(Part("All metrics, first and last tenth of the run", render("metrics.html", {"metrics": metrics})))
    return [*parts, Part("Configuration", render("configuration.html", {"run": run, "facts": facts(run)}))]


def glance(folder: Path, run: RunFolder, outcomes: Sequence[Result]) -> dict[str, Any]:
    """The values of the template ``glance.html``: the card and its curves, or how to evaluate."""
    names = [name for name in run.metric_names() if REWARD_MEAN.fullmatch(name)]
    training = [] if outcomes else [(label_of(name), *ends(run, name)) for name in names[:3]]
    return {
        "results_shown": [
            (result, interval_chart(result.name, history(run, result), result.places)) for result in outcomes[:RESULTS]
        ],
        "more_results": max(0, len(outcomes) - RESULTS),
        "way_to_evaluate": "" if outcomes else way_to_evaluate(folder, run),
        "training": training,
        "training_chart": None
        if outcomes or not names
        else metric_chart(label_of(names[0]), *series(run.metrics, names[0])),
    }


def history(run: RunFolder, result: Result) -> Sequence[Point]:
    """The evaluations of a result; those before and after where the run folder has no others."""
    if result.history:
        return result.history
    ends = [(0, result.before), (run.last_step, result.after)]
    names = ("mean", "low", "high")
    known = [
        (step, estimate)
        for step, estimate in ends
        if isinstance(estimate, Mapping) and all(is_number(estimate.get(n)) for n in names)
    ]
    return [Point(step, *(float(estimate[name]) for name in names)) for step, estimate in known]


def way_to_evaluate(folder: Path, run: RunFolder) -> str:
    """The command that evaluates a run; empty for one from Python with a policy that no command can load."""
    if not _option(run.config, "model", "family"):
        return ""
    path = folder.as_posix() if not folder.is_absolute() else f"{folder.parent.name}/{folder.name}"
    prompts = "" if _option(run.config, "data", "heldout") else " --file PROMPTS"
    return f"mmgrpo evaluate --run {shlex.quote(path)} --against untrained{prompts}"


def ends(run: RunFolder, name: str) -> tuple[str, str]:
    """The means of a metric over the first and the last tenth of the run."""
    values = series(run.metrics, name)[1]
    tenth = max(1, len(values) // 10)
    return _mean(values[:tenth]).text, _mean(values[-tenth:]).text


def label_of(metric: str) -> str:
    """The name of a reward as the recipe writes it, of the metric of its mean; other metrics as they are."""
    reward = REWARD_MEAN.fullmatch(metric)
    return reward[1] if reward else metric


def head(run: RunFolder, title: str = "", level: int = 1) -> dict[str, Any]:
    """The values of the template ``header.html``; ``level`` is that of its heading."""
    return {
        "title": title or run.name,
        "level": level,
        "run": run,
        "subject": subject(run),
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


def subject(run: RunFolder) -> str:
    """What was trained with what, for how long, as far as it is recorded."""
    known = facts(run)
    family, path = known.get("model", ""), _option(run.config, "model", "path")[:120]
    model = f"{family} ({path})" if family and path else family or path or "a policy of its own"
    parts = [f"{model} trained with {known['algorithm']}" if "algorithm" in known else model]
    parts += [f"{known['optimizer steps']} optimizer steps", known.get("training time", "")]
    parts += [f"seed {known['seed']}" if "seed" in known else ""]
    parts += [f"stopped early: {known['stopped early']}" if "stopped early" in known else ""]
    return ", ".join(filter(None, parts))


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


def curves(run: RunFolder) -> list[Chart]:
    """Curves of rewards in training and of a few other metrics."""
    names = run.metric_names()
    keys = [name for name in names if REWARD_MEAN.fullmatch(name)]
    keys += [name for name in ALWAYS if name in names]
    keys += [name for name in IF_NOT_ZERO if name in names and np.nan_to_num(series(run.metrics, name)[1]).any()]
    keys += [name for name in names if name.startswith("schedule/")]
    keys = keys or [name for name in names if name == "loss"]
    return [metric_chart(label_of(key), *series(run.metrics, key)) for key in keys[:CURVES]]


def grids(run: RunFolder, samples: MediaFolder) -> list[Grids]:
    """Grids of samples: before and after, then those of further files of prompts, then those during the run."""
    titles = {"": [title for title in run.samples if title in ("before", "after")]}
    further = [title for title in run.samples if split_title(title)[1] != HELDOUT]
    titles["Samples of prompts of further files"] = further
    rest = {title for group in titles.values() for title in group}
    titles["Samples during the run"] = [title for title in run.samples if title not in rest]
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
