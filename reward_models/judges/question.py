"""A question to a judge, what every judge answers, and what is read from it."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mmgrpo.types import Image, Output, Text, Video

FRAMES = 8
"""Frames of a clip that a judge sees, evenly spaced over it."""


@dataclass(frozen=True)
class Question:
    """One user turn of texts and images in their order."""

    parts: tuple[str | Image, ...]
    start: str = ""
    """The beginning of the judge's answer, which it continues."""

    @property
    def digest(self) -> str:
        """A hash of everything that is asked."""
        content = hashlib.sha256(repr(self.start).encode())
        for part in self.parts:
            if isinstance(part, Image):
                content.update(repr(part.pixels.shape).encode() + part.pixels.contiguous().numpy().tobytes())
            else:
                content.update(repr(part).encode())
        return content.hexdigest()


class Judge(Protocol):
    """A model that answers questions; every answer is a function of its question."""

    def answers(self, questions: Sequence[Question], tokens: int) -> list[str | None]:
        """An answer of at most ``tokens`` tokens to each question; None where there is none. Raises what the reward
        raises: a server that cannot be reached, a budget that is used up."""
        ...

    def log_probs(self, questions: Sequence[Question], words: Sequence[Sequence[str]]) -> list[list[float] | None]:
        """For each question the log-probability that its answer begins with each of the words, of which each is given
        in all its spellings; None where the judge does not say it."""
        ...


def parts_of(output: Output, title: str, reward: str) -> tuple[str | Image, ...] | None:
    """An output as parts of a question, after a line with its ``title``; None where its pixels are not finite."""
    if isinstance(output, Text):
        return (f"{title}:\n{output.text}",)
    if isinstance(output, Image):
        images = [output]
    elif isinstance(output, Video):
        count = len(output.frames)
        chosen = torch.linspace(0, count - 1, min(FRAMES, count)).round().long().tolist()
        images = [Image(output.frames[place]) for place in chosen]
    else:
        raise TypeError(f"{reward}: got an output of kind {type(output).__name__}, expected a Text, Image or Video")
    if not images or not all(bool(image.pixels.isfinite().all()) for image in images):
        return None
    return (f"{title}:", *images)


_warned: set[str] = set()


def ask(
    judge: Judge,
    questions: Sequence[Question | None],
    read: Callable[[str | None], float | None],
    tokens: int,
    reminder: str,
) -> list[float]:
    """What ``read`` reads from the answers; a judge whose answer cannot be read is reminded of the form once.

    NaN where there is no question, and where the second answer cannot be read either; one such answer is shown in a
    warning, once for each form.
    """
    values = [math.nan] * len(questions)
    unreadable = None
    waiting = [(place, question) for place, question in enumerate(questions) if question is not None]
    for attempt in range(2):
        asked = [
            Question((*question.parts, reminder), question.start) if attempt else question for _, question in waiting
        ]
        unread = []
        for (place, question), answer in zip(waiting, judge.answers(asked, tokens), strict=True):
            value = read(answer)
            if value is None:
                unread.append((place, question))
                unreadable = answer
            else:
                values[place] = value
        waiting = unread
    if waiting and reminder not in _warned:
        _warned.add(reminder)
        warnings.warn(
            f"judge: {len(waiting)} of {len(questions)} answers cannot be read and are not scored, the last one: "
            f"{(unreadable or 'none, or one that was cut off')[-200:]!r}",
            stacklevel=2,
        )
    return values
