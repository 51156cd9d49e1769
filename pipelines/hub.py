"""Prompts from Hugging Face data sets, in a folder or on the hub; the core itself reads plain files only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mmgrpo.data import prompts
from mmgrpo.data.images import read_picture
from mmgrpo.data.media import IN_MEMORY
from mmgrpo.data.messages import prompt_of
from mmgrpo.registry import nearest
from mmgrpo.runtime.files import write_bytes
from mmgrpo.types import Image, Prompt
from pipelines import require

SOURCE = re.compile(r"hf:(?P<name>[^@]+?)(:(?P<config>[^@:/\\]+))?@(?P<split>.+)")
MAX_BYTES = 4 << 30
"""Memory that the pictures of a data set may take (fp32, four bytes per value)."""


def load_prompts(source: str | Path, media_root: str | Path = "") -> list[Prompt]:
    """``mmgrpo.data.prompts.load_prompts`` for files; for ``hf:<folder or hub id>[:config]@<split>`` a data set's rows.

    A folder is one that ``save_to_disk`` wrote, or one of parquet, JSON or CSV files; a hub id is downloaded. Rows
    have the same columns as the objects of a ``.jsonl`` file; a null column counts as absent. Pictures inside the data
    set are held in memory, or, with a ``media_root``, written there once and read when a prompt needs them; sounds
    inside it require one.
    """
    return prompts.whole(attempts(source, media_root))


def attempts(source: str | Path, media_root: str | Path = "") -> Iterator[prompts.Attempt]:
    """``load_prompts`` row by row; a row that cannot be read yields its error."""
    if not str(source).startswith("hf:"):
        yield from prompts.attempts(source, media_root)
        return
    match = SOURCE.fullmatch(str(source))
    if not match:
        raise ValueError(f"got '{source}', expected hf:<folder or hub id>@<split>, e.g. hf:hiyouga/geometry3k@train")
    folder = Path(match["name"])
    root = media_root or (folder if folder.is_dir() else "")
    store = Path(media_root) if media_root else None
    rows = enumerate(_rows(str(source), *match.group("name", "config", "split")))
    prefix = f"{folder.name}@{match['split']}"
    readers = (
        (f"{source} row {n}", partial(_prompt, row, f"{source} row {n}", f"{prefix}:{n}", root, store))
        for n, row in rows
    )
    memory = 0
    for place, prompt in prompts.distinct(readers):
        yield place, prompt
        if isinstance(prompt, Prompt):
            memory += sum(medium.source.pixels.nbytes for medium in prompt.media if isinstance(medium.source, Image))
        if memory > MAX_BYTES:
            raise ValueError(
                f"{place}: the pictures up to here take {memory / 2**30:.1f} GiB of memory, more than "
                f"{MAX_BYTES / 2**30:g} GiB; name a media_root, the folder that stores them instead"
            )


def _prompt(row: Mapping[str, Any], place: str, default_id: str, root: str | Path, store: Path | None) -> Prompt:
    try:
        columns = {key: _without_bytes(value, key, store) for key, value in row.items() if value is not None}
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return prompt_of(columns, place, default_id, root)


def _rows(source: str, name: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
    """Rows as plain objects; media stay {"bytes", "path"}, undecoded."""
    require("vlm", "datasets")
    import datasets

    folder = Path(name)
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            content = datasets.load_from_disk(name)
            splits = content if isinstance(content, dict) else {str(content.split or split): content}
            if split not in splits:
                raise ValueError(f"there is no split '{split}'.{nearest(split, splits)}")
            table: Any = splits[split]
        else:
            table = datasets.load_dataset(name, config, split=split)
    except (ValueError, OSError) as error:
        raise ValueError(f"{source}: {error}") from error
    except Exception as error:  # datasets wraps those of its readers
        reason = error.__cause__ or error
        raise ValueError(f"{source}: {type(reason).__name__}: {' '.join(str(reason).split())[:400]}") from error
    # The arrow format skips the decoders of datasets, which need further libraries; small batches bound the memory.
    for batch in table.with_format("arrow").iter(batch_size=16):
        yield from batch.to_pylist()


def _without_bytes(value: Any, key: str, store: Path | None) -> Any:
    """The value of a column ``key`` with media that are stored as bytes replaced: by files in the folder ``store``, or
    pictures, where there is none, by pixels."""
    if isinstance(value, list):
        return [_without_bytes(item, key, store) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"bytes", "path"}:
        return {name: _without_bytes(item, name, store) for name, item in value.items()}
    content, path = value["bytes"], value["path"]
    if content is None:
        return path
    if not isinstance(content, bytes) or not isinstance(path, str | None):
        raise ValueError(f"'{key}': got bytes of type {type(content).__name__}, expected those of a file, and its path")
    if key.removesuffix("s") not in IN_MEMORY:  # a column that no prompt reads
        return path or f"{len(content)} bytes"
    kind = key.removesuffix("s")
    if kind == "video":
        raise ValueError(f"'{key}': got the bytes of a video, expected a path; save it as a file and name that")
    if store is None and kind == "audio":
        raise ValueError(
            f"'{key}': got the bytes of a sound; name a media_root, the folder that stores sounds as files"
        )
    if store is None:
        return read_picture(content, f"'{key}'")
    suffix = re.search(r"\.\w{1,8}$", path or "")
    file = store / (hashlib.sha256(content).hexdigest()[:24] + (suffix[0] if suffix else ""))
    if not file.exists():
        write_bytes(file, content)
    return str(file.resolve())
