"""The training and evaluation prompts of a run; the two are disjoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmgrpo.config.names import plural
from mmgrpo.data.streaming import join_parts
from mmgrpo.types import Audio, Image, Media, Output, Prompt, Video

HELDOUT = "heldout"
"""Name of the split of data.heldout, besides those of eval.extra."""


@dataclass(frozen=True)
class Splits:
    """The prompts of a run, by split."""

    train: Sequence[Prompt]
    heldout: Sequence[Prompt] = ()
    extra: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    """Further evaluation prompts, by name."""
    files: Mapping[bytes, str] = field(default_factory=dict, compare=False)
    """The training file of each prompt, by ``content_digest``."""
    supervised: Sequence[Prompt] = ()
    """Prompts whose answers are learned by their likelihood; they may be training prompts, too."""

    def every(self) -> Sequence[Prompt]:
        """The prompts of all splits."""
        return join_parts([self.train, self.heldout, *self.extra.values(), self.supervised])

    def map(self, change: Callable[[Sequence[Prompt]], Sequence[Prompt]]) -> Splits:
        """Apply a function to the prompts of every split."""
        return Splits(
            change(self.train),
            change(self.heldout),
            {name: change(prompts) for name, prompts in self.extra.items()},
            self.files,
            change(self.supervised),
        )


def read_splits(
    read: Callable[[str], Sequence[Prompt]],
    train: Sequence[str],
    heldout: str = "",
    extra: Sequence[str] = (),
    limit: int = 0,
    unlabelled: bool = False,
    supervised: str = "",
) -> Splits:
    """Read the files of a run with ``read``, and at most ``limit`` prompts of each evaluation file (0: all).

    An evaluation prompt that is also a training prompt is an error, and so is a prompt in two training files. With
    ``unlabelled`` training prompts lose their answers, and evaluation prompts may be the same.
    """
    parts: list[Sequence[Prompt]] = []
    origin: dict[bytes, str] = {}
    for path in train:
        loaded = read(path)
        refuse_overlap(loaded, origin, path)
        parts.append(without_answers(loaded, path) if unlabelled else loaded)
        origin |= dict.fromkeys(map(content_digest, loaded), path)
    given = read(supervised) if supervised else ()
    origin = {**dict.fromkeys(map(content_digest, given), supervised), **origin}
    evaluated = {}
    for name, path in {**({HELDOUT: heldout} if heldout else {}), **extra_files(extra)}.items():
        loaded = read(path)
        if not unlabelled:
            refuse_overlap(loaded, origin, path)
        evaluated[name] = list(loaded[: limit or None])
    return Splits(join_parts(parts), evaluated.pop(HELDOUT, []), evaluated, origin, given)


def without_answers(prompts: Sequence[Prompt], path: str) -> list[Prompt]:
    """The prompts without answer and without their columns as they were, in which it would stand too."""
    if not isinstance(prompts, list | tuple):
        raise ValueError(f"data.unlabelled: {path} is read with data.stream, which keeps rows as they are; unset one")
    return [replace(prompt, answer=None, columns={}) for prompt in prompts]


def refuse_overlap(prompts: Sequence[Prompt], origin: Mapping[bytes, str], path: str) -> None:
    """Raise ValueError for a prompt of ``path`` that a training file (``origin``) contains as well."""
    for prompt in prompts:
        if (key := content_digest(prompt)) in origin:
            raise ValueError(
                f"{path}: prompt '{prompt.id}' ({prompt.text!r}) is also in {origin[key]}; remove one of the two"
            )


def describe_repeats(prompts: Iterable[Prompt]) -> str:
    """How many prompts have the text and media of an earlier one, and the first such pair, in words; empty if none."""
    first: dict[bytes, str] = {}
    pairs = []
    for prompt in prompts:
        if (earlier := first.setdefault(content_digest(prompt), prompt.id)) != prompt.id:
            pairs.append((earlier, prompt.id))
    if not pairs:
        return ""
    return f"{plural(len(pairs), 'row')} with the prompt of an earlier one, the first: {' and '.join(pairs[0])}"


def extra_files(paths: Sequence[str]) -> dict[str, str]:
    """The files of eval.extra by name: the stem, with - in place of what a file name or metric key cannot have."""
    files: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"[^\w.-]+", "-", Path(path).stem)
        if not name:
            raise ValueError(f"eval.extra: '{path}' has no file name; expected e.g. embedded:speech/natural.jsonl")
        if name == HELDOUT:
            raise ValueError(
                f"eval.extra: '{path}' would be named '{HELDOUT}', the name of data.heldout; rename the file"
            )
        if name in files:
            raise ValueError(f"eval.extra: '{files[name]}' and '{path}' would both be named '{name}'; rename one")
        files[name] = path
    return files


def content(prompt: Prompt) -> tuple[Hashable, ...]:
    """The identity of a prompt: its text, and the files (or the hash of the tensor) of its media, with the span that is
    read of them."""
    return (prompt.text, *map(_part, prompt.media))


def content_digest(prompt: Prompt) -> bytes:
    """The hash of ``content``, which takes less memory than the texts."""
    return hashlib.blake2b(repr(content(prompt)).encode(errors="surrogatepass"), digest_size=16).digest()


def _part(media: Media) -> Hashable:
    span = [(key, media.options[key]) for key in ("start", "end") if key in media.options]
    return (_source(media.source), *span) if span else _source(media.source)


def _source(source: str | tuple[str, ...] | Output) -> Hashable:
    if isinstance(source, str | tuple):
        return source
    tensors = {Image: "pixels", Video: "frames", Audio: "samples"}
    tensor = getattr(source, tensors[type(source)])  # type: ignore[index]
    return hashlib.sha256(tensor.numpy().tobytes()).digest()
