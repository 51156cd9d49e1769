"""A question to a judge, what every judge answers, and what is read from it."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from mmgrpo.types import Image, Output, Prompt, Text, Video
from reward_models.judges.source import evenly_spaced, images_of

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """One user turn of texts and images in their order."""

    parts: tuple[str | Image, ...]
    start: str = ""
    """The beginning of the judge's answer, which it continues."""
    draw: int = 0
    """Which of several answers: 0 the most probable one, others are sampled."""

    @property
    def digest(self) -> str:
        """A hash of everything that is asked."""
        content = hashlib.sha256(repr((self.start, self.draw) if self.draw else self.start).encode())
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
        images = [Image(output.frames[place]) for place in evenly_spaced(len(output.frames))]
    else:
        raise TypeError(f"{reward}: got an output of kind {type(output).__name__}, expected a Text, Image or Video")
    return _with_title(title, images)


def _with_title(title: str, images: Sequence[Image]) -> tuple[str | Image, ...] | None:
    if not images or not all(bool(image.pixels.isfinite().all()) for image in images):
        return None
    return (f"{title}:", *images)


KEEP = "The output was made from the source, and should keep of it what the prompt does not ask to change."
"""What a judge of images and videos is told of a prompt with media, so it does not pay for painting all anew."""


def sources_of(
    prompts: Sequence[Prompt], outputs: Sequence[Output], media: bool = True, titles: bool = True
) -> list[tuple[str | Image, ...] | None]:
    """For each output the media of its prompt in their order, as parts of a question before the output.

    Each stands after a line with its title ("Source image:", or "Image of the prompt:" for a text about it), and
    ``KEEP`` after all of them unless the output is a text; without ``titles`` the images alone, as published questions
    have them. Of a video there are ``FRAMES`` frames. Empty for a prompt without media and with ``media`` False; None
    where pixels are not finite. ``Unreadable`` for a file that cannot be read, ValueError for audio.
    """
    known: dict[tuple[int, bool], tuple[str | Image, ...] | None] = {}
    for prompt, output in zip(prompts, outputs, strict=True):
        key = id(prompt), isinstance(output, Text)  # a group shares its prompt, whose files are decoded once
        if key not in known:
            known[key] = _source(prompt, isinstance(output, Text), titles) if media else ()
    return [known[id(prompt), isinstance(output, Text)] for prompt, output in zip(prompts, outputs, strict=True)]


def _source(prompt: Prompt, read: bool, titles: bool) -> tuple[str | Image, ...] | None:
    refuse_audio(prompt)
    parts: list[str | Image] = []
    kinds = [medium.kind for medium in prompt.media]
    for place, medium in enumerate(prompt.media):
        kind = medium.kind
        number = f" {kinds[: place + 1].count(kind)}" if kinds.count(kind) > 1 else ""
        shown = _with_title(
            f"{kind.capitalize()}{number} of the prompt" if read else f"Source {kind}{number}", images_of(medium)
        )
        if shown is None:
            return None
        parts += shown if titles else shown[1:]
    return (*parts, KEEP) if parts and titles and not read else tuple(parts)


def check_source(prompt: Prompt, media: bool = True, **_: object) -> None:
    """ValueError for a prompt that a judge cannot be asked about: one with audio, unless ``media`` is False, or one
    with neither a text nor media. ``_`` are the other parameters of a reward."""
    if media:
        refuse_audio(prompt)
    if not prompt.text and not (media and prompt.media):
        raise ValueError(f"prompt '{prompt.id}' has no text{' or media' * media}")


def refuse_audio(prompt: Prompt) -> None:
    """ValueError for a prompt with audio, which no judge hears."""
    if any(medium.kind == "audio" for medium in prompt.media):
        raise ValueError(
            f"prompt '{prompt.id}': got audio, expected images and videos, which judges see; media=False lets the "
            "judge read the text of the prompt alone"
        )


_warned: set[str] = set()


def ask(
    judge: Judge,
    questions: Sequence[Question | None],
    read: Callable[[str | None], float | None],
    tokens: int,
    reminder: str,
) -> list[float]:
    """What ``read`` reads from the answers, as ``readings``; NaN in place of None."""
    return [math.nan if value is None else value for value in readings(judge, questions, read, tokens, reminder)]


def readings(
    judge: Judge,
    questions: Sequence[Question | None],
    read: Callable[[str | None], T | None],
    tokens: int,
    reminder: str,
    form: str = "",
) -> list[T | None]:
    """What ``read`` reads from the answers; a judge whose answer cannot be read is reminded of the form once.

    None where there is no question, and where the second answer cannot be read either; one such answer is shown in a
    warning, once for each ``form``, by default the reminder.
    """
    values: list[T | None] = [None] * len(questions)
    unreadable = None
    waiting = [(place, question) for place, question in enumerate(questions) if question is not None]
    for attempt in range(2):
        again = [
            replace(question, parts=(*question.parts, reminder)) if attempt else question for _, question in waiting
        ]
        unread = []
        for (place, question), answer in zip(waiting, judge.answers(again, tokens), strict=True):
            value = read(answer)
            if value is None:
                unread.append((place, question))
                unreadable = answer
            else:
                values[place] = value
        waiting = unread
    if waiting and (form or reminder) not in _warned:
        _warned.add(form or reminder)
        warnings.warn(
            f"judge: {len(waiting)} of {len(questions)} answers cannot be read and are not scored, the last one: "
            f"{(unreadable or 'none, or one that was cut off')[-200:]!r}",
            stacklevel=3,
        )
    return values
