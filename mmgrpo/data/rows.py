"""Prompts as Python has them: strings, rows as in a JSONL file, rows of a data set, or ``Prompt``s."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from PIL import Image as Pil

from mmgrpo.data.embedded_media import MEMORY, decode, refer_media
from mmgrpo.data.files import NO_COLUMNS
from mmgrpo.data.images import from_pil
from mmgrpo.data.messages import identity_of, prompt_of
from mmgrpo.data.prompts import distinct, whole
from mmgrpo.data.values import MAX_DEPTH, check_values, one_line, show_value
from mmgrpo.types import Prompt


def as_prompts(rows: Any, name: str = "prompts", columns: Mapping[str, str] = NO_COLUMNS) -> list[Prompt]:
    """Prompts from strings, rows as in a JSONL file (or of a ``datasets.Dataset``), or ``Prompt``s.

    ``columns`` are our names to those of the rows. Encoded images and audio stay encoded until they are read.
    ``name`` begins the errors, which are those of files: what a run cannot take, and ids that occur twice. A row
    without an ``id`` is called ``prompt-<number>``.
    """
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        raise ValueError(f"{name}: got one {type(rows).__name__}, expected a list; write [...] around it")
    numbered = ((f"{name}[{number}]", f"prompt-{number}", row) for number, row in enumerate(keep_encoded(rows)))
    return whole(distinct((place, partial(_prompt, row, place, name, columns)) for place, name, row in numbered))


def _prompt(row: Any, place: str, default_id: str, columns: Mapping[str, str]) -> Prompt:
    if isinstance(row, str):
        row = Prompt(row)
    if isinstance(row, Mapping):
        try:
            row = {key: in_memory(value) for key, value in row.items() if value is not None}
            row = refer_media(row, lambda _, content: MEMORY.keep(decode(content)), also=columns.values())
        except ValueError as error:
            raise ValueError(f"{place}: {one_line(error)}") from error
        except RecursionError as error:
            raise ValueError(f"{place}: is nested too deeply; expected at most {MAX_DEPTH} levels") from error
        return prompt_of(row, place, default_id, columns=columns)
    if not isinstance(row, Prompt):
        raise ValueError(f"{place}: got a {type(row).__name__}, expected a string, a dict or a Prompt")
    try:
        for field, kind in (("text", str), ("id", str), ("task", str), ("meta", Mapping)):
            if not isinstance(getattr(row, field), kind):
                raise ValueError(f"'{field}': got {show_value(getattr(row, field))}, expected a {kind.__name__}")
        check_values({field: getattr(row, field) for field in ("text", "id", "answer", "task", "meta")})
        return replace(row, id=identity_of(row.id or default_id))
    except ValueError as error:
        raise ValueError(f"{place}: {one_line(error)}") from error


def keep_encoded(rows: Any) -> Any:
    """A ``datasets.Dataset`` whose recordings stay encoded, which its own decoder needs a further library for."""
    datasets = sys.modules.get("datasets")
    if datasets is None or not isinstance(rows, datasets.Dataset | datasets.IterableDataset):
        return rows
    for name, feature in (rows.features or {}).items():
        if isinstance(feature, datasets.Audio):
            rows = rows.cast_column(name, datasets.Audio(decode=False))
    return rows


def in_memory(value: Any) -> Any:
    """A value in which images of Pillow, as data sets hold them, are ``Image``s."""
    if isinstance(value, Pil.Image):
        return from_pil(value)
    if isinstance(value, Mapping):
        return {key: in_memory(item) for key, item in value.items()}
    return [in_memory(item) for item in value] if isinstance(value, list) else value
