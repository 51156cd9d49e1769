"""Prompts as Python has them: strings, rows as in a JSONL file, rows of a data set, or ``Prompt``s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from PIL import Image as Pil

from mmgrpo.data.images import from_pil
from mmgrpo.data.messages import prompt_of
from mmgrpo.types import Prompt


def as_prompts(rows: Iterable[Any], name: str = "prompts") -> list[Prompt]:
    """Prompts from strings, rows as in a JSONL file (or of a ``datasets.Dataset``), or ``Prompt``s.

    ``name`` begins the errors. A row without an ``id`` is called ``prompt-<number>``.
    """
    prompts = []
    for number, row in enumerate(rows):
        if isinstance(row, Prompt):
            prompts.append(row)
        elif isinstance(row, str):
            prompts.append(Prompt(row, id=f"prompt-{number}"))
        elif isinstance(row, Mapping):
            columns = {key: in_memory(value) for key, value in row.items() if value is not None}
            prompts.append(prompt_of(columns, f"{name}[{number}]", f"prompt-{number}"))
        else:
            raise TypeError(f"{name}[{number}]: got a {type(row).__name__}, expected a string, a dict or a Prompt")
    return prompts


def in_memory(value: Any) -> Any:
    """A value in which pictures of Pillow, as data sets hold them, are ``Image``s."""
    if isinstance(value, Pil.Image):
        return from_pil(value)
    if isinstance(value, Mapping):
        return {key: in_memory(item) for key, item in value.items()}
    return [in_memory(item) for item in value] if isinstance(value, list) else value
