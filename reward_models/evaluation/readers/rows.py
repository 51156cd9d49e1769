"""Rows of benchmark files, whatever holds them, with checked access to their values."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.config.extras import install
from mmgrpo.data.values import MAX_DEPTH, reason_of
from mmgrpo.types import Text
from reward_models.evaluation.comparison import Candidate, Stored

CLIP_SUFFIXES = (".mp4", ".webm", ".mov", ".avi", ".mkv")
SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
NAMES = {"image": "an image", "video": "a video", "audio": "a sound"}
MISSING = object()


@dataclass(frozen=True)
class Row:
    """A row of a file; every access names the file, the row and the key where a value is not as expected."""

    values: Mapping[str, Any]
    place: str
    """``<file>: row 3``, counted from 1 without the header."""
    root: Path
    """The folder of the file, to which paths in it are relative."""

    def text(self, key: str) -> str:
        """A string that is not blank."""
        value = self._value(key)
        if not isinstance(value, str) or not value.strip():
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected text")
        return value

    def number(self, key: str) -> float:
        """A finite number; CSV has them as text."""
        return self._finite(key, self._value(key))

    def choice(self, key: str, meanings: Mapping[Any, Any]) -> Any:
        """What the value means, one of a few."""
        value = self._value(key)
        if isinstance(value, list | dict) or value not in meanings:
            known = ", ".join(map(repr, meanings))
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected one of {known}")
        return meanings[value]

    def items(self, key: str, count: int = 0) -> list[Any]:
        """A list of two values or more; of ``count``, if it is given."""
        value = self._value(key)
        if not isinstance(value, list) or len(value) < 2 or (count and len(value) != count):
            wanted = f"a list of {count}" if count else "a list of two or more"
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected {wanted}")
        return value

    def texts(self, key: str, count: int = 0) -> list[str]:
        """A list of strings, one or more; of ``count``, if it is given."""
        value = self._value(key)
        fits = isinstance(value, list) and value and all(isinstance(item, str) for item in value)
        if not fits or (count and len(value) != count):
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected a list of {count or 'some'} texts")
        return value

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of ``count`` finite numbers."""
        return tuple(self._finite(key, value) for value in self.items(key, count))

    def object(self, key: str) -> Row:
        """A nested object, as a row."""
        value = self._value(key)
        if not isinstance(value, Mapping):
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected an object")
        return Row(value, f"{self.place}: {key}", self.root)

    def optional(self, key: str, kind: Any, default: Any) -> Any:
        """A value that may be missing or null, of one kind."""
        value = self.values.get(key)
        if value is None or value == "":
            return default
        if not isinstance(value, kind) or isinstance(value, bool):
            names = {list: "a list", str: "text", Mapping: "an object"}
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected {names.get(kind, 'text')}")
        return value

    def image(self, key: str) -> Stored:
        """An image: a path, bytes, or the hub's ``{bytes, path}``."""
        return self.medium("image", key, self._value(key))

    def clip(self, key: str) -> Stored:
        """A clip: likewise."""
        return self.medium("video", key, self._value(key))

    def medium(self, kind: str, key: str, value: Any) -> Stored:
        """A medium from a value of the row."""
        content = (value.get("bytes") or value.get("path")) if isinstance(value, Mapping) else value
        place = f"{self.place}: {key}"
        if isinstance(content, bytes) and content:
            return Stored(kind, content, place)
        if not isinstance(content, str) or not content or "\0" in content or re.match(r"https?:", content):
            raise ValueError(f"{place}: got {_brief(value)}, expected {NAMES[kind]} as a file or as bytes")
        return Stored(kind, self.root / content, place)

    def output(self, key: str, value: Any) -> Candidate:
        """An output from a value of the row: {"text": ...}, or an image, clip or audio (wav)."""
        if isinstance(value, Mapping) and isinstance(value.get("text"), str):
            return Text(value["text"])
        name = value.lower() if isinstance(value, str) else ""
        kind = "video" if name.endswith(CLIP_SUFFIXES) else "audio" if name.endswith(".wav") else "image"
        return self.medium(kind, key, value)

    def _value(self, key: str) -> Any:
        value = self.values.get(key, MISSING)
        if value is MISSING:
            keys = ", ".join(map(str, self.values)) or "nothing"
            raise ValueError(f"{self.place}: got no '{key}' among {keys[:200]}; is this the format of the file?")
        return value

    def _finite(self, key: str, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{self.place}: {key}: got {_brief(value)}, expected a number")
        return number


def _brief(value: Any) -> str:
    return "nothing" if value is None else repr(value)[:80]


def read_rows(path: str, config: str = "", split: str = "") -> Iterator[Row]:
    """The rows of a file, of all such files in a folder in the order of their names, or of a hub id.

    ``config`` and ``split`` are those of the data set on the hub. FileNotFoundError for what does not exist, ValueError
    for a file that cannot be read.
    """
    place = Path(path).expanduser()
    if place.is_file():
        yield from _of_file(place)
    elif place.is_dir():
        files = sorted(file for file in place.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise FileNotFoundError(f"{place}: contains no file of {', '.join(SUFFIXES)}")
        for file in files:
            yield from _of_file(file)
    elif re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", path):
        yield from _of_hub(path, config, split)
    else:
        raise FileNotFoundError(f"{place}: no such file or folder")


def _of_file(file: Path) -> Iterator[Row]:
    readers = {".parquet": _parquet, ".jsonl": _jsonl, ".json": _json, ".csv": _csv}
    if file.suffix not in readers:
        raise ValueError(f"{file}: got a file of {file.suffix or 'no suffix'}, expected {', '.join(readers)}")
    for number, values in enumerate(readers[file.suffix](file), start=1):
        if not isinstance(values, Mapping):
            raise ValueError(f"{file}: row {number}: got {_brief(values)}, expected an object")
        refuse_surrogates(values, f"{file}: row {number}")
        yield Row(values, f"{file}: row {number}", file.parent)


def refuse_surrogates(value: Any, place: str, depth: int = 0) -> None:
    """ValueError for halves of characters in texts, which no file, page or reward can take, and for deep nesting."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{place}: is nested too deeply; expected at most {MAX_DEPTH} levels")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{place}: has a lone surrogate in {_brief(value)}, half of a character; remove it")
    if isinstance(value, Mapping):
        for key, item in value.items():
            refuse_surrogates(key, place, depth)
            refuse_surrogates(item, f"{place}: {_brief(key)}", depth + 1)
    elif isinstance(value, list):
        for item in value:
            refuse_surrogates(item, place, depth + 1)


def _parquet(file: Path) -> Iterator[Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{file}: reading Parquet needs pyarrow: {install('vlm')}") from error
    try:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=64):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file}: cannot be read as Parquet ({error}); download it again") from error


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: byte {error.start} is not UTF-8; save the file as UTF-8") from error


def _jsonl(file: Path) -> Iterator[Any]:
    lines = (line for line in _text(file).split("\n") if line.strip())
    for number, line in enumerate(lines, start=1):
        yield _parse(line, f"{file}: row {number}")


def _json(file: Path) -> Sequence[Any]:
    value = _parse(_text(file), str(file))
    if not isinstance(value, list):
        raise ValueError(f"{file}: got {_brief(value)}, expected a list of objects")
    return value


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: not JSON ({error})") from error


def _csv(file: Path) -> Iterator[Any]:
    try:
        yield from csv.DictReader(io.StringIO(_text(file)))
    except csv.Error as error:
        raise ValueError(f"{file}: not CSV ({error})") from error


def _of_hub(name: str, config: str, split: str) -> Iterator[Row]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{name}: data sets of the hub need datasets: {install('vlm')}") from error
    try:
        table = datasets.load_dataset(name, config or None, split=split or "test")
    except Exception as error:  # of the network, of the hub, of the builder: each library has its own
        raise FileNotFoundError(
            f"{name}: neither a file here nor a data set that can be loaded ({reason_of(error)}); name its folder, or "
            "its config and split: FORMAT(config='...', split='...')"
        ) from error
    for column, feature in table.features.items():
        if type(feature).__name__ in ("Image", "Video"):
            table = table.cast_column(column, type(feature)(decode=False))
    for number, values in enumerate(table, start=1):
        yield Row(dict(values), f"{name}: row {number}", Path())
