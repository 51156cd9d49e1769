"""The tab Vote: which of two samples is better, without knowing which model made which.

Both models of a pair make one prompt from the same noise, and are shown in random order.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import gradio as gr
import torch

from mmgrpo.cli.demo.compare import compare, look_up
from mmgrpo.cli.demo.kept import Question, kept_questions, with_kept
from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair, in_a_line
from mmgrpo.cli.demo.parts import (
    PRIVATE,
    PROGRESS,
    QUIET,
    at_cancel,
    checked_text,
    computing,
    decode,
    escape,
    figure,
    figures,
    note,
    one_line_errors,
    prompt_html,
    reasons_list,
    reward_value,
    table,
)
from mmgrpo.cli.demo.vote_store import BOTH_BAD, LEFT, RIGHT, TIE, Tally, append_vote, tally
from mmgrpo.types import Audio, Image, Output, Prompt, Text, Video

ABOUT = """Two samples of one prompt, one from the model before training and one from after, from the same noise and in
random order. Choose the better one; then the page shows which is which. Votes are stored without anything about you."""
EMPTY = """No pairs to compare: open a run with a trained model (`mmgrpo demo runs/demo`), or two models
(`mmgrpo demo --family sd3 --before MODEL --after MODEL`)."""
BUTTONS = {LEFT: "Left", RIGHT: "Right", TIE: "Tie", BOTH_BAD: "Both bad", "": "Skip"}
IDS = {LEFT: "left", RIGHT: "right", TIE: "tie", BOTH_BAD: "bad", "": "skip"}
CLOSED = "This pair of samples has been voted on; draw the next one."
SIDES = (BEFORE, AFTER)
WORDS = {BEFORE: "before training", AFTER: "after training"}
QUESTIONS = 50
"""Most prompts of a pair that can be chosen."""
TRIES = 8
"""Prompts that are tried until the two models differ."""
ANY = "any"


@dataclass(frozen=True)
class Trial:
    """Two outputs that a visitor compares; which is which stays on the server until the vote."""

    pair: str
    prompt: Prompt
    seed: int
    outputs: Mapping[str, Output]
    """By side."""
    left: str
    """The side that is shown on the left."""
    values: Mapping[str, tuple[float, float]]
    """Rewards: values before and after, NaN where there is none."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a reward failed, by its name."""
    skipped: int = 0
    """Prompts before this one on which both sides did the same."""

    @property
    def right(self) -> str:
        return AFTER if self.left == BEFORE else BEFORE

    def outputs_by_place(self) -> Mapping[str, Output]:
        """The outputs by place."""
        return {"left": self.outputs[self.left], "right": self.outputs[self.right]}

    def row(self, vote: str, pair: Pair) -> dict[str, Any]:
        """The vote in GenAI-Bench's form with what rewards read of the prompt, without the media."""
        prompt = self.prompt
        names = {BEFORE: str(pair.config.model.path), AFTER: f"{pair.name} {pair.weights}".strip()}
        return {
            # A transcription has no text; the prompt is also what a bootstrap draws.
            "prompt": prompt.text if prompt.text.strip() else f"({prompt.id or 'no text'})",
            "vote_type": vote,
            "model_a": names[self.left],
            "model_b": names[self.right],
            "sides": {"left": self.left, "right": self.right},
            "pair": self.pair,
            "family": pair.family.name,
            "seed": self.seed,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            **{
                key: given for key in ("id", "answer", "task") if (given := getattr(self.prompt, key)) not in ("", None)
            },
            **({"meta": dict(self.prompt.meta)} if self.prompt.meta else {}),
        }


@dataclass(frozen=True)
class Ahead:
    """A trial that is drawn before the visitor asks for it, and the choices for which it is: pair, prompt, own text."""

    choices: tuple[str | None, str | None, str | None]
    trial: Trial


