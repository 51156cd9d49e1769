"""Pictures and sounds of a run folder as parts of a self-contained page.

A run folder is untrusted input, and its files refer to other files. Such a file is read only if it lies in the folder
after all links are resolved, and if its type and size are suitable for a page.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Literal

from mmgrpo.data.limits import open_picture
from mmgrpo.report.thumbnails import boxed_picture, enlarge, enlarged_width, jpeg

FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp"}
"""Picture formats that all browsers show, and their media types."""
PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp")
MAX_PICTURE_BYTES = 16 * 1024 * 1024
"""Largest picture that is embedded; a larger one is only named."""


@dataclass(frozen=True)
class Medium:
    """A picture or sound, embedded in its ``uri``, or a note that states why there is none."""

    kind: Literal["picture", "sound", "note"]
    text: str
    """The alternative text for readers who cannot see or hear it; of a note, the note."""
    uri: str = ""
    width: int = 0
    """Width in CSS pixels of a small picture that the page enlarges; 0 for natural size."""


class Unavailable(ValueError):
    """A file that a page cannot embed; the page shows the message instead."""


def contained(folder: Path, name: str) -> Path | None:
    """The path ``<folder>/<name>`` with all links resolved; None if it is not in ``folder`` or is invalid.

    An absolute name is refused, wherever it points.
    """
    if Path(name).is_absolute():
        return None
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # a cycle of links, a null character
        return None


def read_medium(folder: Path, name: str, suffixes: Collection[str], max_bytes: int) -> bytes:
    """The content of ``<folder>/<name>``; Unavailable if it has another suffix or more than ``max_bytes``."""
    path = contained(folder, name)
    if path is None:
        raise Unavailable(f"{name} is refused: it lies outside {folder.name}/")
    if Path(name).suffix.lower() not in suffixes:
        raise Unavailable(f"{name} is refused: expected a file of {', '.join(suffixes)}")
    try:
        if not path.is_file():
            raise Unavailable(f"{name} is missing")
        if (size := path.stat().st_size) > max_bytes:
            raise Unavailable(f"{name} is too large for this page: {size:,} bytes, at most {max_bytes:,}")
        return path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{name} cannot be read: {error.strerror}") from error


def picture(
    folder: Path, name: str, description: str, boxes: Mapping[str, Sequence[Sequence[int | float]]] | None = None
) -> Medium:
    """The picture ``<folder>/<name>``, with ``boxes`` drawn into it; a note if it cannot be shown."""
    try:
        content = read_medium(folder, name, PICTURE_SUFFIXES, MAX_PICTURE_BYTES)
        with open_picture(BytesIO(content), tuple(FORMATS)) as image:
            # PIL reports a JPEG that contains further pictures as MPO.
            media_type, width = FORMATS.get(str(image.format), FORMATS["JPEG"]), enlarged_width(image)
            if boxes:
                # Enlarged before drawing: an outline of two pixels would hide much of a picture of 32.
                content, media_type = jpeg(boxed_picture(enlarge(image.convert("RGB")), boxes)), FORMATS["JPEG"]
                width = 0
    except Unavailable as error:
        return Medium("note", str(error))
    except (OSError, SyntaxError, ValueError):
        return Medium("note", f"{name} is not a picture that can be read")
    return Medium("picture", description, picture_uri(content, media_type), width)


def picture_uri(content: bytes, media_type: str = "image/png") -> str:
    """The bytes of a picture as a data URI (RFC 2397)."""
    if media_type not in FORMATS.values():
        raise ValueError(f"got media type {media_type!r}, expected one of {', '.join(FORMATS.values())}")
    return f"data:{media_type};base64,{b64encode(content).decode()}"
