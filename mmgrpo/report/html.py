"""The report of a run: one self-contained HTML file with the results before and after, and their uncertainty.

It is made from the files of the run folder alone (mmgrpo/report/run_folder.py), so that an interrupted run has one too.
This module decides what is shown and in which order; the mark-up is in mmgrpo/report/templates/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.files import write_bytes
from mmgrpo.report.cards import sections as prompt_files
from mmgrpo.report.figures import duration, is_number
from mmgrpo.report.group_page import newest_group
from mmgrpo.report.media import MediaFolder, Medium, contained, picture, picture_uri
from mmgrpo.report.plots import curve_figure, figure_png, sample_grid, series
from mmgrpo.report.render import render
from mmgrpo.report.run_folder import RunFolder, read_run
from mmgrpo.report.tables import (
    correlation_table,
    error_rate_table,
    extra_tables,
    group_tables,
    metric_table,
    reward_table,
    verdict,
)

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
    pictures: Mapping[str, Medium]


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into a run folder; the page states which parts are missing."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such run folder")
    run = read_run(folder)
    samples = MediaFolder(folder / "samples") if contained(folder, "samples") else None
    files = prompt_files(samples) if samples else []
    further = [error_rate_table(run), *group_tables(run), *extra_tables(run)]
    content = render(
        "report.html",
        {
            "title": run.name,
            "run": run,
            "modality": _plain(run.summary.get("modality")),
            "steps": _plain(run.config.get("steps")),
            "verdict": verdict(run),
            "facts": facts(run),
            "results": [reward_table(run), *(table for table in further if table.rows)],
            "curves": curves(run),
            "prompt_files": files,
            "grids": grids(run, samples, paired=bool(files)) if samples else [],
            "correlations": [table for table in [correlation_table(run)] if table.rows],
            "group": newest_group(folder),
            "metrics": metric_table(run),
        },
    )
    path = folder / "report.html"
    write_page(path, content)
    return path


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
    values = {
        "model": _plain(run.summary.get("family")) or _option(run.config, "model", "family"),
        "algorithm": _plain(run.summary.get("preset")) or _option(run.config, "algorithm", "preset"),
        "optimizer steps": f"{run.last_step} of {steps}" if steps else str(run.last_step),
        "training time": duration(run.summary.get("seconds", seconds)),
        "learning rate": _option(run.config, "optim", "lr"),
        "seed": _plain(run.config.get("seed")),
        "first |ratio − 1|": _largest(run, "ratio/first_minus_one"),
    }
    return {name: value for name, value in values.items() if value}


def curves(run: RunFolder) -> list[Medium]:
    """Curves of held-out error rates, rewards and a few other metrics, one picture each so that the page can wrap."""
    names = run.metric_names()
    keys = [name for name in names if name.startswith("reward/") and name.endswith("/mean")]
    keys += [name for name in ALWAYS if name in names]
    keys += [name for name in IF_NOT_ZERO if name in names and np.nan_to_num(series(run.metrics, name)[1]).any()]
    keys = keys or [name for name in names if name == "loss"]
    plots = [(run.metrics, key) for key in keys]
    if len(run.rates) > 2:  # the table shows the first and the last already
        rates = [{n if n == "step" else f"held-out {n}": value for n, value in row.items()} for row in run.rates]
        plots = [(rates, n) for n in dict.fromkeys(n for row in rates for n in row if n != "step")] + plots
    return [
        Medium("picture", f"Curve of {key}", picture_uri(figure_png(curve_figure(rows, [key]))))
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
        Grids(heading, {title: picture(samples, run.samples[title], f"Samples, {title}") for title in group})
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
