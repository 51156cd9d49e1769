"""The form into which every benchmark is read: outputs for one prompt, and how people rank them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from mmgrpo.types import Image, Media, Output, Prompt, Text, Turn


@dataclass(frozen=True)
class Stored:
    """An image, clip or audio of a benchmark, decoded when it is scored."""

    kind: str
    """``image``, ``video`` or ``audio``."""
    source: Path | bytes
    place: str
    """The file and row that name it, for errors."""

    def load(self) -> Output:
        """The decoded output; ValueError that names the row for a file that is missing or damaged."""
        from mmgrpo.data.images import decode_image
        from mmgrpo.data.limits import Unreadable
        from reward_models.evaluation.media import read_video, read_wav

        read = {"video": read_video, "audio": read_wav}.get(self.kind, decode_image)
        try:
            return read(self.source)
        except (OSError, Unreadable) as error:
            raise ValueError(f"{self.place}: {error}; expected a readable {self.kind}") from error


Candidate: TypeAlias = "Stored | Image | Text"

FIRST, SECOND, TIE = (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)
"""Ranks of the two outputs of a pair, of which people prefer the first, the second or neither."""


@dataclass(frozen=True)
class Comparison:
    """Two outputs or more for one prompt, with their human ranks."""

    prompt: Prompt
    candidates: tuple[Candidate, ...]
    ranks: tuple[float, ...]
    """Lower is better, equal is a tie; a benchmark's votes for "first" are the ranks (0, 1)."""
    place: str
    """The file and row that it is from."""
    category: str = ""
    ratings: tuple[float, ...] = ()
    """Absolute human scores of the outputs, higher is better, where people gave some."""
    about: tuple[Stored, ...] = ()
    """The image or clip that the prompt asks about."""
    user: str = ""
    """Who ranked them, where the file says it."""

    def __post_init__(self) -> None:
        if len(self.candidates) < 2 or len(self.ranks) != len(self.candidates):
            raise ValueError(
                f"{self.place}: got {len(self.candidates)} outputs and {len(self.ranks)} ranks, expected two outputs "
                "or more and a rank for each"
            )

    @property
    def cluster(self) -> str:
        """What a bootstrap draws as a whole: the prompt, with the medium that it asks about."""
        media = (m.source if isinstance(m.source, bytes) else str(m.source).encode() for m in self.about)
        return "\n".join([self.prompt.text, *(hashlib.blake2b(medium).hexdigest() for medium in media)])

    def to_prompt(self) -> Prompt:
        """The prompt with its media, decoded unless they are files."""
        if not self.about:
            return self.prompt
        media = [Media(m.kind, str(m.source) if isinstance(m.source, Path) else m.load()) for m in self.about]
        return replace(self.prompt, turns=(Turn("user", (*media, self.prompt.text)),))

    def outputs(self) -> list[Output]:
        """The candidates, decoded."""
        return [candidate.load() if isinstance(candidate, Stored) else candidate for candidate in self.candidates]


@dataclass(frozen=True)
class Pairs:
    """All pairs of outputs of a list of comparisons, with the scores of one reward; axis N as in ``metrics``."""

    human: Int[np.ndarray, "N"]
    difference: Float[np.ndarray, "N"]
    cluster: Int[np.ndarray, "N"]
    """Number of the prompt."""
    comparison: Int[np.ndarray, "N"]
    """Number of the comparison."""
    category: Sequence[str]

    @property
    def failed(self) -> int:
        """Pairs of which at least one output could not be scored."""
        return int(np.isnan(self.difference).sum())


def pairs(comparisons: Sequence[Comparison], scores: Sequence[Sequence[float]]) -> Pairs:
    """The pairs (i, j), i < j, of each comparison, in order; ``scores`` has a list for each comparison."""
    clusters = {name: number for number, name in enumerate(dict.fromkeys(c.cluster for c in comparisons))}
    rows = [
        (np.sign(c.ranks[j] - c.ranks[i]), values[i] - values[j], clusters[c.cluster], number)
        for number, (c, values) in enumerate(zip(comparisons, scores, strict=True))
        for i, j in itertools.combinations(range(len(c.ranks)), 2)
    ]
    human, difference, cluster, comparison = (np.array(column) for column in zip(*rows)) if rows else [np.zeros(0)] * 4
    return Pairs(
        human.astype(np.int64),
        difference.astype(np.float64),
        cluster.astype(np.int64),
        comparison.astype(np.int64),
        [comparisons[int(number)].category for number in comparison],
    )
