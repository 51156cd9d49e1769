"""Prompts from files, and the order in which a run meets them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.randomness import stream
from mmgrpo.types import Prompt

WANTED = 'one JSON object a line, e.g. {"text": "two red circles", "answer": 2}'


def load_prompts(path: str | Path) -> list[Prompt]:
    """Read a ``.jsonl`` file of objects, or a ``.txt`` file with one prompt a line.

    An object has ``text`` (or ``prompt``) and, if wanted, ``id`` (default ``file:line``), ``answer``,
    ``task`` and ``meta``; other keys go to ``meta``. Blank lines are allowed, nothing else is passed
    over: a line that cannot be read, an empty file and an id that occurs twice are errors which name
    the file and the line.
    """
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
    read = READERS[path.suffix]
    prompts: list[Prompt] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        prompt = read(line, f"{path}:{number}", f"{path.name}:{number}")
        if prompt.id in first_line:
            raise ValueError(
                f"{path}:{number}: the id '{prompt.id}' was used on line {first_line[prompt.id]} already; "
                "ids must differ, or leave them out"
            )
        first_line[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path}: holds no prompt; wanted {WANTED if path.suffix == '.jsonl' else 'one a line'}")
    return prompts


def _from_json(line: str, place: str, default_id: str) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: not JSON ({error.msg} at column {error.colno}); wanted {WANTED}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{place}: a {type(row).__name__} and not an object; wanted {WANTED}")
    if "text" in row and "prompt" in row:
        raise ValueError(f"{place}: has both 'text' and 'prompt'; keep one of them")
    key = "text" if "text" in row else "prompt"
    if key not in row:
        raise ValueError(f"{place}: has no 'text' (keys: {', '.join(row) or 'none'}); wanted {WANTED}")
    text = _typed(row, key, str, None, place)
    if not text.strip():
        raise ValueError(f"{place}: '{key}' is empty; wanted {WANTED}")
    known = {key, "id", "answer", "task", "meta"}
    meta = {name: value for name, value in row.items() if name not in known}
    given = _typed(row, "meta", dict, {}, place)
    if twice := meta.keys() & given.keys():
        raise ValueError(f"{place}: {sorted(twice)} stand beside 'meta' and inside it; keep one of them")
    identity = row.get("id", default_id)
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise ValueError(f"{place}: 'id' is {json.dumps(identity)}; wanted a string or a whole number")
    return Prompt(text, str(identity), row.get("answer"), _typed(row, "task", str, "", place), {**meta, **given})


def _from_text(line: str, place: str, default_id: str) -> Prompt:
    return Prompt(line.strip(), default_id)


READERS = {".jsonl": _from_json, ".txt": _from_text}


def _typed(row: dict[str, Any], key: str, kind: type, default: Any, place: str) -> Any:
    value = row.get(key, default)
    if not isinstance(value, kind):
        wanted = {str: "a string", dict: "an object"}[kind]
        raise ValueError(f"{place}: '{key}' is {json.dumps(value)}; wanted {wanted}")
    return value


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


def take_batch(prompts: Sequence[Prompt], order: PromptOrder, round: int, per_round: int) -> list[Prompt]:
    """The prompts of one round, over all ranks."""
    if order.size != len(prompts):
        raise ValueError(f"the order is of {order.size} prompts, but there are {len(prompts)}")
    return [prompts[index] for index in order.take(round * per_round, per_round)]
