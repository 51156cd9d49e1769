"""Prompts from files, and the order in which a run meets them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.data.messages import WANTED, prompt_of
from mmgrpo.runtime.randomness import stream
from mmgrpo.types import Prompt

Attempt = tuple[str, Prompt | ValueError]
"""The place of a row, and its prompt or why it cannot be read."""


def load_prompts(path: str | Path, media_root: str | Path = "") -> list[Prompt]:
    """Read a ``.jsonl`` file of objects, or a ``.txt`` file with one prompt a line.

    An object has ``text`` (or ``prompt``, ``problem``, or a conversation: see ``conversations``) and, if wanted,
    ``id`` (default ``file:line``), ``answer``, ``task``, ``meta`` and media; other keys go to ``meta``. Relative
    paths of media are looked for in ``media_root``, by default the folder of the file; they are not opened here.
    Blank lines are allowed, nothing else is passed over: a line that cannot be read, an empty file and an id that
    occurs twice are errors which name the file and the line.
    """
    return whole(attempts(path, media_root))


def attempts(path: str | Path, media_root: str | Path = "") -> Iterator[Attempt]:
    """``load_prompts`` row by row, with the errors of rows in their place."""
    path = Path(path)
    if path.suffix not in READERS:
        known = " or ".join(READERS)
        raise ValueError(f"{path}: prompts are read from {known} files, not from '{path.suffix}'")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such prompt file (looked from {Path.cwd()})")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}); save it as UTF-8") from error
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path}: holds no prompt; wanted {WANTED if path.suffix == '.jsonl' else 'one a line'}")
    read, root = READERS[path.suffix], Path(media_root or path.parent)
    rows = [(f"{path}:{number}", number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    yield from distinct((place, partial(read, line, place, f"{path.name}:{n}", root)) for place, n, line in rows)


def distinct(rows: Iterable[tuple[str, Callable[[], Prompt]]]) -> Iterator[Attempt]:
    """Read one row after the other; a row that cannot be read, or whose id was used already, gives the error."""
    places: dict[str, str] = {}
    for place, read in rows:
        try:
            prompt = read()
        except ValueError as error:
            yield place, error
            continue
        if prompt.id in places:
            used = f"the id '{prompt.id}' was used at {places[prompt.id]} already"
            yield place, ValueError(f"{place}: {used}; ids must differ, or leave them out")
            continue
        places[prompt.id] = place
        yield place, prompt


def whole(attempts: Iterable[Attempt]) -> list[Prompt]:
    """All prompts; the first row that cannot be read is an error."""
    prompts = []
    for _, prompt in attempts:
        if isinstance(prompt, ValueError):
            raise prompt
        prompts.append(prompt)
    return prompts


def _from_json(line: str, place: str, default_id: str, root: Path) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON ({error.msg} at column {error.colno}); wanted {WANTED}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: a {type(row).__name__} and not an object; wanted {WANTED}")
    return prompt_of(row, place, default_id, root)


def _from_text(line: str, place: str, default_id: str, root: Path) -> Prompt:
    return Prompt(line.strip(), default_id)


READERS = {".jsonl": _from_json, ".txt": _from_text}


@dataclass(frozen=True)
class PromptOrder:
    """An endless seeded order of ``size`` prompts: every epoch is a permutation of its own.

    Place i of the sequence is a function of (seed, i) alone, so a run resumes by its place.
    """

    size: int
    seed: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"an order needs at least one prompt; there are {self.size}")

    def epoch(self, number: int) -> Int[Tensor, " size"]:
        """The permutation of epoch ``number``."""
        return torch.randperm(self.size, generator=stream(self.seed, "prompts", number))

    def take(self, start: int, count: int) -> list[int]:
        """Indices of the places ``start`` to ``start + count - 1``."""
        if start < 0 or count < 0:
            raise ValueError(f"places are counted from zero; got start {start} and count {count}")
        first, skip = divmod(start, self.size)
        epochs = -(-(skip + count) // self.size)
        indices = [index for number in range(first, first + epochs) for index in self.epoch(number).tolist()]
        return indices[skip : skip + count]


def take_batch(prompts: Sequence[Prompt], order: PromptOrder, round: int, prompts_per_step: int) -> list[Prompt]:
    """The prompts of one round, over all ranks."""
    if order.size != len(prompts):
        raise ValueError(f"the order is of {order.size} prompts, but there are {len(prompts)}")
    return [prompts[index] for index in order.take(round * prompts_per_step, prompts_per_step)]
