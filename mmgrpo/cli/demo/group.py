"""The tab Group: the samples of a training prompt by reward, with their advantages, and the branches of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.parts import PRIVATE, at_choice, note
from mmgrpo.report.group_page import group_page
from mmgrpo.report.groups import group_steps, read_group

NO_RUN = "No run is open. Train one with <code>mmgrpo train</code> and open it: <code>mmgrpo demo runs/demo</code>."
NO_GROUPS = (
    "This run has no training groups. A run keeps them unless <code>--groups-kept 0</code> is set; one that was made "
    "before has none, and keeps them from its next step on when it goes on with <code>--resume</code>."
)
CHOOSE = (Path(__file__).parent / "group.js").read_text(encoding="utf-8")
"""Left and right lead to the parent and the first child, up and down to nodes of the same step, Enter chooses. The
nodes and edges that are neither below nor above the chosen one are dimmed; only texts are set."""
ENTITIES = str.maketrans({"{": "&#123;", "}": "&#125;", "$": "&#36;", "`": "&#96;", "\\": "&#92;"})
"""Characters with a meaning in the templates of Gradio's HTML component, which may occur in prompts and outputs."""


def steps_of(opened: Opened, run: str | None) -> list[int]:
    """The steps of which the run has groups, the newest first."""
    return group_steps(opened.runs[opened_run(opened, run)])[::-1] if run else []


def show(opened: Opened, run: str | None, step: int | str | None) -> str:
    """Mark-up of a group; what to do where there is none."""
    if not run:
        return note(NO_RUN)
    steps = steps_of(opened, run)
    if not steps:
        return note(NO_GROUPS)
    if step not in steps:
        raise gr.Error(f"this run has no group of step {step}; choose one from the list")
    folder = opened.runs[run]
    try:
        page = group_page(folder, read_group(folder, int(step)), interactive=True)
    except (OSError, ValueError) as error:
        raise gr.Error(str(error).partition("\n")[0][:300]) from error
    style, end, content = page.partition("</style>")
    return style + end + content.translate(ENTITIES)


def opened_run(opened: Opened, run: str | None) -> str:
    """The name of an opened run; any other is an error, and never a path."""
    if run is None or run not in opened.runs:
        raise gr.Error("no such run; choose one from the list")
    return run


def with_groups_first(opened: Opened) -> Sequence[str]:
    """The names of all runs; those that have groups come first."""
    return sorted(opened.runs, key=lambda name: not group_steps(opened.runs[name]))


def tab(opened: Opened) -> None:
    """Build the tab. Groups are read when a page is opened and when a choice changes."""
    names = with_groups_first(opened)
    gr.Markdown(
        "One prompt of training and all its samples, by reward. An advantage is what training makes of the comparison: "
        "samples with a positive one become more likely."
    )
    with gr.Row():
        run = gr.Dropdown(names, label="Run", elem_id="group-run", min_width=160)
        step = gr.Dropdown([], label="Optimizer step", elem_id="group-step", min_width=160)
        refresh = gr.Button("Refresh", elem_id="group-refresh", min_width=160)
    page = gr.HTML(js_on_load=CHOOSE, elem_id="group-page", apply_default_css=False)

    shown = gr.State()

    def choose(name: str | None) -> tuple[gr.Dropdown, int | None, str]:
        steps = steps_of(opened, name)
        newest = next(iter(steps), None)
        return gr.Dropdown(steps, value=newest), newest, show(opened, name, newest)

    def select(name: str | None, chosen: int | None) -> list[str]:
        return [show(opened, name, chosen)]

    private: dict[str, Any] = {**PRIVATE, "show_progress": "minimal"}
    outputs = [step, shown, page]
    gr.on(None, choose, inputs=run, outputs=outputs, **private)  # when the page is opened, and at a change
    refresh.click(choose, inputs=run, outputs=outputs, **private)
    at_choice(step, shown, select, [run, step], [page], **private)  # a page drawn anew forgets the chosen node