def same(one: Output, other: Output) -> bool:
    """Whether nobody can tell two outputs apart."""
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    for kind, name in ((Image, "pixels"), (Video, "frames"), (Audio, "samples")):
        if isinstance(one, kind) and isinstance(other, kind):
            return torch.equal(getattr(one, name), getattr(other, name))
    return False


def comparable_pairs(opened: Opened) -> list[str]:
    """The pairs that have two sides, or samples of both."""
    return [name for name, pair in opened.pairs.items() if len(pair.sides) == 2 or kept_questions(pair.run, 1)]


def questions(pair: Pair) -> list[Question]:
    """Prompts of a pair: those of which its run has kept samples, which are ready at once, then, where both models are
    here, other held-out ones."""
    prompts = pair.examples(None)
    return with_kept(pair.run, prompts, prompts if len(pair.sides) == 2 else (), QUESTIONS)[:QUESTIONS]


def can_be_typed(pair: Pair, several: Sequence[Question]) -> bool:
    """Whether a prompt of this pair is a text alone; a text that is typed is never taken for the name of a file."""
    return len(pair.sides) == 2 and pair.modality != "vlm" and not any(question.prompt.media for question in several)


def choose_questions(
    several: Sequence[Question], pair: Pair, place: str, typed: str, at_once: bool = False
) -> list[Question]:
    """The questions to try, in order: what was typed, the chosen one, or some in a random order, with ``at_once`` only
    those of which there are samples, if there are any."""
    if typed.strip():
        if not can_be_typed(pair, several):
            raise ValueError("prompts of this pair are more than a text; choose one of the list")
        return [Question(Prompt(checked_text(typed, "the prompt"), id="typed"))]
    if not several:
        raise ValueError(f"no held-out prompt of '{pair.name}' can be read here; write one, or open its data")
    if place == ANY:
        several = [question for question in several if question.outputs] * at_once or several
        return secrets.SystemRandom().sample(list(several), min(TRIES, len(several)))
    if not place.isdecimal() or int(place) >= len(several):
        raise ValueError(f"got the prompt '{place[:80]}', expected one of the list")
    return [several[int(place)]]


def trials(opened: Opened, name: str, several: Sequence[Question]) -> Iterator[Trial | str]:
    """What goes on, in words, and at last the first trial whose outputs differ, else the last one."""
    for skipped, question in enumerate(several):
        seed, values = secrets.randbelow(1 << 31), question.values
        reasons: Mapping[str, str] = {}
        if question.outputs:
            seed, outputs = opened.pairs[name].config.eval.seed, (question.output(0), question.output(1))
        else:
            for made in compare(opened, name, question.prompt, seed=seed):
                sides = [made.sides.get(side) for side in SIDES]
                drawn = [side.outputs[0] for side in sides if side]
                if len(drawn) == 2 and question is not several[-1] and same(*drawn):
                    break
                yield made.doing
                reasons = made.failures
            outputs = (drawn[0], drawn[1])
            rows = [side.rewards[0] if side and side.rewards else {} for side in sides]
            values = {title: (value, rows[1].get(title, math.nan)) for title, value in rows[0].items()}
        if same(*outputs) and question is not several[-1]:
            continue
        left = SIDES[secrets.randbelow(2)]
        yield Trial(name, question.prompt, seed, dict(zip(SIDES, outputs)), left, values, reasons, skipped)
        return


def sides_html(trial: Trial, named: bool = False) -> str:
    """Both outputs side by side, with the names of their models only where they are ``named``."""
    sides = zip(trial.outputs_by_place().items(), (trial.left, trial.right))
    return figures(*(figure(output, f"{place}: {WORDS[side]}" if named else place) for (place, output), side in sides))


