"""Prompts from Hugging Face data sets, in a folder or on the hub; the core reads plain files by itself."""

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
MOST_BYTES = 4 << 30
"""Pictures that take more memory (four bytes a colour of a pixel) are not held in memory."""


def load_prompts(source: str | Path, media_root: str | Path = "") -> list[Prompt]:
    """``mmgrpo.data.prompts.load_prompts`` for files; for ``hf:<folder or hub id>[:config]@<split>`` a data set's rows.

    A folder is one that ``save_to_disk`` wrote, or one of parquet, JSON or CSV files; a hub id is downloaded. Rows
    have the same columns as the objects of a ``.jsonl`` file; a column that is null counts as absent. Pictures inside
    the data set are held in memory, or with a ``media_root`` written there once, and read when they are shown; sounds
    inside it need one.
    """
    return prompts.whole(attempts(source, media_root))


def attempts(source: str | Path, media_root: str | Path = "") -> Iterator[prompts.Attempt]:
    """``load_prompts`` row by row, with the errors of rows in their place."""
    if not str(source).startswith("hf:"):
        yield from prompts.attempts(source, media_root)
        return
    written = SOURCE.fullmatch(str(source))
    if not written:
        raise ValueError(f"{source}: wanted hf:<folder or hub id>@<split>, e.g. hf:hiyouga/geometry3k@train")
    folder = Path(written["name"])
    root = media_root or (folder if folder.is_dir() else "")
    kept = Path(media_root) if media_root else None
    rows = enumerate(_rows(str(source), *written.group("name", "config", "split")))
    named = f"{folder.name}@{written['split']}"
    read = (
        (f"{source} row {n}", partial(_prompt, row, f"{source} row {n}", f"{named}:{n}", root, kept)) for n, row in rows
    )
    held = 0
    for place, prompt in prompts.distinct(read):
        yield place, prompt
        if isinstance(prompt, Prompt):
            held += sum(medium.source.pixels.nbytes for medium in prompt.media if isinstance(medium.source, Image))
        if held > MOST_BYTES:
            raise ValueError(
                f"{place}: the pictures up to here take {held / 2**30:.1f} GiB of memory; name a media_root, a folder "
                "into which they are written and from which they are read when they are shown"
            )


def _prompt(row: Mapping[str, Any], place: str, default_id: str, root: str | Path, kept: Path | None) -> Prompt:
    try:
        named = {key: _opened(value, key, kept) for key, value in row.items() if value is not None}
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    return prompt_of(named, place, default_id, root)


def _rows(source: str, name: str, config: str | None, split: str) -> Iterator[dict[str, Any]]:
    """Rows as plain objects, in which files are {"bytes", "path"} and not decoded."""
    require("vlm", "datasets")
    import datasets

    folder = Path(name)
    try:
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            saved = datasets.load_from_disk(name)
            known = saved if isinstance(saved, dict) else {str(saved.split or split): saved}
            if split not in known:
                raise ValueError(f"there is no split '{split}'.{nearest(split, known)}")
            table: Any = known[split]
        else:
            table = datasets.load_dataset(name, config, split=split)
    except (ValueError, OSError) as error:
        raise ValueError(f"{source}: {error}") from error
    for batch in table.with_format("arrow").iter(batch_size=16):
        yield from batch.to_pylist()


def _opened(value: Any, key: str, kept: Path | None) -> Any:
    """A value in which pictures stored as bytes are pictures, or like sounds files in ``kept``; ``key`` holds it."""
    if isinstance(value, list):
        return [_opened(item, key, kept) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"bytes", "path"}:
        return {name: _opened(item, name, kept) for name, item in value.items()}
    content, path = value["bytes"], value["path"]
    if content is None:
        return path
    if key.removesuffix("s") not in IN_MEMORY:  # some other column, which nothing here shows
        return path or f"{len(content)} bytes"
    kind = key.removesuffix("s")
    if kind == "video":
        raise ValueError(f"'{key}' holds the bytes of a file; save it as a file and name its path")
    if kept is None and kind == "audio":
        raise ValueError(
            f"'{key}' holds the bytes of a sound; name a media_root, a folder into which sounds are written"
        )
    if kept is None:
        return read_picture(content, f"'{key}'")
    file = kept / (hashlib.sha256(content).hexdigest()[:24] + Path(path or "").suffix)
    if not file.exists():
        write_bytes(file, content)
    return str(file.resolve())
