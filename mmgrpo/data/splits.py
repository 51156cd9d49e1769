"""The prompts of a run: those of training, and those of evaluation, which are never trained on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mmgrpo.types import Audio, Image, Output, Prompt, Video

HELDOUT = "heldout"
"""How the prompts of data.heldout are called beside those of further files."""


@dataclass(frozen=True)
class Splits:
    """The prompts of a run."""

    train: Sequence[Prompt]
    heldout: Sequence[Prompt] = ()
    extra: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    """Further prompts of evaluation, by name."""

    def every(self) -> list[Prompt]:
        """All prompts that the policy will meet."""
        return [*self.train, *self.heldout, *(prompt for prompts in self.extra.values() for prompt in prompts)]

    def map(self, change: Callable[[Sequence[Prompt]], Sequence[Prompt]]) -> Splits:
        """The same splits of other prompts."""
        return Splits(
            change(self.train), change(self.heldout), {name: change(prompts) for name, prompts in self.extra.items()}
        )


def read_splits(
    read: Callable[[str], Sequence[Prompt]],
    train: Sequence[str],
    heldout: str = "",
    extra: Sequence[str] = (),
    limit: int = 0,
) -> Splits:
    """Read the files of a run with ``read``; of every file of evaluation at most ``limit`` prompts (0: all).

    A prompt of evaluation that is also trained on is an error, and so is one that is in two files of training.
    """
    prompts: list[Prompt] = []
    origin: dict[tuple[Hashable, ...], str] = {}
    for path in train:
        further = read(path)
        refuse_seen(further, origin, path)
        prompts += further
        origin |= dict.fromkeys(map(content, further), path)
    evaluated = {}
    for name, path in {**({HELDOUT: heldout} if heldout else {}), **extra_files(extra)}.items():
        further = read(path)
        refuse_seen(further, origin, path)
        evaluated[name] = further[: limit or None]
    return Splits(prompts, evaluated.pop(HELDOUT, []), evaluated)


def refuse_seen(prompts: Sequence[Prompt], origin: Mapping[tuple[Hashable, ...], str], path: str) -> None:
    """ValueError for a prompt of ``path`` that a file of training has as well."""
    for prompt in prompts:
        if (key := content(prompt)) in origin:
            raise ValueError(f"{path}: prompt '{prompt.id}' ({prompt.text!r}) is also in {origin[key]}")


def extra_files(paths: Sequence[str]) -> dict[str, str]:
    """The files of eval.extra by the names they are reported under: their stems, with - for what no file name has."""
    named: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"[^\w.-]+", "-", Path(path).stem)
        if not name:
            raise ValueError(f"eval.extra: '{path}' names no file; expected e.g. embedded:speech/natural.jsonl")
        if name == HELDOUT:
            raise ValueError(f"eval.extra: '{path}' would be called '{HELDOUT}', as data.heldout is; rename the file")
        if name in named:
            raise ValueError(f"eval.extra: '{named[name]}' and '{path}' would both be called '{name}'; rename one")
        named[name] = path
    return named


def content(prompt: Prompt) -> tuple[Hashable, ...]:
    """What makes two prompts the same question: their words, and the files (or pixels) that they show."""
    return (prompt.text, *(_source(media.source) for media in prompt.media))


def _source(source: str | tuple[str, ...] | Output) -> Hashable:
    if isinstance(source, str | tuple):
        return source
    tensors = {Image: "pixels", Video: "frames", Audio: "samples"}
    tensor = getattr(source, tensors[type(source)])  # type: ignore[index]
    return hashlib.sha256(tensor.numpy().tobytes()).digest()
