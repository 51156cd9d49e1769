"""Pictures and sounds of a run folder as parts of a page that needs no other file.

A run folder may come from someone else, and its files name other files. What they name is read only if it lies in the
folder once all links are resolved, and only if it is of a kind and size that a page can hold.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from PIL import Image as Pil

from mmgrpo.report.thumbnails import boxed_picture, enlarge, enlarged_width, jpeg

FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp"}
"""Formats of pictures that every browser shows, and their media types."""
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp")
MOST_PICTURE_BYTES = 16 * 1024 * 1024
"""A larger picture is named instead of shown."""


@dataclass(frozen=True)
class Medium:
    """A picture or a sound whose bytes are in its ``uri``, or a note that says why there is none."""

    kind: Literal["picture", "sound", "note"]
    text: str
    """What a reader is told who does not see or hear it; of a note, the note."""
    uri: str = ""
    width: int = 0
    """In pixels of the page, of a picture that is so small that it is enlarged; 0 of any other."""


class Unavailable(ValueError):
    """A file that a page cannot hold; the message is what the page says instead."""


def contained(folder: Path, name: str) -> Path | None:
    """The file ``<folder>/<name>`` with all links resolved; None where that is not in ``folder``, or no path at all.

    An absolute name is never in the folder, wherever it points.
    """
    if Path(name).is_absolute():
        return None
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # a circle of links, a null character
        return None


def read_medium(folder: Path, name: str, suffixes: Collection[str], most_bytes: int) -> bytes:
    """The content of ``<folder>/<name>``, a file with one of the ``suffixes`` and of at most ``most_bytes``."""
    path = contained(folder, name)
    if path is None:
        raise Unavailable(f"{name} is refused: it lies outside {folder.name}/")
    if Path(name).suffix.lower() not in suffixes:
        raise Unavailable(f"{name} is refused: expected a file of {', '.join(suffixes)}")
    try:
        if not path.is_file():
            raise Unavailable(f"{name} is missing")
        if (size := path.stat().st_size) > most_bytes:
            raise Unavailable(f"{name} is too large for this page: {size:,} bytes, at most {most_bytes:,}")
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{name} cannot be read: {error.strerror}") from error


def picture(
    folder: Path, name: str, description: str, boxes: Mapping[str, Sequence[Sequence[int | float]]] | None = None
) -> Medium:
    """The picture ``<folder>/<name>``, with ``boxes`` drawn into it; a note where it cannot be shown."""
    try:
        content = read_medium(folder, name, PICTURE_SUFFIXES, MOST_PICTURE_BYTES)
        with Pil.open(BytesIO(content), formats=list(FORMATS)) as image:
            if not min(image.size):
                raise ValueError("a picture has at least one pixel")
            # A JPEG with further pictures in it calls itself MPO.
            media_type, width = FORMATS.get(str(image.format), FORMATS["JPEG"]), enlarged_width(image)
            if boxes:
                # Small pictures grow first: a line of two pixels hides too much of one of 32.
                content, media_type = jpeg(boxed_picture(enlarge(image.convert("RGB")), boxes)), FORMATS["JPEG"]
                width = 0
    except Unavailable as error:
        return Medium("note", str(error))
    except (OSError, SyntaxError, ValueError, Pil.DecompressionBombError):
        return Medium("note", f"{name} is not a picture that can be read")
    return Medium("picture", description, picture_uri(content, media_type), width)


def picture_uri(content: bytes, media_type: str = "image/png") -> str:
    """The bytes of a picture as an address (RFC 2397)."""
    if media_type not in FORMATS.values():
        raise ValueError(f"got media type {media_type!r}, expected one of {', '.join(FORMATS.values())}")
    return f"data:{media_type};base64,{b64encode(content).decode()}"
