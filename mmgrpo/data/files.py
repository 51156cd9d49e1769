"""Data files whose rows are read by number, so neither the rows nor the media inside of them are in memory.

A file knows where its rows are; ``read_row`` makes a prompt of one. Of JSON lines that is the offset
of every line, of a WebDataset shard that of every member; tables of parquet and arrow are mapped into memory by
``pipelines.hub``.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
from array import array
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from mmgrpo.data.embedded_media import content_at, name_of, refer_media
from mmgrpo.data.limits import STORES, SUFFIXES, Unreadable
from mmgrpo.data.media import Inside
from mmgrpo.data.messages import prompt_of
from mmgrpo.data.values import MAX_LINE, ROW_FORMAT, array_of, check_object, object_of, one_line, text_of
from mmgrpo.types import Prompt

NO_COLUMNS: Mapping[str, str] = MappingProxyType({})

MAX_ARRAY = 1 << 31
"""Bytes of a .json file with one array, which is read whole, as JSON lines are not."""

LISTINGS = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
"""Files that list the media of a folder, as the hub's ``imagefolder`` and ``audiofolder`` call them."""

SHARED = "prompt.txt"
"""The text of all media of a folder that have none of their own."""

MEDIA = tuple(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
"""Endings of the media of a folder."""

MAX_SHARDS = 100_000
BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")


@runtime_checkable
class DataFile(Protocol):
    """Rows by number, from zero."""

    @property
    def name(self) -> str:
        """The file as errors show it."""
        ...

    @property
    def root(self) -> Path:
        """The folder to which its paths of media are relative."""
        ...

    def __len__(self) -> int: ...

    def label(self, number: int) -> str:
        """What errors and ids call a row, e.g. its line."""
        ...

    def row(self, number: int) -> Mapping[str, Any]:
        """A row as the file has it; ValueError, without the place, where it is none."""
        ...


def read_row(
    file: DataFile, number: int, media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
) -> Prompt:
    """One row of a file as a prompt, whose media stay where they are; every error begins with file and row."""
    place, label = place_of(file, number), file.label(number)
    default_id = f"{Path(file.name).name}:{label}"
    try:
        row = file.row(number)
        if isinstance(row, TextRow):
            return Prompt(row["text"], default_id, columns={"text": row["text"]})
        row = refer_media(
            row, lambda keys, _: Inside(f"{file.name}::{number}:{name_of(keys)}"), also=(*columns, *columns.values())
        )
    except ValueError as error:
        raise ValueError(f"{place}: {one_line(error)}") from error
    return prompt_of(row, place, default_id, media_root or file.root, columns)


def place_of(file: DataFile, number: int) -> str:
    """The place of a row in errors."""
    return f"{file.name}:{file.label(number)}"


class MediaOfRows:
    """The media inside of the rows of a file, by ``<number>:<key>/<key>``."""

    def __init__(self, file: DataFile) -> None:
        self.file = file

    def read(self, place: str, max_bytes: int) -> bytes:
        number, _, name = place.partition(":")
        try:
            return content_at(self.file.row(int(number)), name, max_bytes)
        except (LookupError, TypeError, ValueError) as error:
            where = f"{place_of(self.file, int(number))}, '{name.removesuffix('/bytes')}'"
            raise Unreadable(f"{where}: {error}") from error


class TextRow(dict[str, Any]):
    """A row that is a text and nothing else, in which marks of media have no meaning."""


class Lines:
    """A file with one JSON object per line, or with one prompt per line (``.txt``). Blank lines are no rows."""

    def __init__(self, path: Path) -> None:
        self.name, self.root, self.texts = str(path), path.parent, path.suffix == ".txt"
        self.starts, self.sizes, self.lines = array("q"), array("q"), array("q")
        line = 0
        with open(path, "rb") as file:
            start = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
            file.seek(start)
            for block in file:
                for piece in block.splitlines(keepends=True):  # a carriage return alone ends a line too
                    line += 1
                    if content := piece.rstrip(b"\r\n"):
                        if content.strip():
                            self.starts.append(start)
                            self.sizes.append(len(content))
                            self.lines.append(line)
                    start += len(piece)
        if not self.lines:
            raise ValueError(f"{path}: has no prompts; expected {'one prompt per line' if self.texts else ROW_FORMAT}")

    def __len__(self) -> int:
        return len(self.lines)

    def label(self, number: int) -> str:
        return str(self.lines[number])

    def row(self, number: int) -> Mapping[str, Any]:
        with open(self.name, "rb") as file:
            file.seek(self.starts[number])
            text = text_of(file.read(self.sizes[number]))
        if not self.texts:
            return object_of(text)
        if not text.strip():
            raise ValueError("has only white space; remove the line")
        return TextRow(text=text.strip())


class Array:
    """A ``.json`` file with one array of objects, as LLaVA and ms-swift have it."""

    def __init__(self, path: Path) -> None:
        self.name, self.root = str(path), path.parent
        if (size := path.stat().st_size) > MAX_ARRAY:
            raise ValueError(
                f"{path}: got an array of {size:,} bytes, expected at most {MAX_ARRAY:,}; write JSON lines"
            )
        try:
            self.rows = array_of(path.read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise ValueError(f"{path}: {one_line(error)}") from error
        if not self.rows:
            raise ValueError(f"{path}: has no prompts; expected an array of objects")

    def __len__(self) -> int:
        return len(self.rows)

    def label(self, number: int) -> str:
        return str(number + 1)

    def row(self, number: int) -> Mapping[str, Any]:
        return check_object(self.rows[number])


class Cells:
    """A ``.csv`` file, which is read whole: a header with the names of the columns, and a row of texts per line. An
    empty cell counts as absent."""

    def __init__(self, path: Path) -> None:
        self.name, self.root = str(path), path.parent
        if (size := path.stat().st_size) > MAX_ARRAY:
            raise ValueError(f"{path}: got a table of {size:,} bytes, expected at most {MAX_ARRAY:,}; write JSON lines")
        self.rows: list[dict[str, str]] = []
        self.lines: list[int] = []
        try:
            text = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode("utf-8")
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
            for row in reader:
                if None in row or None in row.values():
                    raise ValueError(f"line {reader.line_num}: has not as many cells as the header")
                self.rows.append({key: value for key, value in row.items() if value != ""})
                self.lines.append(reader.line_num)
        except (csv.Error, ValueError) as error:
            raise ValueError(f"{path}: {one_line(error)}; save it as CSV in UTF-8 with quotes around commas") from error
        if not self.rows:
            raise ValueError(f"{path}: has no prompts; expected a header and a row per prompt")

    def __len__(self) -> int:
        return len(self.rows)

    def label(self, number: int) -> str:
        return str(self.lines[number])

    def row(self, number: int) -> Mapping[str, Any]:
        return self.rows[number]


class Captioned:
    """A folder in which ``x.txt`` has the text of ``x.wav``: the transcript of a recording, the prompt of an image or a
    video; ``prompt.txt`` is that of all media without one. Rows are in the order of the names of the media."""

    def __init__(self, folder: Path) -> None:
        self.name, self.root = str(folder), folder
        names = {entry.name for entry in os.scandir(folder) if entry.is_file()}
        self.media = sorted(name for name in names if name.lower().endswith(MEDIA))
        read = {caption_of(Path(name)).name for name in self.media} | {SHARED}
        if alone := sorted(name for name in names - read if name.endswith(".txt")):
            raise ValueError(f"{folder / alone[0]}: has no medium of its name; add it, or move the text")

    def __len__(self) -> int:
        return len(self.media)

    def label(self, number: int) -> str:
        return self.media[number]

    def row(self, number: int) -> Mapping[str, Any]:
        text = caption_of(self.root / self.media[number])
        if not text.is_file() and (self.root / SHARED).is_file():
            text = self.root / SHARED
        if not text.is_file():
            raise ValueError(f"has no text: neither '{text.name}' nor '{SHARED}' is there")
        with open(text, "rb") as file:
            try:
                words = text_of(file.read(MAX_LINE + 1).removeprefix(codecs.BOM_UTF8)).strip()
            except ValueError as error:
                raise ValueError(f"'{text.name}': {error}") from error
        return {"file_name": self.media[number], "text": words}


def caption_of(medium: Path) -> Path:
    """The file with the text of a medium."""
    return medium.with_suffix(".txt")


def data_files(path: str | Path) -> list[Path]:
    """The files of a name, in which ``{000..003}`` are the numbers from the first to the last, with their zeros. The
    name of a folder of media stands for the file that lists them."""
    text = str(path)
    if os.path.isdir(text):
        return [listing_of(Path(text))]
    if not (match := BRACES.search(text)) or os.path.exists(text):
        return [Path(text)]
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MAX_SHARDS:
        raise ValueError(f"{text}: got {match[0]}, expected at most {MAX_SHARDS:,} ascending numbers")
    names = [f"{text[: match.start()]}{n:0{len(match[1])}d}{text[match.end() :]}" for n in range(first, last + 1)]
    return [file for name in names for file in data_files(name)]


def listing_of(folder: Path) -> Path:
    """The file in a folder that lists its media, or the folder itself where each has a text of its name; else
    ValueError."""
    if listings := [folder / name for name in LISTINGS if (folder / name).is_file()]:
        return listings[0]
    media = [medium for medium in folder.iterdir() if medium.name.lower().endswith(MEDIA)]
    if any(caption_of(medium).is_file() for medium in media) or (media and (folder / SHARED).is_file()):
        return folder
    saved = any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
    kind = (
        "a data set that was saved to disk"
        if saved
        else f"a folder, expected one with {' or '.join(LISTINGS)}, with x.txt for x.wav, or with {SHARED} for all"
    )
    raise ValueError(f"{folder}: got {kind}; name a file, or a data set as hf:{folder}@<split>, e.g. hf:{folder}@train")


def lines_or_array(path: Path) -> DataFile:
    """A ``.json`` file: an array of objects, or (as manifests of NeMo) one object per line."""
    with open(path, "rb") as file:
        head = file.read(1 << 16).removeprefix(codecs.BOM_UTF8).lstrip()
    return Array(path) if head.startswith(b"[") else Lines(path)


def register(file: DataFile, store: Any = None) -> DataFile:
    """The file, whose media can be read by their names (``limits.STORES``) from now on."""
    STORES[file.name] = store or MediaOfRows(file)
    return file
