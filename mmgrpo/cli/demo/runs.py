"""The tab Runs: curves of several runs, their results, samples by step, and settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.context import Context

from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.runs_chart import COLOURS, chart_html
from mmgrpo.cli.demo.runs_html import details_html, differences_html, samples_html, style
from mmgrpo.cli.demo.runs_read import (
    Look,
    Reader,
    Signature,
    heading,
    metrics_of,
    moments_of,
    signature,
)
from mmgrpo.runtime.identity import MARKER

FIRST, MOST = 3, len(COLOURS)
"""Runs that are shown at first, and at once."""
STEP, SECONDS = "optimizer step", "seconds"
EVERY = 5.0
"""Seconds after which a run that is unfinished is looked at again."""
Number = float | int
NOTHING = "No run is open. Train one (`mmgrpo train --recipe visual/demo`), and name its folder: `mmgrpo demo runs`."


@dataclass
class Shelf:
    """The runs that are open, as they are now."""

    opened: Opened
    reader: Reader = field(default_factory=Reader)

    def chosen(self, names: Sequence[str] | None) -> dict[str, Path]:
        """The folders of the named runs; a name that is not open is an error."""
        names = list(dict.fromkeys(names or ()))
        if unknown := [name for name in names if name not in self.opened.runs]:
            raise gr.Error(f"got the run {escape(unknown[0][:80])!r}, expected one that is open", print_exception=False)
        if len(names) > MOST:
            raise gr.Error(f"got {len(names)} runs, expected at most {MOST}", print_exception=False)
        return {name: self.opened.runs[name] for name in names}

    def looks(self, names: Sequence[str] | None) -> list[Look]:
        """The named runs."""
        return self.reader.looks(self.chosen(names))

    def signatures(self, names: Sequence[str] | None) -> list[Signature]:
        """What differs after any file of the named runs was written."""
        return [signature(folder) for folder in self.chosen(names).values()]


def later_runs(runs: Mapping[str, Path], folders: Sequence[str]) -> dict[str, Path]:
    """Runs that have appeared in the named folders since; a link out of such a folder is not followed."""
    found: dict[str, Path] = {}
    for folder in (Path(text).resolve() for text in folders):
        for marker in sorted(folder.glob(f"*/{MARKER}")):
            run = marker.parent.resolve()
            if run.parent == folder and run not in runs.values() and not run.name.startswith("."):
                found[run.name if run.name not in {**runs, **found} else str(run)] = run
    return found


def curves(looks: Sequence[Look], metric: str | None, axis: str, percent: Number) -> str:
    """The chart of a metric."""
    return chart_html(looks, metric or "", axis, axis == SECONDS, int(percent))


def label(name: str) -> str:
    """A name that can be shown in a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:120])


def overview(shelf: Shelf, names: Sequence[str] | None, metric: str | None, axis: str, percent: Number, at: Number):
    """All parts of the tab: metric, plot, results, differences, moment, samples, timer, signatures."""
    seen = shelf.signatures(names)
    looks = shelf.looks(names)
    metrics, moments = metrics_of(looks), moments_of(looks)
    metric = metric if metric in metrics else next(iter(metrics), None)
    number = min(max(1, int(at or len(moments))), max(1, len(moments)))
    return (
        gr.Dropdown(choices=[(label(name), name) for name in metrics], value=metric),
        curves(looks, metric, axis, percent),
        details_html(looks),
        differences_html(looks),
        moment_slider(moments, number),
        samples_html(looks, moments[number - 1] if moments else ""),
        gr.Timer(EVERY, active=any(look.running for look in looks)),
        seen,
    )


def moment_slider(moments: Sequence[str], number: int) -> Any:
    """The slider over the moments, which says where it stands."""
    if not moments:
        return gr.Slider(1, 2, value=1, step=1, visible=False)
    text, more = moment_label(moments, number), len(moments) > 1
    return gr.Slider(1, max(2, len(moments)), value=number, step=1, label=text, visible=more)


def moment_label(moments: Sequence[str], number: int) -> str:
    """A moment in words, and which it is."""
    return label(f"samples: {heading(moments[number - 1])} ({number} of {len(moments)})" if moments else "samples")


