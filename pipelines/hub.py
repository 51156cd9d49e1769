"""Prompts from Hugging Face data sets, in a folder or on the hub; the core itself reads plain files only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.data import prompts
from mmgrpo.data.files import NO_COLUMNS, DataFile, data_files, register
from mmgrpo.data.media import IN_MEMORY
from mmgrpo.data.streaming import StoredPrompts
from mmgrpo.data.values import reason_of
from mmgrpo.files import write_bytes
from mmgrpo.types import Prompt
from pipelines import require

SOURCE = re.compile(r"hf:(?P<name>[^@]+?)(:(?P<config>[^@:/\\]+))?@(?P<split>.+)")


class Table:
    """A data set whose rows are mapped into memory; media stay {"bytes", "path"}, undecoded."""

    def __init__(self, table: Any, name: str, root: Path, store: Path | None) -> None:
        # The arrow format skips the decoders of datasets, which need further libraries.
        self.table, self.name, self.root, self.store = table.with_format("arrow"), name, root, store

    def __len__(self) -> int:
        return len(self.table)

    def label(self, number: int) -> str:
        return str(number)

    def row(self, number: int) -> Mapping[str, Any]:
        """A row without its null columns; with a ``store``, its media are files there."""
        [row] = self.table[number].to_pylist()
        row = {key: value for key, value in row.items() if value is not None}
        return row if self.store is None else {key: _as_files(value, key, self.store) for key, value in row.items()}


def load_prompts(
    source: str | Path, media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
) -> list[Prompt]:
    """``mmgrpo.data.prompts.load_prompts`` for files, also of parquet (``.parquet``), and the rows of a data set for
    ``hf:<folder or hub id>[:config]@<split>``.

    A folder is one that ``save_to_disk`` wrote, or one of parquet, JSON or CSV files; a hub id is downloaded. Rows
    have the same columns as the objects of a ``.jsonl`` file; a null column counts as absent. Media inside the data
    set are read when a prompt needs them, or, with a ``media_root``, written there once.
    """
    return prompts.whole(attempts(source, media_root, columns))


def attempts(
    source: str | Path, media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
) -> Iterator[prompts.Attempt]:
    """``load_prompts`` row by row; a row that cannot be read yields its error."""
    return prompts.of_files(files_of(source, media_root), media_root, columns)


def load_stored(
    source: str | Path, media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
) -> StoredPrompts:
    """``load_prompts`` of which only the places are in memory."""
    return StoredPrompts(files_of(source, media_root), media_root, columns)


def files_of(source: str | Path, media_root: str | Path = "") -> list[DataFile]:
    """The files of a source, or its data set."""
    if not str(source).startswith("hf:"):
        return [_parquet(file) if file.suffix == ".parquet" else prompts.open_file(file) for file in data_files(source)]
    match = SOURCE.fullmatch(str(source))
    if not match:
        raise ValueError(f"got '{source}', expected hf:<folder or hub id>@<split>, e.g. hf:hiyouga/geometry3k@train")
    folder = Path(match["name"])
    root = folder if folder.is_dir() else Path()
    table = _table(str(source), *match.group("name", "config", "split"))
    return [register(Table(table, str(source), root, Path(media_root) if media_root else None))]


def _parquet(path: Path) -> DataFile:
    if not path.is_file():
        raise prompts.missing(path)
    require("vlm", "datasets")
    import datasets

    with _errors(str(path)):
        table = datasets.load_dataset("parquet", data_files=str(path), split="train")
    return register(Table(table, str(path), path.parent, None))


def _table(source: str, name: str, config: str | None, split: str) -> Any:
    require("vlm", "datasets")
    import datasets

    folder = Path(name)
    with _errors(source):
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            content = datasets.load_from_disk(name)
            splits = content if isinstance(content, dict) else {str(content.split or split): content}
            if split not in splits:
                raise ValueError(f"unknown split '{split}'.{nearest(split, splits)}")
            return splits[split]
        return datasets.load_dataset(name, config, split=split)


@contextmanager
def _errors(source: str) -> Iterator[None]:
    """Errors of datasets as ValueErrors that name the source."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ValueError(f"{source}: {error}") from error
    except Exception as error:  # datasets wraps those of its readers
        raise ValueError(f"{source}: {reason_of(error.__cause__ or error)}") from error


def _as_files(value: Any, key: str, store: Path) -> Any:
    """The value of a column ``key`` with media that are stored as bytes replaced by files in the folder ``store``."""
    if isinstance(value, list):
        return [_as_files(item, key, store) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"bytes", "path"}:
        return {name: _as_files(item, name, store) for name, item in value.items()}
    content, path = value["bytes"], value["path"]
    if content is None:
        return value
    if not isinstance(content, bytes) or not isinstance(path, str | None):
        raise ValueError(f"'{key}': got bytes of type {type(content).__name__}, expected those of a file, and its path")
    if key.removesuffix("s") not in IN_MEMORY:  # a column that no prompt reads
        return path or f"{len(content)} bytes"
    suffix = re.search(r"\.\w{1,8}$", path or "")
    file = store / (hashlib.sha256(content).hexdigest()[:24] + (suffix[0] if suffix else ""))
    if not file.exists():
        write_bytes(file, content)
    return {"path": str(file.resolve()), "bytes": None}
