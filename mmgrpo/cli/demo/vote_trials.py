"""Blind trials: what both models of a pair make of one prompt from the same noise, in random order."""

from __future__ import annotations

import html
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from mmgrpo.cli.demo.models import AFTER, BEFORE, Opened, Pair
from mmgrpo.cli.demo.rewards_media import checked_text, decoded, figure, one_line
from mmgrpo.cli.demo.rewards_scoring import absent
from mmgrpo.cli.demo.vote_store import BOTH_BAD, LEFT, RIGHT, Tally
from mmgrpo.config.registry import parse
from mmgrpo.report.audio_player import MIME
from mmgrpo.report.cards import read_completions
from mmgrpo.report.media import PICTURE_SUFFIXES, contained
from mmgrpo.rewards import entries, scorer
from mmgrpo.scoring import Scorer
from mmgrpo.scoring.isolation import score_column
from mmgrpo.types import Audio, Image, Media, Output, Prompt, Request, Text, Turn, Video

SIDES = (BEFORE, AFTER)
WORDS = {BEFORE: "before training", AFTER: "after training"}
QUESTIONS = 50
"""Most prompts of a pair that can be chosen."""
TRIES = 8
"""Prompts that are tried until the two models differ."""
ANY = "any"


@dataclass(frozen=True)
class Question:
    """A prompt, and what both sides made of it where a run has kept that."""

    prompt: Prompt
    outputs: tuple[Output, Output] | None = None
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)


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
    skipped: int = 0
    """Prompts before this one on which both sides did the same."""

    @property
    def right(self) -> str:
        return AFTER if self.left == BEFORE else BEFORE

    @property
    def is_same(self) -> bool:
        return same(*self.outputs.values())

    def shown(self) -> Mapping[str, Output]:
        """The outputs by place."""
        return {"left": self.outputs[self.left], "right": self.outputs[self.right]}

    def row(self, vote: str, pair: Pair) -> dict[str, Any]:
        """The vote in GenAI-Bench's form with what rewards read of the prompt, without the media."""
        asked = self.prompt
        names = {BEFORE: str(pair.config.model.path), AFTER: f"{pair.name} {pair.weights}".strip()}
        return {
            # A transcription has no text; the prompt is also what a bootstrap draws.
            "prompt": asked.text if asked.text.strip() else f"({asked.id or 'no text'})",
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


def same(one: Output, other: Output) -> bool:
    """Whether nobody can tell two outputs apart."""
    if isinstance(one, Text) and isinstance(other, Text):
        return one.text == other.text
    for kind, name in ((Image, "pixels"), (Video, "frames"), (Audio, "samples")):
        if isinstance(one, kind) and isinstance(other, kind):
            return torch.equal(getattr(one, name), getattr(other, name))
    return False


def compared(opened: Opened) -> list[str]:
    """The pairs that have two sides."""
    return [name for name, pair in opened.pairs.items() if len(pair.sides) == 2]


def questions(pair: Pair) -> list[Question]:
    """Held-out prompts of a pair; where they cannot be read here, those of which the run has kept completions."""
    return [Question(prompt) for prompt in pair.examples(QUESTIONS)] or (list(kept(pair.run)) if pair.run else [])


def kept(run: Path) -> Iterator[Question]:
    """Completions before and after training in ``samples`` of a run folder; damaged files have none."""
    folder = run / "samples"
    try:
        moments = next(iter(read_completions(folder).values()), {})
    except (OSError, ValueError):
        return
    before = {row["id"]: row for row in moments.get(BEFORE, ())}
    for row in moments.get(AFTER, ())[:QUESTIONS]:
        if (first := before.get(row["id"])) and not {"sound", "image"} & row.keys():
            names = [name for name in row["media"] if contained(folder, name)]
            media = tuple(Media(kind, str(contained(folder, name))) for name in names if (kind := _kind(name)))
            prompt = Prompt(row["prompt"], row["id"], row["answer"], row["task"], row["meta"])
            prompt = Prompt(prompt.text, prompt.id, prompt.answer, prompt.task, prompt.meta, (Turn("user", media),))
            values = {name: (_float(first["rewards"].get(name)), _float(end)) for name, end in row["rewards"].items()}
            yield Question(prompt, (Text(first["completion"]), Text(row["completion"])), values)


def _kind(name: str) -> str:
    suffix = Path(name).suffix.lower()
    return "image" if suffix in PICTURE_SUFFIXES else "audio" if suffix in MIME else ""


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def can_be_typed(pair: Pair, several: Sequence[Question]) -> bool:
    """Whether a prompt of this pair is a text alone; a text that is typed is never taken for the name of a file."""
    return pair.modality != "vlm" and not any(one.prompt.media or one.outputs for one in several)


def chosen(several: Sequence[Question], pair: Pair, place: str, typed: str) -> list[Question]:
    """The questions to try, in order: what was typed, the chosen one, or some in a random order."""
    if typed.strip():
        if not can_be_typed(pair, several):
            raise ValueError("prompts of this pair are more than a text; choose one of the list")
        return [Question(Prompt(checked_text(typed, "the prompt"), id="typed"))]
    if not several:
        raise ValueError(f"no held-out prompt of '{pair.name}' can be read here; write one, or open its data")
    if place == ANY:
        return secrets.SystemRandom().sample(list(several), min(TRIES, len(several)))
    if not place.isdecimal() or int(place) >= len(several):
        raise ValueError(f"got the prompt '{place[:80]}', expected one of the list")
    return [several[int(place)]]


def trials(opened: Opened, name: str, several: Sequence[Question]) -> Iterator[Trial | str]:
    """What goes on, in words, and at last the first trial whose outputs differ, else the last one."""
    pair = opened.pairs[name]
    for skipped, question in enumerate(several):
        seed, outputs, values = secrets.randbelow(1 << 31), question.outputs, question.values
        if outputs is None:
            made = []
            for number, side in enumerate(SIDES):
                yield f"{'loading and ' if not opened.holds(name, side) else ''}sampling {number + 1} of 2"
                with opened.lock:
                    request = Request(prompts=[question.prompt], slots=[0], group_size=1, seed=seed)
                    made.append(opened.policy(name, side).sample(request)[0])
            outputs = (made[0], made[1])
        last = question is several[-1]
        if same(*outputs) and not last:
            continue
        if question.outputs is None:
            yield "scoring"
            with opened.lock:
                values = judge(tuple(map(str, pair.config.rewards)), opened.device, question.prompt, outputs)
        left = SIDES[secrets.randbelow(2)]
        yield Trial(name, question.prompt, seed, dict(zip(SIDES, outputs)), left, values, skipped)
        return


def judge(
    specs: tuple[str, ...], device: str, prompt: Prompt, outputs: Sequence[Output]
) -> dict[str, tuple[float, float]]:
    """Values of the run's rewards before and after; NaN for what cannot be scored or would be downloaded."""
    values = {}
    for spec in specs:
        try:
            one = judge_of(spec, device)
            column = score_column(one.name, one.fn, [prompt] * 2, outputs, one.trusted, one.elsewhere)
        except (RuntimeError, ValueError, OSError, ModuleNotFoundError):
            values[parse(spec)[0]] = (math.nan, math.nan)
        else:
            values[one.name] = (column[0], column[1])
    return values


@cache
def judge_of(spec: str, device: str) -> Scorer:
    """A reward of a run's recipe; ValueError for one that would download something."""
    entry = entries().get(parse(spec)[0])
    manifest = entry.read_manifest() if entry else None
    if manifest and (reason := absent(manifest)):
        raise ValueError(f"{spec}: {reason}")
    return scorer(spec, device)


def sides_html(trial: Trial, told: bool = False) -> str:
    """Both outputs side by side; their names only where they are ``told``."""
    return (
        "<div class='mm-sides'>"
        + "".join(
            figure(output, f"{place}: {WORDS[side]}" if told else place)
            for (place, output), side in zip(trial.shown().items(), (trial.left, trial.right))
        )
        + "</div>"
    )


def reveal_html(trial: Trial, vote: str) -> str:
    """Which was which, what the visitor preferred, and what the rewards prefer; without a vote only the rest."""
    said = {
        LEFT: f"You preferred the left one: <strong>{WORDS[trial.left]}</strong>.",
        RIGHT: f"You preferred the right one: <strong>{WORDS[trial.right]}</strong>.",
        BOTH_BAD: "You found both bad.",
    }.get(vote, "You saw a tie." if vote else "Skipped, not stored.")
    which = f"Left was {WORDS[trial.left]}, right {WORDS[trial.right]}."
    answer = trial.prompt.answer
    gold = f" The reference is “{html.escape(str(answer)[:500])}”." if isinstance(answer, str | int | float) else ""
    rows = "".join(_reward_row(name, *pair, trial.left) for name, pair in trial.values.items())
    head = "".join(f"<th scope='col'>{one}</th>" for one in ("reward", "left", "right", "prefers"))
    table = f"<div class='mm-wide'><table class='mm-table'><tr>{head}</tr>{rows}</table></div>" if rows else ""
    return f"<p>{said} {which}{gold}</p>{table}"


def _reward_row(name: str, before: float, after: float, left: str) -> str:
    order = (before, after) if left == BEFORE else (after, before)
    cells = "".join(
        f"<td class='mm-number'>{'failed' if math.isnan(one) else f'{one + 0.0:.4g}'}</td>" for one in order
    )
    return f"<tr><th scope='row'>{html.escape(name)}</th>{cells}<td>{preference(before, after)}</td></tr>"


def preference(before: float, after: float) -> str:
    """The side that a reward prefers, in words."""
    if math.isnan(before) or math.isnan(after):
        return "not known"
    return WORDS[AFTER] if after > before else WORDS[BEFORE] if before > after else "neither"


def tally_html(counts: Tally, pair: str) -> str:
    """The votes on a pair so far, in words."""
    rate = counts.win_rate
    if rate is None:
        return f"<p class='mm-note'>No vote on {html.escape(pair)} yet.</p>"
    plural = "" if counts.votes == 1 else "s"
    return (
        f"<p><strong>{html.escape(pair)}: the trained model wins {100 * rate.mean:.0f} %</strong> "
        f"[{100 * rate.low:.0f}, {100 * rate.high:.0f}] of {counts.votes} vote{plural} (ties half, 95 % interval): "
        f"{counts.after} for it, {counts.before} for the initial one, {counts.neither} for neither.</p>"
    )


def media_of(prompt: Prompt) -> list[Output]:
    """The media that a prompt asks about; those that cannot be read are left out."""
    media = []
    for one in prompt.media:
        try:
            media.append(decoded(one))
        except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
            print(f"a vote is stored without a medium of its prompt: {one_line(error)}", flush=True)
    return media
