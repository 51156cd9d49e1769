"""Shards of WebDataset: tar files in which ``x.jpg``, ``x.json`` and ``x.txt`` are one row with the key ``x``.

Nothing is extracted: the place of every member is read once, and its bytes are read where a model needs them.
Source of the layout: github.com/webdataset/webdataset, README ("The WebDataset Format").
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.data.limits import Unreadable
from mmgrpo.data.media import Inside
from mmgrpo.data.values import MAX_LINE, object_of, show_value, text_of

KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm"), "image"),
    **dict.fromkeys(("mp4", "mov", "mkv", "webm", "avi"), "video"),
    **dict.fromkeys(("wav", "flac", "mp3", "ogg", "opus", "m4a", "aac"), "audio"),
}
"""Endings of members to the kind of their medium."""

NUMBERED = re.compile(r"(?:(?:image|img|video|audio)?_?\d*\.)?(\w+)")
"""Endings of the media of a row: ``jpg``, and of several ``0.jpg``, ``1.jpg`` or ``image0.jpg``, ``image1.jpg``."""

TEXTS = ("txt", "text", "caption")
"""Endings of the text of a row, which of a recording is the transcript."""


@dataclass(frozen=True)
class Member:
    """A file inside of a shard."""

    name: str
    start: int
    size: int


class Shard:
    """The rows of a shard, in their order in the file."""

    def __init__(self, path: Path) -> None:
        self.name, self.root = str(path), path.parent
        self.members: dict[str, Member] = {}
        self.keys: dict[str, dict[str, Member]] = {}
        for member in _members(path):
            key, ending = key_of(member.name)
            if ending in self.keys.setdefault(key, {}):
                raise ValueError(f"{path}: has '{member.name[:200]}' twice; write the shard again")
            self.keys[key][ending] = member
            self.members[member.name] = member
        if not self.keys:
            raise ValueError(f"{path}: has no files; expected e.g. 0001.jpg and 0001.json")
        self.order = list(self.keys)

    def __len__(self) -> int:
        return len(self.order)

    def label(self, number: int) -> str:
        return self.order[number]

    def row(self, number: int) -> Mapping[str, Any]:
        """The object of the ``json`` member, the text, and the names of the media; other members are in ``meta``."""
        members = self.keys[self.order[number]]
        media: dict[str, list[Inside]] = {}
        row: dict[str, Any] = {}
        meta: dict[str, Any] = {}
        for ending, member in members.items():
            form = NUMBERED.fullmatch(ending)
            kind = KINDS.get(form[1].lower()) if form else None
            if kind:
                media.setdefault(kind, []).append(Inside(f"{self.name}::{member.name}"))
            elif ending == "json":
                row = {**self._object(member), **row}
            elif ending in TEXTS:
                row["text"] = self._text(member)
            elif ending == "cls":
                row.setdefault("answer", self._text(member).strip())
            else:
                meta[ending] = Inside(f"{self.name}::{member.name}")
        for kind, names in media.items():
            for key in (kind, kind + "s"):  # the object names what lies next to it
                row.pop(key, None)
            row[kind if len(names) == 1 else kind + "s"] = names[0] if len(names) == 1 else names
        if meta:
            row["meta"] = {**meta, **row.get("meta", {})}
        return row

    def read(self, place: str, max_bytes: int) -> bytes:
        """The content of a member."""
        member = self.members.get(place)
        if member is None:
            raise Unreadable(f"{self.name}: has no '{place[:200]}'")
        if not 0 < member.size <= max_bytes:
            raise Unreadable(f"{self.name}::{place}: got {member.size:,} bytes, expected 1 to {max_bytes:,}")
        with open(self.name, "rb") as file:
            file.seek(member.start)
            return file.read(member.size)

    def _text(self, member: Member) -> str:
        if not member.size:
            return ""
        try:
            return text_of(self.read(member.name, MAX_LINE))
        except ValueError as error:
            raise ValueError(f"'{member.name}': {error}") from error

    def _object(self, member: Member) -> dict[str, Any]:
        try:
            return object_of(self._text(member))
        except ValueError as error:
            raise ValueError(f"'{member.name}': {error}") from error


def key_of(name: str) -> tuple[str, str]:
    """The key of a member, its path up to the first dot of its last part, and its ending after it."""
    folder, mark, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return folder + mark + stem, ending


def _members(path: Path) -> Iterator[Member]:
    """The regular files of a tar file. Links, devices and sparse files are refused, and so is an archive that is
    compressed, cut off, or goes on after its end."""
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:") as archive:
            for entry in archive:
                name = entry.name.removeprefix("./")
                if entry.isdir():
                    continue
                if not entry.isreg() or entry.issparse():
                    raise ValueError(
                        f"{path}: {show_value(name)} is a link, a device or sparse, expected a regular file"
                    )
                if entry.offset_data + entry.size > size:
                    raise ValueError(f"{path}: ends inside of {show_value(name)}; copy it again")
                if not name.startswith((".", "__MACOSX")) and "/." not in name:
                    yield Member(name, entry.offset_data, entry.size)
            end = archive.offset
    except tarfile.TarError as error:
        raise ValueError(
            f"{path}: is no tar file without compression ({error}); unpack .gz, or write it again"
        ) from error
    with open(path, "rb") as file:
        file.seek(end)
        while block := file.read(1 << 20):
            if block.strip(b"\0"):
                raise ValueError(
                    f"{path}: goes on after byte {end:,}, where its list ends; it is damaged or was joined"
                )
