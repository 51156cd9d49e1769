"""The tab Runs: what training did to held-out prompts, other curves of several runs, samples by step, and settings.

Run folders are untrusted input, and can be written at the same time: a run that cannot be read is a sentence that says
why, and the other runs are shown. Every value is escaped by the templates of mmgrpo/report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from gradio.context import Context

from mmgrpo.cli.demo.chart import COLOURS, Curve, Points, chart_html
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.parts import QUIET
from mmgrpo.evaluation import HELDOUT, split_title
from mmgrpo.report.cards import Row, Section, read_completions, section
from mmgrpo.report.figures import is_number
from mmgrpo.report.hacking import Measured
from mmgrpo.report.html import correlation_table, error_rate_table, extra_tables, head, reward_table
from mmgrpo.report.media import MediaFolder, Medium, resolve_within, shown_image
from mmgrpo.report.plots import running_mean, series, thin_out, title_of
from mmgrpo.report.render import render
from mmgrpo.report.run_folder import FILES, PARTS, RunFolder, read_measured, read_run
from mmgrpo.report.untrusted import printable
from mmgrpo.runtime.identity import MARKER
from mmgrpo.statistics import Interval, bootstrap_mean

# ---- reading

KEPT = 8
"""Runs that are kept in memory."""
POINTS = 1000
"""Points of a curve; a longer one has every k-th of its smoothed values."""
SETTINGS, LETTERS, LEVELS = 2000, 400, 8
"""Largest number of settings of a run, of characters of a value, and of levels of names: aliases can make a file of a
kilobyte a value of gigabytes."""
METRICS = 10_000
"""Names to choose from."""
RESAMPLES = 2000
"""Draws of the bootstrap of an interval in a chart."""
HELD_OUT = "held-out "
"""What the name of a reward over the held-out prompts begins with."""

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
    evaluations: Sequence[Measured] = ()
    """The values of the held-out prompts, by step."""
    intervals: dict[str, Sequence[tuple[int, Interval]]] = field(default_factory=dict)
    """What ``held_out`` has computed."""

    def held_out(self, reward: str) -> Sequence[tuple[int, Interval]]:
        """The mean of a reward over the held-out prompts at every evaluation, with its bootstrap interval."""
        if reward not in self.intervals:
            columns = [
                (evaluation.step, evaluation.values[reward])
                for evaluation in self.evaluations
                if reward in evaluation.values
            ]
            known = [(step, column[np.isfinite(column)]) for step, column in columns]
            self.intervals[reward] = [(step, bootstrap_mean(some, RESAMPLES)) for step, some in known if some.size]
        return self.intervals[reward]

    def metrics(self) -> list[str]:
        """Names of metrics: held-out rewards, those that are trained on first, then those of the optimizer steps."""
        trained = {name for evaluation in self.evaluations for name in evaluation.directions}
        rewards = dict.fromkeys(name for evaluation in self.evaluations for name in evaluation.values)
        first = sorted(rewards, key=lambda name: name not in trained)
        return [*(f"{HELD_OUT}{name}" for name in first), *(self.run.metric_names() if self.run else ())]

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


def look(name: str, folder: Path) -> Look:
    """A run as it is now, which is read again only after its files have changed."""
    return _look(name, folder, signature(folder))


@lru_cache(maxsize=KEPT)
def _look(name: str, folder: Path, written: Signature) -> Look:
    return read_look(name, folder)


def signature(folder: Path) -> Signature:
    """What differs after a file of the run was written, added or removed."""
    files = []
    for pattern in (*PARTS, *FILES):
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            try:
                if resolve_within(folder, name):
                    status = path.stat()
                    files.append((name, status.st_mtime_ns, status.st_size))
            except OSError:  # it has vanished since it was listed, or is a link to nothing
                continue
    return tuple(files)


def read_look(name: str, folder: Path) -> Look:
    """Read a run. Files can vanish between listing and reading, so it is tried once more."""
    problem = ""
    for _ in range(2):
        try:
            samples = folder / "samples"
            completions = read_completions(samples) if resolve_within(folder, "samples") else {}
            measured = sorted(read_measured(folder), key=lambda evaluation: (evaluation.step, evaluation.final))
            return Look(name, folder, read_run(folder), completions=completions, evaluations=measured)
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
    """Names of all metrics, those of most runs first, held-out rewards before those of training and those before
    others, then in order of appearance."""
    counts = Counter(name for look in looks if look.run for name in look.metrics())

    def rank(name: str) -> tuple[bool, bool, int]:
        training = name.startswith("reward/") and name.endswith("/mean")
        return not name.startswith(HELD_OUT), not training, -counts[name]

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
    x, y = thin_out(across, running_mean(values, percent) if percent else values, POINTS)
    known = np.isfinite(x) & np.isfinite(y)
    return list(zip(x[known].astype(float).tolist(), y[known].tolist(), strict=True))


def interval_curve(look: Look, metric: str, seconds: bool) -> Curve:
    """The curve of a held-out reward of a run with its intervals; ``seconds`` are those of training."""
    points = look.held_out(metric.removeprefix(HELD_OUT))
    if seconds and look.run:
        steps, times = series(look.run.metrics, "seconds")
        at = {0: 0.0, **dict(zip(steps.tolist(), times.tolist()))}
        points = [(at[step], interval) for step, interval in points if np.isfinite(at.get(step, np.nan))]
    mean, low, high = (
        [(float(x), getattr(interval, end)) for x, interval in points] for end in ("mean", "low", "high")
    )
    return Curve(look.name, mean, mean, low, high, paired_difference(look, metric.removeprefix(HELD_OUT)))


def paired_difference(look: Look, reward: str) -> str:
    """The mean difference of the prompts between both ends of a run, and its interval; empty where it has none."""
    differences = look.run.evaluation.get("difference") if look.run else None
    difference = differences.get(reward) if isinstance(differences, Mapping) else None
    if not isinstance(difference, Mapping) or not all(
        is_number(difference.get(end)) for end in ("mean", "low", "high")
    ):
        return ""
    return f"{difference['mean']:+.3f} [{difference['low']:.3f}, {difference['high']:.3f}] paired by prompt"


def differences(looks: Sequence[Look]) -> dict[str, list[str]]:
    """Settings by their flat names whose values differ among the runs, and the values; a dash where there is none."""
    settings = [dict(islice(flat(look.run.config), SETTINGS)) for look in looks if look.run]
    names = dict.fromkeys(name for config in settings for name in config)
    rows = {name: [config.get(name, "\N{EN DASH}") for config in settings] for name in names}
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


# ---- what is shown


def chart(looks: Sequence[Look], metric: str, axis: str, percent: int) -> str:
    """The curves of a metric, a colour for each run."""
    title, seconds = title_of(metric), axis == SECONDS
    if held_out := metric.startswith(HELD_OUT):
        title = f"{title}: mean over prompts, 95 % intervals"
    curves = [
        interval_curve(look, metric, seconds)
        if held_out
        else Curve(look.name, curve_points(look, metric, seconds, 0), curve_points(look, metric, seconds, percent))
        for look in looks
    ]
    without = [curve.name for curve in curves if not curve.thin]
    notes = [f"Without this metric: {', '.join(without)}."] if metric and without else []
    if len(without) == len(curves):
        nothing = (
            "None of the chosen runs has values of this metric." if metric else "The chosen runs have no metrics yet."
        )
        notes.insert(0, nothing)
    return chart_html(title, axis, curves, notes)


MEDIA = 32 * 1024 * 1024
"""Bytes of images and audio of a run that are shown at once."""
LEVEL = 2
"""Level of the heading of a run."""
PROMPTS = 6
"""Completions that are shown at once."""


@dataclass
class Samples:
    """The samples of a run before training and at one moment."""

    name: str
    notes: list[str] = field(default_factory=list)
    grids: dict[str, Medium] = field(default_factory=dict)
    prompt_files: list[Section] = field(default_factory=list)


def details_html(looks: Sequence[Look]) -> str:
    """For every run what its report begins with: facts, alarms, and results before and after."""
    return render("demo_details.html", {"looks": [details(look) for look in looks]})


def details(look: Look) -> tuple[str, str, list[str]]:
    """The name of a run, and its parts, or the problem that it has: files can be of any form, so a table can be
    impossible."""
    if look.run is None:
        return look.name, look.problem, []
    try:
        further = [error_rate_table(look.run), *extra_tables(look.run), correlation_table(look.run)]
        tables = [reward_table(look.run), *(table for table in further if table.rows)]
        top = render("header.html", head(look.run, look.name, LEVEL))
    except ValueError as error:
        return look.name, f"This run cannot be shown: {error}.", []
    return look.name, "", [top, render("results.html", {"results": tables, "level": LEVEL})]


def differences_html(looks: Sequence[Look]) -> str:
    """The settings that differ among the runs."""
    read = [look for look in looks if look.run]
    return render("demo_differences.html", {"names": [look.name for look in read], "rows": differences(looks)})


def samples_html(looks: Sequence[Look], moment: str) -> str:
    """The samples of every run at a moment, next to those before training."""
    return render("demo_samples.html", {"shown": [samples(look, moment) for look in looks] if moment else []})


def samples(look: Look, moment: str) -> Samples:
    """Samples of each prompt before training and at a moment; grids where a run has nothing else."""
    shown = Samples(look.name)
    if look.run is None or not resolve_within(look.folder, "samples"):
        shown.notes.append(look.problem or "The samples are a link out of the run folder, which is not followed.")
        return shown
    folder = MediaFolder(look.folder / "samples", MEDIA)
    for when in dict.fromkeys(["before", moment]):
        for title, name in look.titles(when):
            if when in look.completions.get(name, {}):
                continue  # shown below, each sample of its own
            text = heading(when, name)
            shown.grids[text] = shown_image(folder, look.run.samples[title], f"Samples of {look.name}, {text}")
    for name, moments in look.completions.items():
        chosen = {when: moments[when][:PROMPTS] for when in dict.fromkeys(["before", moment]) if when in moments}
        if moment in chosen:
            shown.prompt_files.append(section(folder, name, chosen))
    if moment not in look.moments():
        known = ", ".join(heading(when) for when in islice(sorted(look.moments()), 20))
        shown.notes.append(f"No samples: {heading(moment)}. " + (f"There are: {known}." if known else ""))
    return shown


# ---- the tab

FIRST, MOST = 3, len(COLOURS)
"""Runs that are shown at first, and at once."""
STEP, SECONDS = "optimizer step", "seconds"
EVERY = 5.0
"""Seconds after which a run that is unfinished is looked at again."""
Number = float | int


def chosen_of(opened: Opened, names: Sequence[str] | None) -> dict[str, Path]:
    """The folders of the named runs; a name that is not open is an error."""
    names = list(dict.fromkeys(names or ()))
    if unknown := [name for name in names if name not in opened.runs]:
        raise gr.Error(f"got the run {escape(unknown[0][:80])!r}, expected one that is open", print_exception=False)
    if len(names) > MOST:
        raise gr.Error(f"got {len(names)} runs, expected at most {MOST}", print_exception=False)
    return {name: opened.runs[name] for name in names}


def looks_of(opened: Opened, names: Sequence[str] | None) -> list[Look]:
    """The named runs as they are now."""
    return [look(name, folder) for name, folder in chosen_of(opened, names).items()]


def signatures(opened: Opened, names: Sequence[str] | None) -> list[Signature]:
    """What differs after any file of the named runs was written."""
    return [signature(folder) for folder in chosen_of(opened, names).values()]


def later_runs(runs: Mapping[str, Path], folders: Sequence[str]) -> dict[str, Path]:
    """Runs that have appeared in the named folders since; a link out of such a folder is not followed."""
    later: dict[str, Path] = {}
    for folder in (Path(text).resolve() for text in folders):
        for marker in sorted(folder.glob(f"*/{MARKER}")):
            run = marker.parent.resolve()
            if run.parent == folder and run not in runs.values() and not run.name.startswith("."):
                later[run.name if run.name not in {**runs, **later} else str(run)] = run
    return later


def label(name: str) -> str:
    """A name that can be shown in a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name[:120])


