"""Prompts that stay in their files, for sets that do not fit in memory.

A run visits them in the same order as prompts in memory, and every row is checked when the run starts: only what is
kept differs, 16 bytes of a prompt instead of the prompt. A prompt is read anew whenever a round draws it.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any, overload

from mmgrpo.data.files import NO_COLUMNS, DataFile, place_of, read_row
from mmgrpo.data.images import IMAGE_CACHE
from mmgrpo.data.media import Skipped
from mmgrpo.types import Prompt

BLOCK = 1024
"""Prompts that are in memory at a time while all are checked."""

Choose = Callable[[list[Prompt]], tuple[Sequence[Prompt], list[Skipped]]]
"""From prompts to the usable ones, in their order, and the skipped."""


def keys_with_values(prompt: Prompt) -> list[str]:
    """The keys of a row that a model or a reward may read or not: those of ``meta`` with a value, and ``system`` and
    ``assistant`` for turns of theirs."""
    keys = {key for key, value in prompt.meta.items() if value is not None}
    return sorted(keys | {turn.role for turn in prompt.turns if turn.role != "user"})


class StoredPrompts(Sequence[Prompt]):
    """The prompts of files, of which only the places are in memory.

    The first reading checks every row: one that cannot be read, or whose id occurs twice, is a ValueError with its
    place, as for prompts in memory.
    """

    def __init__(
        self, files: Sequence[DataFile], media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
    ) -> None:
        self.files, self.media_root, self.columns = files, media_root, columns
        self.defaults: Mapping[str, Any] = {}
        self.change: Callable[[Prompt], Prompt] | None = None
        self.file = array("q", (place for place, file in enumerate(files) for _ in range(len(file))))
        self.number = array("q", (number for file in files for number in range(len(file))))
        self.keys: Counter[str] = Counter()
        """Keys (``keys_with_values``) with the number of rows that have a value there."""
        ids: set[bytes] = set()
        for position, prompt in enumerate(self):
            self.keys.update(keys_with_values(prompt))
            digest = hashlib.blake2b(prompt.id.encode(), digest_size=12).digest()
            if digest in ids:
                place = place_of(files[self.file[position]], self.number[position])
                raise ValueError(f"{place}: the id '{prompt.id}' occurs before; make ids unique, or leave them out")
            ids.add(digest)

    def __len__(self) -> int:
        return len(self.number)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> StoredPrompts: ...
    def __getitem__(self, index: int | slice) -> Prompt | StoredPrompts:
        if isinstance(index, slice):
            return self._at(range(len(self))[index])
        prompt = read_row(self.files[self.file[index]], self.number[index], self.media_root, self.columns)
        missing = {key: value for key, value in self.defaults.items() if not prompt.meta.get(key)}
        prompt = replace(prompt, meta={**prompt.meta, **missing}) if missing else prompt
        return self.change(prompt) if self.change else prompt

    def with_meta(self, defaults: Mapping[str, Any]) -> StoredPrompts:
        """The same prompts with values of ``meta`` for rows that have none."""
        part = self._at(range(len(self)))
        part.defaults = {**part.defaults, **defaults}
        return part

    def map(self, change: Callable[[Prompt], Prompt]) -> StoredPrompts:
        """The same prompts, each with a change, after those it has already, whenever it is read."""
        part, before = self._at(range(len(self))), self.change
        part.change = change if before is None else lambda prompt: change(before(prompt))
        return part

    def filter(self, choose: Choose) -> tuple[StoredPrompts, list[Skipped]]:
        """The prompts that ``choose`` keeps, asked block by block, and those that it skips."""
        kept, skipped = array("q"), []
        for start in range(0, len(self), BLOCK):
            block = list(self[start : start + BLOCK])
            usable, unusable = choose(block)
            ids = {prompt.id for prompt in usable}
            kept.extend(start + place for place, prompt in enumerate(block) if prompt.id in ids)
            skipped += unusable
        return self._at(kept), skipped

    def _at(self, positions: Iterable[int]) -> StoredPrompts:
        part = object.__new__(StoredPrompts)
        part.files, part.media_root, part.columns, part.keys = self.files, self.media_root, self.columns, self.keys
        part.defaults = self.defaults
        part.change = self.change
        positions = array("q", positions)
        part.file = array("q", (self.file[position] for position in positions))
        part.number = array("q", (self.number[position] for position in positions))
        return part


class Joined(Sequence[Prompt]):
    """Several sequences of prompts as one, which are not copied."""

    def __init__(self, parts: Sequence[Sequence[Prompt]]) -> None:
        self.parts = parts
        self.ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        part = bisect_right(self.ends, place)
        return self.parts[part][place - (self.ends[part - 1] if part else 0)]

    def __iter__(self) -> Iterator[Prompt]:
        return (prompt for part in self.parts for prompt in part)


def join_parts(parts: Sequence[Sequence[Prompt]]) -> Sequence[Prompt]:
    """The prompts of all parts: a list, or no copy where some are stored."""
    if any(isinstance(part, StoredPrompts | Joined) for part in parts):
        return Joined(parts)
    return [prompt for part in parts for prompt in part]


def in_blocks(prompts: Sequence[Prompt], choose: Choose) -> tuple[Sequence[Prompt], list[Skipped]]:
    """``choose`` of all prompts at once, or of stored ones block by block."""
    if isinstance(prompts, Joined):
        chosen = [in_blocks(part, choose) for part in prompts.parts]
        return Joined([usable for usable, _ in chosen]), [row for _, skipped in chosen for row in skipped]
    return prompts.filter(choose) if isinstance(prompts, StoredPrompts) else choose(list(prompts))


def shows_undecoded(prompts: Sequence[Prompt]) -> bool:
    """Whether prompts show images of files that are not decoded yet (``IMAGE_CACHE``), so it may be done ahead; of
    stored prompts it is not known, and True."""
    if isinstance(prompts, StoredPrompts | Joined):
        return True
    media = (medium for prompt in prompts for medium in prompt.media)
    files = {medium.source for medium in media if medium.kind == "image" and isinstance(medium.source, str)}
    return not all(map(IMAGE_CACHE.holds, files))
