"""Captions of recordings as prompts: AudioCaps and MusicCaps as they are published, and the rows of every other family.

    train.csv       a header with a column ``caption``; AudioCaps: audiocap_id,youtube_id,start_time,caption
    train.jsonl     objects with ``caption``, or with ``text`` as everywhere
    train.txt       a caption per line
    hf:folder@split as everywhere

A column or key ``seconds`` is the duration that the recording is to have. Other columns go to ``meta``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mmgrpo.data.messages import prompt_of
from mmgrpo.data.prompts import distinct, whole
from mmgrpo.data.values import object_of, one_line, text_of
from mmgrpo.types import Prompt
from pipelines import hub

IDS = ("audiocap_id", "ytid")
"""Columns of ids of captions, in AudioCaps and MusicCaps; an AudioCaps ``youtube_id`` has several captions."""


def load_captions(source: str | Path, columns: Mapping[str, str] = hub.NO_COLUMNS) -> list[Prompt]:
    """The prompts of a file; with ``columns`` (``data.columns``) those that these name. A line that cannot be read is
    an error that names it."""
    path = Path(source)
    if columns or path.suffix not in (".csv", ".jsonl") or not path.is_file():
        return hub.load_prompts(source, columns=columns)
    content = path.read_bytes()
    if path.suffix == ".csv":
        numbered, read = rows_of_csv(content, path), of_cells
    else:
        numbered, read = [(n, line) for n, line in enumerate(content.splitlines(), 1) if line.strip()], of_object
    if not numbered:
        raise ValueError(f"{path}: has no captions; expected a column 'caption', or objects with 'caption' or 'text'")
    return whole(
        distinct((f"{path}:{n}", partial(read, row, f"{path}:{n}", f"{path.name}:{n}")) for n, row in numbered)
    )


def rows_of_csv(content: bytes, path: Path) -> list[tuple[int, dict[Any, Any]]]:
    """The rows by column, each with the number of its last line."""
    reader = csv.DictReader(io.StringIO(text_of(content).removeprefix("\ufeff"), newline=""), strict=True)
    if "caption" not in (reader.fieldnames or ()):
        raise ValueError(f"{path}: got the columns {reader.fieldnames}, expected one named 'caption'; rename it")
    try:
        return [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise ValueError(f"{path}: after line {reader.line_num}: {error}; correct the quotes there") from error


def of_cells(row: Mapping[Any, Any], place: str, default_id: str) -> Prompt:
    """The prompt of a row of a csv file."""
    if None in row or None in row.values():
        raise ValueError(f"{place}: got another number of cells than the header has; correct the row")
    return prompt_of_caption({**row, **seconds_in(row, place)}, place, default_id)


def of_object(line: bytes, place: str, default_id: str) -> Prompt:
    """The prompt of a line of a JSONL file."""
    try:
        row = object_of(text_of(line))
    except ValueError as error:
        raise ValueError(f"{place}: {one_line(error)}") from error
    return prompt_of_caption(row, place, default_id)


def prompt_of_caption(row: Mapping[str, Any], place: str, default_id: str) -> Prompt:
    """A row with its caption as the text and its own id, where it has one."""
    row = dict(row)
    if "caption" in row and not {"text", "prompt", "problem"} & row.keys():
        row["text"] = row.pop("caption")
    named = next((str(row[key]) for key in IDS if row.get(key)), default_id)
    return prompt_of({"id": named, **row}, place, default_id)


def seconds_in(row: Mapping[Any, Any], place: str) -> dict[str, float]:
    """The duration of a row of text as a number; nothing where the cell is empty."""
    text = row.get("seconds")
    if not text:
        return {}
    try:
        return {"seconds": float(text)}
    except ValueError:
        raise ValueError(f"{place}: seconds: got {text!r:.40}, expected a number; correct the cell") from None
