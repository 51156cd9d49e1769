"""Samples that a run has kept of its held-out prompts, before training and at its last evaluation: they are shown and
voted on at once, without a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmgrpo.cli.demo.models import AFTER
from mmgrpo.cli.demo.parts import decode
from mmgrpo.report.audio_player import MIME
from mmgrpo.report.cards import Row, read_completions
from mmgrpo.report.media import IMAGE_SUFFIXES, resolve_within
from mmgrpo.types import Media, Output, Prompt, Text, Turn

MOVING = (".gif", ".webp")
"""Suffixes of clips as a report plays them, which are smaller than the videos were."""


@dataclass(frozen=True)
class Question:
    """A prompt, and what both sides made of it where a run has kept that: a text, or the file of another output."""

    prompt: Prompt
    outputs: tuple[Output | Media, Output | Media] | None = None
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Rewards before and after, NaN where there is none."""
    moment: str = ""
    """When the second was made: ``model`` for the end of the run, else the step."""

    def output(self, place: int) -> Output:
        """What one side made, read where it is a file."""
        assert self.outputs is not None
        output = self.outputs[place]
        return decode(output) if isinstance(output, Media) else output


def kept_questions(run: Path | None, most: int) -> list[Question]:
    """At most ``most`` held-out prompts of which ``samples`` in a run folder has an output of both moments, in the
    order of the file; damaged files have none, and links out of the folder are not followed."""
    if run is None or resolve_within(run, "samples") is None:
        return []
    folder = run / "samples"
    try:
        moments = next(iter(read_completions(folder).values()), {})
    except (OSError, ValueError):
        return []
    if len(moments) < 2:
        return []
    last = [*moments][-1]
    first = {row["id"]: row for row in next(iter(moments.values()))}
    pairs = [(first[row["id"]], row) for row in moments[last] if row["id"] in first]
    when = "model" if last == AFTER else last.removeprefix("step-")
    questions = []
    for before, after in pairs[:most]:
        outputs = _output(folder, before), _output(folder, after)
        if outputs[0] is not None and outputs[1] is not None:
            values = {
                name: (_float(before["rewards"].get(name)), _float(end)) for name, end in after["rewards"].items()
            }
            questions.append(Question(_prompt(folder, after), (outputs[0], outputs[1]), values, when))
    return questions


def with_kept(run: Path | None, prompts: Sequence[Prompt], others: Sequence[Prompt], most: int) -> list[Question]:
    """At most ``most`` questions of which a run has kept samples, each with its whole prompt where ``prompts`` has it,
    then ``others`` without samples. Prompts can have equal or empty ids."""
    whole = {prompt.id: prompt for prompt in prompts}
    first = [
        replace(question, prompt=whole.get(question.prompt.id, question.prompt))
        for question in kept_questions(run, most)
    ]
    ids = {question.prompt.id for question in first}
    return [*first, *(Question(prompt) for prompt in others if prompt.id not in ids)]


def _output(folder: Path, row: Row) -> Output | Media | None:
    """None for a file that is not there, and for one that is less than the output was."""
    name = row.get("image") or row.get("sound")
    if Path(name or "").suffix.lower() in MOVING:
        return None
    return _medium(folder, name) if name else Text(row["completion"])


def _prompt(folder: Path, row: Row) -> Prompt:
    media = tuple(medium for name in row["media"] if (medium := _medium(folder, name)))
    return Prompt(row["prompt"], row["id"], row["answer"], row["task"], row["meta"], (Turn("user", media),))


def _medium(folder: Path, name: str) -> Media | None:
    suffix, path = Path(name).suffix.lower(), resolve_within(folder, name)
    kind = "image" if suffix in IMAGE_SUFFIXES else "audio" if suffix in MIME else ""
    return Media(kind, str(path)) if kind and path else None


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
