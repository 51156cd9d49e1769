"""Prompts from files, and the order in which a run visits them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from mmgrpo.config.names import closest
from mmgrpo.data.files import (
    NO_COLUMNS,
    Captioned,
    Cells,
    DataFile,
    Lines,
    data_files,
    lines_or_array,
    place_of,
    read_row,
    register,
)
from mmgrpo.data.webdataset import Shard
from mmgrpo.types import Prompt

Attempt = tuple[str, Prompt | ValueError]
"""The place of a row (``file:line``), and its prompt or the error that says why it cannot be read."""


def load_prompts(
    path: str | Path, media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
) -> list[Prompt]:
    """Read a file of objects (``.jsonl``, ``.json``, a ``.tar`` of WebDataset), or of one prompt per line (``.txt``).

    An object has ``text`` (or ``prompt``, ``problem`` or a conversation: see ``messages.py``) and optionally ``id``
    (default ``file:line``), ``answer``, ``task``, ``meta`` and media; other keys go to ``meta``. ``columns`` are our
    names of other columns to theirs. Paths of media are relative to ``media_root``, by default the folder of the file;
    media are not opened here, also not those inside of the file (``inside.py``). Only blank lines are
    skipped: a line that cannot be read, an empty file and a duplicate id are errors that name the file and the line.
    ``{000..003}`` in a name are several files.
    """
    return whole(attempts(path, media_root, columns))


def attempts(
    path: str | Path, media_root: str | Path = "", columns: Mapping[str, str] = NO_COLUMNS
) -> Iterator[Attempt]:
    """The rows of ``load_prompts`` one by one, with an error in the place of a row that cannot be read."""
    return of_files(map(open_file, data_files(path)), media_root, columns)


def of_files(files: Iterable[DataFile], media_root: str | Path, columns: Mapping[str, str]) -> Iterator[Attempt]:
    """The rows of files one by one."""
    yield from distinct(
        (place_of(file, number), partial(read_row, file, number, media_root, columns))
        for file in files
        for number in range(len(file))
    )


def open_file(path: Path) -> DataFile:
    """A file with its rows by number; FileNotFoundError or ValueError where it is none that is known."""
    if os.path.isdir(path):
        return Captioned(path)
    if not os.path.isfile(path):
        raise missing(path)
    if path.suffix not in READERS:
        suffixes = ", ".join(READERS)
        raise ValueError(
            f"{path}: got a '{path.suffix}' file, expected {suffixes}; convert it, or name it hf:<folder>@<split>"
        )
    return READERS[path.suffix](path)


def missing(path: Path) -> FileNotFoundError:
    """The error of a prompt file that is none, with the name next to it that is closest."""
    if path.exists():
        return FileNotFoundError(f"{path}: is no regular file (working directory: {Path.cwd()})")
    folder = path.parent
    known = READERS.keys() | {path.suffix}
    names = [file.name for file in folder.iterdir() if file.suffix in known] if folder.is_dir() else []
    near = closest(path.name, names)
    return FileNotFoundError(f"{path}: no such prompt file (working directory: {Path.cwd()}){'.' * bool(near)}{near}")


def distinct(rows: Iterable[tuple[str, Callable[[], Prompt]]]) -> Iterator[Attempt]:
    """Read rows in order; a row that cannot be read, or whose id occurred before, yields its error."""
    places: dict[str, str] = {}
    for place, read in rows:
        try:
            prompt = read()
        except ValueError as error:
            yield place, error
            continue
        if prompt.id in places:
            duplicate = f"the id '{prompt.id}' occurs at {places[prompt.id]} already"
            yield place, ValueError(f"{place}: {duplicate}; make ids unique, or leave them out")
            continue
        places[prompt.id] = place
        yield place, prompt


def whole(attempts: Iterable[Attempt]) -> list[Prompt]:
    """All prompts; raises the error of the first row that cannot be read."""
    prompts = []
    for _, prompt in attempts:
        if isinstance(prompt, ValueError):
            raise prompt
        prompts.append(prompt)
    return prompts


def _shard(path: Path) -> DataFile:
    shard = Shard(path)
    return register(shard, shard)


READERS: dict[str, Callable[[Path], DataFile]] = {
    ".jsonl": lambda path: register(Lines(path)),
    ".json": lambda path: register(lines_or_array(path)),
    ".tar": _shard,
    ".txt": Lines,
    ".csv": lambda path: register(Cells(path)),
}
"""Endings of data files; ``pipelines.hub`` adds those that need further libraries."""