def reveal_html(trial: Trial, vote: str) -> str:
    """Which was which, what the visitor preferred, and what the rewards prefer; without a vote only the rest."""
    said = {
        LEFT: f"You preferred the left one: <strong>{WORDS[trial.left]}</strong>.",
        RIGHT: f"You preferred the right one: <strong>{WORDS[trial.right]}</strong>.",
        BOTH_BAD: "You found both bad.",
    }.get(vote, "You saw a tie." if vote else "Skipped, not stored.")
    which = f"Left was {WORDS[trial.left]}, right {WORDS[trial.right]}."
    answer = trial.prompt.answer
    gold = f" The reference is “{escape(str(answer)[:500])}”." if isinstance(answer, str | int | float) else ""
    rows = []
    for name, (before, after) in trial.values.items():
        order = (before, after) if trial.left == BEFORE else (after, before)
        cells = [reward_value(value, trial.reasons.get(name, ""), ".4g") for value in order]
        rows.append((escape(name), *cells, preference(before, after)))
    values = table(("reward", "left", "right", "prefers"), rows) if rows else ""
    return f"<p>{said} {which}{gold}</p>{values}{reasons_list(trial.reasons)}"


def preference(before: float, after: float) -> str:
    """The side that a reward prefers, in words."""
    if math.isnan(before) or math.isnan(after):
        return "not known"
    return WORDS[AFTER] if after > before else WORDS[BEFORE] if before > after else "neither"


def tally_html(counts: Tally, pair: str) -> str:
    """The votes on a pair so far, in words."""
    rate = counts.win_rate
    if rate is None:
        return note(f"No vote on {escape(pair)} yet.")
    plural = "" if counts.votes == 1 else "s"
    return (
        f"<p><strong>{escape(pair)}: the trained model wins {100 * rate.mean:.0f} %</strong> "
        f"[{100 * rate.low:.0f}, {100 * rate.high:.0f}] of {counts.votes} vote{plural} (ties half, 95 % interval): "
        f"{counts.after} for it, {counts.before} for the initial one, {counts.neither} for neither.</p>"
    )


def media_of(prompt: Prompt) -> list[Output]:
    """The media that a prompt asks about; those that cannot be read are left out."""
    media = []
    for item in prompt.media:
        try:
            media.append(decode(item))
        except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
            print(f"a vote is stored without a medium of its prompt: {in_a_line(error)}", flush=True)
    return media


# ---- the tab


def left_out(trial: Trial) -> str:
    """A note on prompts on which both models did the same."""
    if same(*trial.outputs.values()):
        return note("Both models did exactly the same here.")
    return note(f"Left out: {trial.skipped} on which both models did exactly the same.") if trial.skipped else ""


def cast(opened: Opened, trial: Trial | None, vote: str) -> tuple[str, str, str]:
    """Store a vote, none if it is empty; both outputs with their names, the reveal, and the tally."""
    if trial is None:
        raise ValueError(CLOSED)
    if vote:
        media = media_of(trial.prompt)
        append_vote(opened.votes, trial.row(vote, opened.pairs[trial.pair]), trial.outputs_by_place(), media)
    counts = tally_html(tally(opened.votes, trial.pair), trial.pair)
    return sides_html(trial, named=True), reveal_html(trial, vote), counts


