"""Media as rows of a data set declare them: a path, and options for reading it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.data.limits import MAX_PIXELS
from mmgrpo.data.values import CONTROL, quote, show_value
from mmgrpo.types import Audio, Image, Media, Video

IN_MEMORY = {"image": Image, "video": Video, "audio": Audio}
"""The kinds of media, and the type of each once it is in memory."""

REMOTE = r"(?i)(https?|data|s3|gs|hf):|(?!file:)[a-z][a-z0-9+.-]*://"
"""Beginnings of what names no file on disk."""


class Inside(str):
    """The name of a medium inside of a data file (``inside.py``), where a row could have a path."""

    __slots__ = ()


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, float)


Option = tuple[Callable[[Any], bool], str]
LONGEST = 1_000_000
"""Seconds, or frames per second, of an option: eleven days."""

MAX_FRAME_FILES = 20_000
"""Files of the frames of one clip, at two per second those of nearly three hours."""

MIN_PIXELS: Option = (
    lambda value: _is_integer(value) and 0 < value <= MAX_PIXELS,
    f"an integer from 1 to {MAX_PIXELS:,}",
)
PIXELS: Option = (lambda value: _is_integer(value) and 0 < value < 1 << 63, "an integer above 0 of at most 63 bits")
START: Option = (
    lambda value: _is_number(value) and 0 <= value <= LONGEST,
    f"a time of at least 0 in seconds, at most {LONGEST:,}",
)
END: Option = (
    lambda value: _is_number(value) and 0 < value <= LONGEST,
    f"a time above 0 in seconds, at most {LONGEST:,}",
)
OPTIONS: dict[str, dict[str, Option]] = {
    "image": {"min_pixels": MIN_PIXELS, "max_pixels": PIXELS},
    "video": {
        "min_pixels": MIN_PIXELS,
        "max_pixels": PIXELS,
        "fps": (lambda value: _is_number(value) and 1e-6 <= value <= LONGEST, f"a number above 0, at most {LONGEST:,}"),
        "frames": (
            lambda value: _is_integer(value) and 0 < value < 1 << 63 and value % 2 == 0,
            "an even number, since the model merges frames in pairs",
        ),
        "start": START,
        "end": END,
        "times": (
            lambda value: (
                isinstance(value, list)
                and all(_is_number(number) and 0 <= number <= LONGEST for number in value)
                and value == sorted(value)
                and bool(value)
            ),
            "the time of each frame in seconds, ascending",
        ),
        "shuffle": (
            lambda value: _is_integer(value) and abs(value) < 1 << 63,
            "an integer, the seed of the permutation",
        ),
    },
    "audio": {"start": START, "end": END},
}
"""Options of each kind of media (``Media.options``): the test of a value, and the words for it in errors."""


def medium_of(declaration: Mapping[str, Any], kind: str, root: Path) -> Media:
    """A medium from an object with its path (under ``path`` or the name of its kind) and its options."""
    # Columns of a data set have one schema, in which an absent option is null.
    options = {name: value for name, value in declaration.items() if value is not None}
    key = only(options, ("path", kind))
    if not key:
        raise ValueError(f"got {show_value(options)}, expected an object with 'path'")
    source = options.pop(key)
    if isinstance(source, Mapping):  # {"type": "image", "image": {"path": ..., "bytes": null}}
        return medium_of({**source, **options}, kind, root)
    if isinstance(source, IN_MEMORY[kind]):
        return Media(kind, source, options_of(options, kind, source))
    files: list[Any] = source if isinstance(source, list) and kind == "video" and source else [source]
    if not all(isinstance(file, str) and file for file in files):
        raise ValueError(
            f"path: got {show_value(source)}, expected a string{' or a list of frame files' * (kind == 'video')}"
        )
    if len(files) > MAX_FRAME_FILES:
        raise ValueError(f"path: got {len(files):,} frame files, expected at most {MAX_FRAME_FILES:,}; select fewer")
    named = [file for file in files if not isinstance(file, Inside)]
    if control := [file for file in named if CONTROL.search(file)]:
        raise ValueError(f"path: got {show_value(control[0])}, expected a path without control characters")
    if remote := [file for file in named if re.match(REMOTE, file)]:
        raise ValueError(f"{remote[0]:.60} is not a local file; download it first: media are read from disk only")
    paths = tuple(str(file if isinstance(file, Inside) else root / file.removeprefix("file://")) for file in files)
    located = paths if isinstance(source, list) else paths[0]
    return Media(kind, located, options_of(options, kind, located))


def options_of(options: Mapping[str, Any], kind: str, source: Any) -> dict[str, Any]:
    """The options of a medium; an unknown option, a wrong value or a contradiction is a ValueError."""
    for name, value in options.items():
        if name not in OPTIONS[kind]:
            raise ValueError(f"{kind} has no option {quote(name)}.{nearest(name, OPTIONS[kind])}")
        is_valid, expected = OPTIONS[kind][name]
        if not is_valid(value):
            raise ValueError(f"option '{name}': got {show_value(value)}, expected {expected}")
    for low, high in (("start", "end"), ("min_pixels", "max_pixels")):
        if options.get(low, 0) > options.get(high, math.inf):
            raise ValueError(f"'{low}' must be at most '{high}', got {options[low]} and {options[high]}")
    if "times" in options and source != ():
        frames = source.frames if isinstance(source, Video) else source
        if isinstance(frames, str) or len(options["times"]) != len(frames):
            count = "no separate" if isinstance(frames, str) else len(frames)
            raise ValueError(f"'times': got {len(options['times'])} times of {count} frames, expected one for each")
        if other := sorted(options.keys() & {"fps", "start", "end"}):
            raise ValueError(f"has both 'times' and '{other[0]}'; keep one of them")
    # A clip is sampled either at a rate or to a number of frames. For frames in files, fps is the rate at which they
    # were taken, so both are allowed.
    if options.keys() >= {"fps", "frames"} and not isinstance(source, tuple):
        raise ValueError("has both 'fps' and 'frames'; keep one of them")
    return dict(options)


def only(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The one of ``names`` that a row has, empty if it has none; more than one is an error."""
    present = [name for name in names if name in row]
    if len(present) > 1:
        raise ValueError(f"has both '{present[0]}' and '{present[1]}'; keep one of them")
    return present[0] if present else ""


@dataclass(frozen=True)
class Skipped:
    """A row that is left out because one of its media cannot be read."""

    id: str
    file: str
    reason: str


def file_of(media: Media) -> str:
    """The name of a medium in listings: its file, the first of its files, or its type if it is in memory."""
    if isinstance(media.source, tuple):
        return media.source[0] if media.source else "no file"
    return media.source if isinstance(media.source, str) else type(media.source).__name__
