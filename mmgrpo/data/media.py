"""Media as rows of data sets name them: where they are, and how they are to be read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.registry import nearest
from mmgrpo.types import Audio, Image, Media, Video

IN_MEMORY = {"image": Image, "video": Video, "audio": Audio}
"""The kinds of media, and what each is when it is in memory already."""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


Option = tuple[Callable[[Any], bool], str]
PIXELS: Option = (lambda value: _whole(value) and value > 0, "a whole number above 0")
OPTIONS: dict[str, dict[str, Option]] = {
    "image": {"min_pixels": PIXELS, "max_pixels": PIXELS},
    "video": {
        "min_pixels": PIXELS,
        "max_pixels": PIXELS,
        "fps": (lambda value: _number(value) and value > 0, "a number above 0"),
        "frames": (
            lambda value: _whole(value) and value > 0 and value % 2 == 0,
            "an even number: they are seen in pairs",
        ),
        "start": (lambda value: _number(value) and value >= 0, "seconds"),
        "end": (lambda value: _number(value) and value > 0, "seconds"),
        "shuffle": (_whole, "a whole number, the seed of the order"),
    },
    "audio": {},
}
"""What may be said of a medium beside its path (``Media.options``): which values make sense, and that in words."""


def medium_of(said: Mapping[str, Any], kind: str, root: Path) -> Media:
    """A medium from an object of its path (``path``, or the name of its kind) and its options."""
    said = {name: value for name, value in said.items() if value is not None}
    key = only(said, ("path", kind))
    if not key:
        raise ValueError(f"{shown(said)} has no 'path'")
    source = said.pop(key)
    if isinstance(source, IN_MEMORY[kind]):
        return Media(kind, source, options_of(said, kind, source))
    files: list[Any] = source if isinstance(source, list) and kind == "video" and source else [source]
    if not all(isinstance(file, str) and file for file in files):
        raise ValueError(f"a path is {shown(source)}; wanted a string{', or those of frames' * (kind == 'video')}")
    if remote := [file for file in files if re.match(r"(https?|data|s3|gs|hf):", file)]:
        raise ValueError(f"{remote[0]:.60} is not a file; download it first: media are read from disk only")
    paths = tuple(str(root / file.removeprefix("file://")) for file in files)
    seen = paths if isinstance(source, list) else paths[0]
    return Media(kind, seen, options_of(said, kind, seen))


def options_of(given: Mapping[str, Any], kind: str, source: Any) -> dict[str, Any]:
    """Options of a medium, when all are known and make sense together."""
    for name, value in given.items():
        if name not in OPTIONS[kind]:
            raise ValueError(f"'{name}' is no option of {kind}.{nearest(name, OPTIONS[kind])}")
        makes_sense, wanted = OPTIONS[kind][name]
        if not makes_sense(value):
            raise ValueError(f"option '{name}' is {shown(value)}; wanted {wanted}")
    for low, high in (("start", "end"), ("min_pixels", "max_pixels")):
        if given.get(low, 0) > given.get(high, math.inf):
            raise ValueError(f"'{low}' is {given[low]}, which is more than '{high}', {given[high]}")
    # Of frames in files, fps is the rate at which they were taken.
    if given.keys() >= {"fps", "frames"} and not isinstance(source, tuple):
        raise ValueError("has both 'fps' and 'frames'; keep one of them")
    return dict(given)


def only(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Which of the names a row has, empty where it has none; two of them are an error."""
    found = [name for name in names if name in row]
    if len(found) > 1:
        raise ValueError(f"has both '{found[0]}' and '{found[1]}'; keep one of them")
    return found[0] if found else ""


def shown(value: Any) -> str:
    """A value as a row writes it, cut where it is long."""
    written = json.dumps(value, ensure_ascii=False, default=repr)
    return written if len(written) <= 120 else written[:119] + "…"


@dataclass(frozen=True)
class Skipped:
    """A row that is left out, since one of its media cannot be read."""

    id: str
    file: str
    reason: str


def file_of(media: Media) -> str:
    """What a medium is called in lists: its file, the first of its files, or what it is in memory."""
    if isinstance(media.source, tuple):
        return media.source[0] if media.source else "no file"
    return media.source if isinstance(media.source, str) else type(media.source).__name__
