"""The tab Vote: which of two samples is better, without knowing which model made which."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import gradio as gr

from mmgrpo.cli.demo import vote_trials as trials
from mmgrpo.cli.demo.choice import at_cancel
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.rewards import told
from mmgrpo.cli.demo.rewards_media import STYLE, prompt_html
from mmgrpo.cli.demo.vote_store import BOTH_BAD, LEFT, RIGHT, TIE, append_vote, tally

ABOUT = """Two samples of one prompt, one from the model before training and one from after, from the same noise and in
random order. Choose the better one; then you are told which is which. Votes are stored without anything about you."""
EMPTY = """There is no pair to compare: open a run with a trained model (`mmgrpo demo runs/demo`), or two models
(`mmgrpo demo --family sd3 --before MODEL --after MODEL`)."""
BUTTONS = {LEFT: "Left", RIGHT: "Right", TIE: "Tie", BOTH_BAD: "Both bad", "": "Skip"}
IDS = {LEFT: "left", RIGHT: "right", TIE: "tie", BOTH_BAD: "bad", "": "skip"}
PROGRESS = gr.Progress()
CLOSED = "This pair of samples has been voted on; draw the next one."


def cast(opened: Opened, trial: trials.Trial | None, vote: str) -> tuple[str, str, str]:
    """Store a vote, none if it is empty; both outputs with their names, the reveal, and the tally."""
    if trial is None:
        raise ValueError(CLOSED)
    if vote:
        media = trials.media_of(trial.prompt)
        append_vote(opened.votes, trial.row(vote, opened.pairs[trial.pair]), trial.shown(), media)
    counts = trials.tally_html(tally(opened.votes, trial.pair), trial.pair)
    return trials.sides_html(trial, told=True), trials.reveal_html(trial, vote), counts


def tab(opened: Opened) -> None:
    """Build the tab."""
    names = trials.compared(opened)
    gr.HTML(STYLE)
    if not names:
        gr.Markdown(EMPTY, elem_id="vote-empty")
        return

    @cache
    def questions(name: str) -> tuple[trials.Question, ...]:
        return tuple(trials.questions(opened.pairs[name]))

    def known(name: Any) -> str:
        if name not in names:
            raise ValueError("got a pair that is not open; choose one of the list")
        return name

    def choose(name: str | None) -> tuple[Any, ...]:
        """The prompts of a pair, its votes so far, and nothing of the pair before."""
        with told():
            name = known(name)
            several, pair = questions(name), opened.pairs[name]
            labels = [(one.prompt.text.strip()[:100] or one.prompt.id, str(n)) for n, one in enumerate(several)]
            counts = trials.tally_html(tally(opened.votes, name), name)
        typed = trials.can_be_typed(pair, several)
        prompts = gr.update(choices=[*anyone, *labels], value=trials.ANY)
        return prompts, gr.update(value="", visible=typed), counts, None, "", "", "", *closed()

    def open_() -> list[Any]:
        return [gr.update(interactive=True)] * (len(BUTTONS) + 1)

    def closed(drawing: bool = False) -> list[Any]:
        """No vote; nothing can be cancelled before drawing is under way, where a cancellation would come first."""
        return [gr.update(interactive=False)] * len(BUTTONS) + [gr.update(interactive=drawing)]

    def draw(
        name: str | None, place: str | None, typed: str | None, progress: Any = PROGRESS
    ) -> Iterator[tuple[Any, ...]]:
        with told():
            name = known(name)
            several = trials.chosen(questions(name), opened.pairs[name], place or trials.ANY, typed or "")
        steps = trials.trials(opened, name, several)
        yield None, "", "<p class='mm-note'>drawing …</p>", "", *closed(drawing=True)
        while True:
            with told():
                step = next(steps)
            if isinstance(step, trials.Trial):
                break
            progress(0.5, desc=step)
            yield None, "", f"<p class='mm-note'>{step} …</p>", "", *closed(drawing=True)
        note = ""
        if step.is_same:
            note = "<p class='mm-note'>Both models did exactly the same here.</p>"
        elif step.skipped:
            note = f"<p class='mm-note'>Left out: {step.skipped} on which both models did exactly the same.</p>"
        yield step, prompt_html(step.prompt) + note, trials.sides_html(step), "", *open_()

    def voted(vote: str) -> Any:
        def store(trial: trials.Trial | None) -> tuple[Any, ...]:
            with told():
                sides, reveal, counts = cast(opened, trial, vote)
            return None, sides, reveal, counts, *closed()

        return store

    anyone = [("any held-out prompt", trials.ANY)]
    gr.Markdown(ABOUT)
    with gr.Row():
        pair = gr.Dropdown(names, label="Pair of models", min_width=200, elem_id="vote-pair")
        place = gr.Dropdown(
            anyone,
            label="Prompt",
            min_width=200,
            elem_id="vote-prompt",
        )
        typed = gr.Textbox(
            label="or a prompt of your own", max_length=2_000, min_width=200, visible=False, elem_id="vote-typed"
        )
    trial = gr.State(None)
    asked = gr.HTML(elem_id="vote-asked")
    sides = gr.HTML(elem_id="vote-sides")
    with gr.Row():
        buttons = {
            vote: gr.Button(label, interactive=False, min_width=90, elem_id=f"vote-{IDS[vote]}-button")
            for vote, label in BUTTONS.items()
        }
    with gr.Row():
        more = gr.Button("Next two samples", variant="primary", min_width=140, elem_id="vote-next")
        stop = gr.Button("Cancel", interactive=False, min_width=90, elem_id="vote-cancel")
    reveal = gr.HTML(elem_id="vote-reveal")
    counts = gr.HTML(elem_id="vote-tally")

    private: dict[str, Any] = {"api_visibility": "private"}
    every = [*buttons.values(), stop]
    fresh = [place, typed, counts, trial, asked, sides, reveal, *every]
    # Without a trigger it also runs when the page is opened, so that nothing is read before.
    gr.on(None, choose, pair, fresh, show_progress="hidden", **private)
    drawing = more.click(
        draw,
        [pair, place, typed],
        [trial, asked, sides, reveal, *every],
        concurrency_limit=1,
        concurrency_id="vote",
        trigger_mode="multiple",  # a click right after a cancellation, which ends with the batch, counts
        **private,
    )
    for vote, button in buttons.items():
        button.click(
            voted(vote),
            trial,
            [trial, sides, reveal, counts, *every],
            concurrency_limit=1,
            concurrency_id="votes",
            **private,
        )
    pair.change(None, None, None, cancels=[drawing], **private)

    def cancelled() -> tuple[Any, ...]:
        """Nothing to vote on, also where the samples were there already."""
        return None, "<p class='mm-note'>Cancelled.</p>", *closed()

    at_cancel(stop, [drawing], cancelled, [], [trial, sides, *every], **private)
