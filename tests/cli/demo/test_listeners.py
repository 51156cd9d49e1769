"""What every control listens to: what is read, what is written, and how it is waited for.

A line is ``what happens: what is read > what is written; how it is waited for``. A ``*`` is what the page remembers of
a visitor without showing it. Unless a line says otherwise, an event waits its turn by itself, covers what it writes
while it is waited for, and is ignored while it is under way; after a change, only the last one counts.
"""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest

from tests.cli.demo.test_controls import TABS, opened

SHOWN = "slider alone clip-before clip-after rewards before after"
"""What shows the chosen samples of the tab Visual."""
DRAWN = f"model prompt picture seed count > * status {SHOWN} reward * best winner command"
DRAWS = "on status, multiple, 1 at a time, in the queue visual"
FIELDS = "question answer task file preview"
ASKED = "file text prompt answer task names"
PARTS = "metric curves details differences moment samples * *"
CHOICES = "choose metric axis smooth"
BUTTONS = "left-button right-button tie-button bad-button skip-button cancel"
LISTENERS = {
    "visual": f"""
model.input: model * model > * example * prompt picture; hidden
example.input: example * example > * prompt; hidden
generate.click: {DRAWN}; {DRAWS}
prompt.submit: {DRAWN}; {DRAWS}
again.click: seed > seed; hidden
after again.click: {DRAWN}; {DRAWS}
cancel.click: ends generate.click, prompt.submit, after again.click
after cancel.click: * > status; hidden
before.click: * > {SHOWN}; hidden
after.click: * > {SHOWN}; hidden
best.input: * reward best > {SHOWN} winner; hidden, always_last
reward.input: reward * * reward best > * {SHOWN} winner; hidden, always_last
""",
    "vlm": f"""
pair.change + page.load: pair > example * {FIELDS}; hidden
example.input: example * pair example > * {FIELDS}; hidden
file.upload + file.clear: file > example * answer task preview; hidden
ask.click: pair example file question answer task coordinates count temperature seed > status result; on status, \
multiple, 1 at a time
cancel.click: ends ask.click
after cancel.click: > status; hidden
""",
    "speech": """
recognizer.change + page.load: recognizer > example * reference question file preview; hidden
example.input: example * recognizer example > * reference question file preview; hidden
file.upload + file.stop_recording: recognizer file > example * reference preview; hidden
transcribe.click: recognizer example file question reference > transcribe-status transcripts; on transcribe-status, \
multiple, 1 at a time
transcribe-cancel.click: ends transcribe.click
after transcribe-cancel.click: > transcribe-status; hidden
voice.change + page.load: voice > said * text; hidden
said.input: said * voice said > * text; hidden
speak.click: voice said text > speak-status sounds; on speak-status, multiple, 1 at a time
speak-cancel.click: ends speak.click
after speak-cancel.click: > speak-status; hidden
""",
    "rewards": f"""
file.change + text.blur: file text > shown names attack; hidden
names.change: names > manifests; hidden
example.click: > file text prompt answer names
score.click: {ASKED} > shown values; multiple, 1 at a time, in the queue rewards
attack-run.click: {ASKED} attack strength other > attacked effects; multiple, 1 at a time, in the queue rewards
strength.input + attack.input: {ASKED} attack strength other > attacked effects; always_last, 1 at a time, \
in the queue rewards
cancel.click: ends score.click
after cancel.click: > values
attack-cancel.click: ends attack-run.click, strength.input + attack.input
after attack-cancel.click: > effects
""",
    "group": """
run.change + page.load: run > step * page; minimal
refresh.click: run > step * page; minimal
step.input: step * run step > * page; minimal
""",
    "runs": f"""
page.load: {CHOICES} > choose {PARTS}; hidden
choose.input: {CHOICES} > {PARTS}; hidden
refresh.click: choose > choose none; hidden
after refresh.click, if it succeeds: {CHOICES} > {PARTS}; hidden
*.tick: * {CHOICES} moment > {PARTS}; hidden
metric.input: {CHOICES} > curves; hidden, always_last
axis.input: {CHOICES} > curves; hidden, always_last
smooth.input: {CHOICES} > curves; hidden, always_last
moment.input: choose moment > moment samples; hidden, always_last
""",
    "vote": f"""
pair.change + page.load: pair > prompt typed tally * asked sides reveal {BUTTONS}; hidden
next.click: pair prompt typed > * asked sides reveal {BUTTONS}; multiple, 1 at a time, in the queue vote
left-button.click: * > * sides reveal tally {BUTTONS}; 1 at a time, in the queue votes
right-button.click: * > * sides reveal tally {BUTTONS}; 1 at a time, in the queue votes
tie-button.click: * > * sides reveal tally {BUTTONS}; 1 at a time, in the queue votes
bad-button.click: * > * sides reveal tally {BUTTONS}; 1 at a time, in the queue votes
skip-button.click: * > * sides reveal tally {BUTTONS}; 1 at a time, in the queue votes
pair.change: ends next.click
cancel.click: ends next.click
after cancel.click: > * sides {BUTTONS}
""",
}


def happening(fn: Any, page: gr.Blocks, names: dict[int, str]) -> str:
    """What an event follows."""
    if fn.trigger_after is not None:
        ended = happening(page.fns[fn.trigger_after], page, names)
        return f"after {ended}" + (", if it succeeds" if fn.trigger_only_on_success else "")
    return " + ".join(f"{names.get(at, 'page')}.{event}" for at, event in fn.targets)


def said(fn: Any, page: gr.Blocks, names: dict[int, str]) -> str:
    """An event as a line."""
    happens = happening(fn, page, names)
    reads, writes = (" ".join(names[one._id] for one in several) for several in (fn.inputs, fn.outputs))
    line = f"{happens}: {reads} > {writes}".replace("  ", " ")
    if fn.fn is None:
        return f"{happens}: ends " + ", ".join(happening(page.fns[number], page, names) for number in fn.cancels)
    changes = any(event == "change" for _, event in fn.targets)
    options = [fn.show_progress] if fn.show_progress != "full" else []
    options += [f"on {names[one._id]}" for one in fn.show_progress_on or ()]
    options += [fn.trigger_mode] if fn.trigger_mode != ("always_last" if changes else "once") else []
    options += [f"{fn.concurrency_limit} at a time"] if fn.concurrency_limit != "default" else []
    options += [f"in the queue {fn.concurrency_id}"] if not fn.concurrency_id.isdecimal() else []
    options += [] if fn.queue else ["without a queue"]
    return line + (f"; {', '.join(options)}" if options else "")


@pytest.mark.parametrize("tab", TABS)
def test_every_event_reads_and_writes_what_its_line_says(tab: str):
    module, _, pairs = TABS[tab]
    with gr.Blocks() as page:
        module.tab(opened(pairs))
    names = {number: str(one.elem_id or "*").removeprefix(f"{tab}-") for number, one in page.blocks.items()}
    assert {fn.api_visibility for fn in page.fns.values()} == {"private"}
    heard = [said(fn, page, names) for fn in page.fns.values() if fn.fn is not None or fn.cancels]
    assert heard == LISTENERS[tab].strip().split("\n")