def tab(opened: Opened) -> None:
    """Build the tab."""
    names = comparable_pairs(opened)
    if not names:
        gr.Markdown(EMPTY, elem_id="vote-empty")
        return

    @cache
    def asked_of(name: str) -> tuple[Question, ...]:
        return tuple(questions(opened.pairs[name]))

    def choose(name: str | None) -> tuple[Any, ...]:
        """The prompts of a pair, its votes so far, and nothing of the pair before."""
        with one_line_errors():
            pair = look_up(opened, name)
            several = asked_of(name := pair.name)
            labels = [
                (question.prompt.text.strip()[:100] or question.prompt.id, str(n)) for n, question in enumerate(several)
            ]
            counts = tally_html(tally(opened.votes, name), name)
            ready = any(question.outputs for question in several)
            *_, first = steps(name, ANY, "", at_once=True) if ready else [None]
        typed = can_be_typed(pair, several)
        prompts = gr.update(choices=[*anyone, *labels], value=ANY)
        shown = opened_on(first) if isinstance(first, Trial) else (None, "", "", "", *disable_buttons())
        return prompts, gr.update(value="", visible=typed), counts, *shown

    def opened_on(trial: Trial) -> tuple[Any, ...]:
        """A trial, and that it can be voted on."""
        question, buttons = (
            prompt_html(trial.prompt) + left_out(trial),
            [gr.update(interactive=True)] * (len(BUTTONS) + 1),
        )
        return trial, question, sides_html(trial), "", *buttons

    def disable_buttons(drawing: bool = False) -> list[Any]:
        """No vote; nothing can be cancelled before drawing is under way, where a cancellation would come first."""
        return [gr.update(interactive=False)] * len(BUTTONS) + [gr.update(interactive=drawing)]

    def steps(name: str | None, place: str | None, typed: str | None, at_once: bool = False) -> Iterator[Trial | str]:
        pair = look_up(opened, name)
        return trials(
            opened, pair.name, choose_questions(asked_of(pair.name), pair, place or ANY, typed or "", at_once)
        )

    def draw(
        name: str | None, place: str | None, typed: str | None, ready: Ahead | None, progress: Any = PROGRESS
    ) -> Iterator[tuple[Any, ...]]:
        """The trial that is ready for these choices, else what goes on until one is."""
        with one_line_errors():
            fits = ready is not None and ready.choices == (name, place, typed)
            ahead = [ready.trial] if ready and fits else steps(name, place, typed, at_once=True)
            yield None, None, "", note("drawing …"), "", *disable_buttons(drawing=True)
            for step in ahead:
                if isinstance(step, Trial):
                    yield None, *opened_on(step)
                else:
                    progress(0.5, desc=step)
                    yield None, None, "", note(f"{step} …"), "", *disable_buttons(drawing=True)

    def prepare(name: str | None, place: str | None, typed: str | None) -> Iterator[Any]:
        """The next trial, while the visitor looks at this one; what fails is said when it is asked for."""
        try:
            for step in steps(name, place, typed):
                yield Ahead((name, place, typed), step) if isinstance(step, Trial) else gr.skip()
        except (OSError, ValueError, RuntimeError):
            yield None

    def handler_of(vote: str) -> Any:
        def store(trial: Trial | None) -> tuple[Any, ...]:
            with one_line_errors():
                sides, reveal, counts = cast(opened, trial, vote)
            return None, sides, reveal, counts, *disable_buttons()

        return store

    anyone = [("any held-out prompt", ANY)]
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
    trial, ready = gr.State(None), gr.State(None, time_to_live=3600)
    question = gr.HTML(elem_id="vote-asked")
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

    every = [*buttons.values(), stop]
    fresh = [place, typed, counts, trial, question, sides, reveal, *every]
    # Without a trigger it also runs when the page is opened, so nothing is read before.
    gr.on(None, choose, pair, fresh, show_progress="hidden", **PRIVATE)
    choices = [pair, place, typed]
    drawing = more.click(draw, [*choices, ready], [ready, trial, question, sides, reveal, *every], **computing("vote"))
    preparing = drawing.success(prepare, choices, ready, **{**computing("vote"), **QUIET})
    for vote, button in buttons.items():
        button.click(
            handler_of(vote),
            trial,
            [trial, sides, reveal, counts, *every],
            concurrency_limit=1,
            concurrency_id="votes",
            **PRIVATE,
        )
    pair.change(None, None, None, cancels=[drawing, preparing], **PRIVATE)

    def clear() -> tuple[Any, ...]:
        """Nothing to vote on, also where the samples were there already."""
        return None, note("Cancelled."), *disable_buttons()

    at_cancel(stop, [drawing], clear, [], [trial, sides, *every], **PRIVATE)
