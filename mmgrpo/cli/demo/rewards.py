"""The tab Rewards: score any file, and see whether a reward rises when the file is damaged."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr

from mmgrpo.cli.demo import rewards_scoring as scoring
from mmgrpo.cli.demo.choice import at_cancel
from mmgrpo.cli.demo.models import Opened
from mmgrpo.cli.demo.rewards_media import STYLE, figure, one_line, read_upload
from mmgrpo.cli.score import SUFFIXES
from mmgrpo.types import Output, Prompt

ABOUT = """Score any image, video, audio or text with any reward of the list, and attack it: a reward that rises when
its picture is blurred, or its text says everything twice, is one that training will exploit."""
NOTHING = "Upload a file or write a text first."
PROGRESS = gr.Progress()
EXAMPLE = ("scene_score", "scene_clean", "jpeg_compressibility")


@contextmanager
def told() -> Iterator[None]:
    """Errors within the block become one line on the page, in which nothing is mark-up."""
    try:
        yield
    except gr.Error:
        raise
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        raise gr.Error(html.escape(one_line(error)), print_exception=False) from error


def upload(file: str | None, text: str | None) -> Output:
    """The upload; an error if there is none."""
    with told():
        output = read_upload(file, text or "")
    if output is None:
        raise gr.Error(NOTHING, print_exception=False)
    return output


def look(file: str | None, text: str | None) -> tuple[str, Any, Any]:
    """What was uploaded, the rewards with those of its kind first, and the attacks that apply to it."""
    with told():
        output = read_upload(file, text or "")
    if output is None:
        shown, kind = f"<p class='mm-note'>{NOTHING}</p>", ""
    else:
        shown, kind = f"<div class='mm-sides'>{figure(output, 'your upload')}</div>", type(output).__name__
    attacks = scoring.attacks_of(output)
    return shown, gr.update(choices=scoring.choices(kind)), gr.update(choices=attacks, value=attacks[0])


def value_all(
    opened: Opened, names: Sequence[str], prompt: Prompt, output: Output, progress: Any
) -> Iterator[list[scoring.Score]]:
    """The scores so far, after each reward, so that others can come between and the visitor can stop."""
    scores: list[scoring.Score] = []
    for place, name in enumerate(names):
        progress((place, len(names)), desc=name, unit="rewards")
        with opened.lock:
            scores.append(scoring.score_one(name, prompt, output, opened.device))
        yield scores


def tab(opened: Opened) -> None:
    """Build the tab."""
    folder = Path(tempfile.mkdtemp(prefix="mmgrpo-demo-"))

    def score(
        file: str | None,
        text: str | None,
        asked: str | None,
        answer: str | None,
        task: str | None,
        names: list[str],
        progress: Any = PROGRESS,
    ) -> Iterator[tuple[str, str]]:
        output = upload(file, text)
        with told():
            chosen, prompt = scoring.known(names), scoring.prompt_of(asked or "", answer or "", task or "")
        shown = f"<div class='mm-sides'>{figure(output, 'your upload')}</div>"
        for scores in value_all(opened, chosen, prompt, output, progress):
            yield shown, scoring.values_html(scores)

    def attack(
        file: str | None,
        text: str | None,
        asked: str | None,
        answer: str | None,
        task: str | None,
        names: list[str],
        which: str,
        strength: int | float,
        other: str | None,
        progress: Any = PROGRESS,
    ) -> Iterator[tuple[str, str]]:
        output = upload(file, text)
        with told():
            chosen, prompt = scoring.known(names), scoring.prompt_of(asked or "", answer or "", task or "")
            swapped, changed = scoring.attacked(which, strength, prompt, output, other or "")
        told_as = scoring.describe(which, strength)
        sides = figure(output, "original") + figure(changed, f"attacked: {told_as}")
        shown = f"<div class='mm-sides'>{sides}</div>"
        yield shown, "<p class='mm-note'>scoring …</p>"
        before: list[scoring.Score] = []
        for before in value_all(opened, chosen, prompt, output, progress):
            yield shown, scoring.values_html(before)
        for after in value_all(opened, chosen, swapped, changed, progress):
            some = before[: len(after)]
            end = f"<p><strong>{html.escape(scoring.verdict(which, some, after))}</strong></p>"
            yield shown, scoring.attack_html(some, after) + (end if len(after) == len(before) else "")

    def again(file: str | None, text: str | None, *rest: Any) -> Iterator[Any]:
        """The attack as the slider moves, once there is something to attack."""
        names, which, other = rest[3], rest[4], rest[6]
        if not (file or (text or "").strip()) or not names or (which == scoring.SWAP and not (other or "").strip()):
            yield gr.skip(), gr.skip()
            return
        yield from attack(file, text, *rest, progress=lambda *place, **words: None)

    def about(names: list[str]) -> str:
        with told():
            return scoring.manifest_html(names)

    def take() -> tuple[str, str, str, str, list[str]]:
        file, prompt = scoring.example(folder)
        return file, "", prompt.text, json.dumps(prompt.answer), list(EXAMPLE)

    gr.HTML(STYLE)
    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(min_width=300):
            suffixes = [suffix for several in SUFFIXES.values() for suffix in several]
            file = gr.File(label="Image, video, audio or .txt", file_types=suffixes, height=140, elem_id="rewards-file")
            text = gr.Textbox(label="or a text", lines=2, max_length=20_000, elem_id="rewards-text")
            asked = gr.Textbox(label="Prompt", lines=2, max_length=20_000, elem_id="rewards-prompt")
            with gr.Accordion("Reference answer and task", open=False):
                answer = gr.Textbox(
                    label="Reference answer", info="JSON or a text", max_length=20_000, elem_id="rewards-answer"
                )
                task = gr.Textbox(label="Task", info="for the reward task", max_length=200, elem_id="rewards-task")
            names = gr.Dropdown(
                scoring.choices(),
                multiselect=True,
                label="Rewards",
                info="Those for your upload come first. All have their default parameters.",
                elem_id="rewards-names",
            )
            with gr.Row():
                run = gr.Button("Score", variant="primary", min_width=90, elem_id="rewards-score")
                stop = gr.Button("Cancel", min_width=90, elem_id="rewards-cancel")
                try_one = gr.Button("Try an example", min_width=90, elem_id="rewards-example")
        with gr.Column(min_width=300):
            shown = gr.HTML(f"<p class='mm-note'>{NOTHING}</p>", elem_id="rewards-shown")
            values = gr.HTML(elem_id="rewards-values")
            with gr.Accordion("What the chosen rewards measure", open=False):
                manifests = gr.HTML("<p class='mm-note'>No reward is chosen.</p>", elem_id="rewards-manifests")
    gr.Markdown("### Attack")
    with gr.Row():
        which = gr.Dropdown(list(scoring.ATTACKS), label="Attack", min_width=200, elem_id="rewards-attack")
        strength = gr.Slider(
            scoring.WEAKEST,
            scoring.STRONGEST,
            value=1,
            step=0.25,
            label="Strength",
            info="1 is that of mmgrpo evaluate-rewards",
            min_width=200,
            elem_id="rewards-strength",
        )
        other = gr.Textbox(
            label="Other prompt", info="for prompt_swap", max_length=20_000, min_width=200, elem_id="rewards-other"
        )
    with gr.Row():
        run_attack = gr.Button("Attack", variant="primary", min_width=90, elem_id="rewards-attack-run")
        stop_attack = gr.Button("Cancel", min_width=90, elem_id="rewards-attack-cancel")
    damage = gr.HTML(elem_id="rewards-attacked")
    effects = gr.HTML(elem_id="rewards-effects")

    private: dict[str, Any] = {"api_visibility": "private"}
    # In the mode "multiple" a click right after a cancellation, which ends with the batch, counts.
    computes: dict[str, Any] = {**private, "concurrency_limit": 1, "concurrency_id": "rewards"}
    asking = [file, text, asked, answer, task, names]
    gr.on([file.change, text.blur], look, [file, text], [shown, names, which], show_progress="hidden", **private)
    names.change(about, names, manifests, show_progress="hidden", **private)
    try_one.click(take, None, [file, text, asked, answer, names], **private)
    scored = run.click(score, asking, [shown, values], **computes, trigger_mode="multiple")
    done = run_attack.click(
        attack, [*asking, which, strength, other], [damage, effects], **computes, trigger_mode="multiple"
    )
    live = gr.on(
        [strength.input, which.input],  # not release, which the keyboard does not cause
        again,
        [*asking, which, strength, other],
        [damage, effects],
        trigger_mode="always_last",
        **computes,
    )
    stopped = "<p class='mm-note'>Cancelled.</p>"
    at_cancel(stop, [scored], lambda: stopped, [], [values], **private)
    at_cancel(stop_attack, [done, live], lambda: stopped, [], [effects], **private)