def tab(opened: Opened) -> None:
    """Build the tab. Runs are read when the page is opened."""
    shelf = Shelf(opened)
    note = gr.Markdown(NOTHING, visible=not opened.runs, elem_id="runs-none")
    with gr.Row():
        chosen = gr.Dropdown(
            list(opened.runs), value=list(opened.runs)[:FIRST], multiselect=True, label="runs", elem_id="runs-choose",
            max_choices=MOST, scale=4, min_width=240,
        )  # fmt: skip
        refresh = gr.Button("Refresh", elem_id="runs-refresh", size="md", scale=1, min_width=160)
    at = gr.Slider(1, 2, step=1, label="samples", visible=False, elem_id="runs-moment")
    samples = gr.HTML(elem_id="runs-samples", padding=False)
    details = gr.HTML(elem_id="runs-details", padding=False)
    with gr.Row():
        # Any value is taken: the names to choose from change with the runs, and an unknown one has no curve.
        metric = gr.Dropdown(
            [], label="metric", elem_id="runs-metric", scale=3, min_width=240, allow_custom_value=True
        )  # fmt: skip
        axis = gr.Radio([STEP, SECONDS], value=STEP, label="horizontal axis", elem_id="runs-axis", min_width=240)
        percent = gr.Slider(0, 20, value=10, step=1, label="smoothing, %", elem_id="runs-smooth", min_width=240)
    plot = gr.HTML(elem_id="runs-curves", padding=False)
    with gr.Accordion("settings that differ", open=False, elem_id="runs-settings"):
        settings = gr.HTML(elem_id="runs-differences", padding=False)
    gr.HTML(style(), padding=False)
    timer = gr.Timer(EVERY, active=False)
    seen = gr.State([])

    def show(names: list[str], metric: str | None, axis: str, percent: Number) -> Any:
        return overview(shelf, names, metric, axis, percent, 0)

    def first(names: list[str] | None, metric: str | None, axis: str, percent: Number) -> Any:
        # The page may have been built before runs that another visitor has found.
        names = [name for name in names or () if name in opened.runs]
        return gr.Dropdown(list(opened.runs), value=names), *overview(shelf, names, metric, axis, percent, 0)

    def changed(seen: Any, names: list[str], metric: str | None, axis: str, percent: Number, at: Number) -> Any:
        if shelf.signatures(names) == seen:
            return [gr.skip()] * len(parts)
        return overview(shelf, names, metric, axis, percent, at)

    def draw(names: list[str], metric: str | None, axis: str, percent: Number) -> Any:
        return curves(shelf.looks(names), metric, axis, percent)

    def see(names: list[str], at: Number) -> Any:
        looks = shelf.looks(names)
        moments = moments_of(looks)
        number = min(max(1, int(at)), max(1, len(moments)))
        return gr.Slider(label=moment_label(moments, number)), samples_html(
            looks, moments[number - 1] if moments else ""
        )

    def look_again(names: list[str] | None) -> Any:
        new = later_runs(opened.runs, opened.folders)
        opened.runs = {**opened.runs, **new}
        gr.Info(
            f"{len(new)} new: {', '.join(escape(label(name)) for name in new)}"
            if new
            else "no new runs in the opened folders"
        )
        names = [*(names or ()), *new][:MOST]
        return gr.Dropdown(list(opened.runs), value=names), gr.Markdown(visible=not opened.runs)

    choices = [chosen, metric, axis, percent]
    private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
    parts = [metric, plot, details, settings, at, samples, timer, seen]
    if Context.root_block:  # the page
        Context.root_block.load(first, choices, [chosen, *parts], **private)
    chosen.input(show, choices, parts, **private)
    refresh.click(look_again, [chosen], [chosen, note], **private).success(show, choices, parts, **private)
    timer.tick(changed, [seen, *choices, at], parts, **private)
    last: dict[str, Any] = {**private, "trigger_mode": "always_last"}
    for control in (metric.input, axis.input, percent.input):
        control(draw, choices, plot, **last)
    at.input(see, [chosen, at], [at, samples], **last)
