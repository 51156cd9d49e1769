"""What is read of a user's files: regular files of known formats, and media inside of data files, up to a size.

The limits hold before anything is decoded, since a file of a few kilobytes can declare gigabytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image as Pil
from PIL.JpegImagePlugin import JpegImageFile
from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH, TiffImageFile

MAX_PIXELS = 1 << 26
"""Pixels of an image, 8192 x 8192. Reading one takes 15 bytes per pixel (RGB) to 22 (RGBA), 1.4 GiB at the limit;
cameras of 60 megapixels are within."""

MAX_IMAGE_BYTES = 1 << 29
"""Size of an image file: ``MAX_PIXELS`` of four 16-bit values without compression. Some decoders read a file whole."""

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""Formats of images, by Pillow's names. Of the others EPS starts Ghostscript, and few have met hostile files."""

MAX_SCANS = 100
"""Scans of a progressive JPEG. A scan of some bytes takes a pass over all pixels, 50 ms at the limit of pixels;
encoders write about ten."""

SHOWN_PATH = 200
"""Characters of a path in an error."""


class Unreadable(ValueError):
    """An image, clip or audio that cannot be read; the message names it and states the reason."""


def regular_file(path: str | Path, max_bytes: int = 1 << 62) -> os.stat_result:
    """The status of a regular file of 1 to ``max_bytes`` bytes; anything else is ``Unreadable``.

    Pipes and devices are refused, since reading them may never end, and so are names that the system refuses (too
    long, with a null character, a cycle of links).
    """
    name = str(path) if len(str(path)) <= SHOWN_PATH else f"{str(path)[:SHOWN_PATH]}…"
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unreadable(f"{name}: no such file (working directory: {Path.cwd()})") from error
    except OSError as error:
        raise Unreadable(f"{name}: cannot be opened ({error.strerror}); rename or replace it") from error
    except ValueError as error:  # a null character, a lone surrogate
        raise Unreadable(f"{name!r}: is no name of a file ({error})") from error
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "pipe, socket or device"
        raise Unreadable(f"{name}: is a {kind}, expected a regular file")
    if not status.st_size:
        raise Unreadable(f"{name}: is empty; replace it")
    if status.st_size > max_bytes:
        raise Unreadable(
            f"{name}: got a file of {status.st_size:,} bytes, expected 1 to {max_bytes:,}; scale it down or compress it"
        )
    return status


@runtime_checkable
class Store(Protocol):
    """What has media inside."""

    def read(self, place: str, max_bytes: int) -> bytes:
        """The content at a place; ``Unreadable`` where there is none, or more than ``max_bytes``."""
        ...


STORES: dict[str, Store] = {}
"""The data files of this process by name; a file enters when its rows are read."""


def is_inside(source: object) -> bool:
    """Whether a medium is inside of a data file that this process has read."""
    return isinstance(source, str) and container_of(source) in STORES and "::" in source


def container_of(source: str) -> str:
    """The name of the data file of an ``Inside``."""
    return source.rpartition("::")[0] or source


def content(source: str, max_bytes: int = MAX_IMAGE_BYTES) -> bytes:
    """The bytes of a medium inside of a data file; ``Unreadable`` where they are none."""
    container, _, place = source.rpartition("::")
    return STORES[container].read(place, max_bytes)


def open_source(source: str, max_bytes: int = 1 << 62) -> str | BytesIO:
    """The name of a regular file, or the bytes of a medium inside of a data file; ``Unreadable`` otherwise."""
    if is_inside(source):
        return BytesIO(content(source, min(max_bytes, MAX_IMAGE_BYTES)))
    regular_file(source, max_bytes)
    return source


def check_image_size(width: int, height: int) -> None:
    """``Unreadable`` for an image without pixels, or with more than ``MAX_PIXELS``."""
    if not 0 < width * height <= MAX_PIXELS:
        raise Unreadable(
            f"got {width:,} x {height:,} = {width * height:,} pixels, expected 1 to {MAX_PIXELS:,}"
            + ("; scale it down" if width * height else "")
        )


def open_image(source: str | Path | BytesIO, formats: Sequence[str] = IMAGE_FORMATS) -> Pil.Image:
    """An image of Pillow, not decoded yet, whose format and size are within the limits; ``Unreadable`` otherwise."""
    try:
        image = Pil.open(source, formats=list(formats))
    except Pil.DecompressionBombError as error:  # its own limit, which other libraries switch off
        raise Unreadable(f"{error} Expected at most {MAX_PIXELS:,} pixels; scale it down") from error
    try:
        check_image_size(image.width, image.height)
        if isinstance(image, TiffImageFile):
            tile = image.tag_v2.get(TILEWIDTH, 0) * image.tag_v2.get(TILELENGTH, 0)
            if tile > MAX_PIXELS:  # a decoder fills a tile even where the image is smaller
                raise Unreadable(f"got tiles of {tile:,} pixels, expected at most {MAX_PIXELS:,}; save it again")
        if isinstance(image, JpegImageFile) and (scans := _scans(image)) > MAX_SCANS:
            raise Unreadable(f"got a JPEG of {scans:,} scans, expected at most {MAX_SCANS}; save it again")
    except BaseException:
        image.close()
        raise
    return image


def _scans(image: JpegImageFile) -> int:
    """An upper bound of the scans of a JPEG. Entropy-coded data do not contain the marker, other segments seldom."""
    file: Any = image.fp
    place = file.tell()
    file.seek(0)
    scans = file.read().count(b"\xff\xda")
    file.seek(place)
    return scans


SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    "video": (".mp4", ".mov", ".m4v", ".webm", ".mkv", ".avi"),
    "audio": (".wav", ".flac", ".mp3", ".ogg", ".opus", ".m4a"),
}
"""Suffixes of media files by kind, where nothing else names the kind."""