def overview(opened: Opened, names: Sequence[str] | None, metric: str | None, axis: str, percent: Number, at: Number):
    """All parts of the tab: metric, plot, results, differences, moment, samples, timer, signatures."""
    seen = signatures(opened, names)
    looks = looks_of(opened, names)
    metrics, moments = metrics_of(looks), moments_of(looks)
    metric = metric if metric in metrics else next(iter(metrics), None)
    number = min(max(1, int(at or len(moments))), max(1, len(moments)))
    return (
        gr.Dropdown(choices=[(label(name), name) for name in metrics], value=metric),
        chart(looks, metric or "", axis, int(percent)),
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
    with gr.Row():
        chosen = gr.Dropdown(
            list(opened.runs), value=list(opened.runs)[:FIRST], multiselect=True, label="runs", elem_id="runs-choose",
            max_choices=MOST, scale=4, min_width=240,
        )  # fmt: skip
        # Any value is taken: the names to choose from change with the runs, and an unknown one has no curve.
        metric = gr.Dropdown(
            [], label="metric", elem_id="runs-metric", scale=3, min_width=200, allow_custom_value=True
        )  # fmt: skip
        at = gr.Slider(1, 2, step=1, label="samples", visible=False, elem_id="runs-moment", scale=3, min_width=240)
        refresh = gr.Button("Refresh", elem_id="runs-refresh", size="md", scale=1, min_width=120)
    plot = gr.HTML(elem_id="runs-curves", padding=False)
    samples = gr.HTML(elem_id="runs-samples", padding=False)
    details = gr.HTML(elem_id="runs-details", padding=False)
    with gr.Accordion("axis and smoothing of the chart", open=False, elem_id="runs-chart"), gr.Row():
        axis = gr.Radio([STEP, SECONDS], value=STEP, label="horizontal axis", elem_id="runs-axis", min_width=240)
        percent = gr.Slider(0, 20, value=10, step=1, label="smoothing, %", elem_id="runs-smooth", min_width=240)
    with gr.Accordion("settings that differ", open=False, elem_id="runs-settings"):
        settings = gr.HTML(elem_id="runs-differences", padding=False)
    timer = gr.Timer(EVERY, active=False)
    seen = gr.State([])

    def show(names: list[str], metric: str | None, axis: str, percent: Number) -> Any:
        return overview(opened, names, metric, axis, percent, 0)

    def first(names: list[str] | None, metric: str | None, axis: str, percent: Number) -> Any:
        # The page may have been built before runs that another visitor has found.
        names = [name for name in names or () if name in opened.runs]
        return gr.Dropdown(list(opened.runs), value=names), *overview(opened, names, metric, axis, percent, 0)

    def redraw(seen: Any, names: list[str], metric: str | None, axis: str, percent: Number, at: Number) -> Any:
        if signatures(opened, names) == seen:
            return [gr.skip()] * len(parts)
        return overview(opened, names, metric, axis, percent, at)

    def draw(names: list[str], metric: str | None, axis: str, percent: Number) -> Any:
        return chart(looks_of(opened, names), metric or "", axis, int(percent))

    def see(names: list[str], at: Number) -> Any:
        looks = looks_of(opened, names)
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
        return gr.Dropdown(list(opened.runs), value=names)

    choices = [chosen, metric, axis, percent]
    parts = [metric, plot, details, settings, at, samples, timer, seen]
    if Context.root_block:  # the page
        Context.root_block.load(first, choices, [chosen, *parts], **QUIET)
    chosen.input(show, choices, parts, **QUIET)
    refresh.click(look_again, [chosen], [chosen], **QUIET).success(show, choices, parts, **QUIET)
    timer.tick(redraw, [seen, *choices, at], parts, **QUIET)
    last: dict[str, Any] = {**QUIET, "trigger_mode": "always_last"}
    for control in (metric.input, axis.input, percent.input):
        control(draw, choices, plot, **last)
    at.input(see, [chosen, at], [at, samples], **last)
