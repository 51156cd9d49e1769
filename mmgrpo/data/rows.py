"""Prompts as Python has them: strings, rows as in a JSONL file, rows of a data set, or ``Prompt``s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from PIL import Image as Pil

from mmgrpo.data.images import from_pil
from mmgrpo.data.messages import identity_of, prompt_of
from mmgrpo.data.prompts import distinct, whole
from mmgrpo.data.values import check_values, one_line, shown
from mmgrpo.types import Prompt


def as_prompts(rows: Any, name: str = "prompts") -> list[Prompt]:
    """Prompts from strings, rows as in a JSONL file (or of a ``datasets.Dataset``), or ``Prompt``s.

    ``name`` begins the errors, which are those of files: what a run cannot take, and ids that occur twice. A row
    without an ``id`` is called ``prompt-<number>``.
    """
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise ValueError(f"{name}: got one {type(rows).__name__}, expected a list; write [...] around it")
    numbered = ((f"{name}[{number}]", f"prompt-{number}", row) for number, row in enumerate(rows))
    return whole(distinct((place, partial(_prompt, row, place, identity)) for place, identity, row in numbered))


def _prompt(row: Any, place: str, default_id: str) -> Prompt:
    if isinstance(row, str):
        row = Prompt(row)
    if isinstance(row, Mapping):
        columns = {key: in_memory(value) for key, value in row.items() if value is not None}
        return prompt_of(columns, place, default_id)
    if not isinstance(row, Prompt):
        raise ValueError(f"{place}: got a {type(row).__name__}, expected a string, a dict or a Prompt")
    try:
        for field, kind in (("text", str), ("id", str), ("task", str), ("meta", Mapping)):
            if not isinstance(getattr(row, field), kind):
                raise ValueError(f"'{field}': got {shown(getattr(row, field))}, expected a {kind.__name__}")
        check_values({field: getattr(row, field) for field in ("text", "id", "answer", "task", "meta")})
        return replace(row, id=identity_of(row.id or default_id))
    except ValueError as error:
        raise ValueError(f"{place}: {one_line(error)}") from error


def in_memory(value: Any) -> Any:
    """A value in which pictures of Pillow, as data sets hold them, are ``Image``s."""
    if isinstance(value, Pil.Image):
        return from_pil(value)
    if isinstance(value, Mapping):
        return {key: in_memory(item) for key, item in value.items()}
    return [in_memory(item) for item in value] if isinstance(value, list) else value
