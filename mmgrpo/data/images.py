"""Pictures as models are shown them: RGB, upright, in [0, 1]; whatever a file or a program holds."""

from __future__ import annotations

import os
from collections import OrderedDict
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from PIL import Image as Pil
from PIL import ImageOps
from torch import Tensor

from mmgrpo.types import Image

MOST_PIXELS = 178_956_970
"""A picture with more is refused before it is decoded: a small file can hold one that fills the memory."""


class Unreadable(ValueError):
    """A picture, clip or sound that cannot be read; the message names it and says why."""


class PictureCache:
    """Decoded pictures of files; beyond ``limit`` bytes the least recently used are dropped.

    A file is known by what the file system says of it, so that one that was written anew is decoded anew. Eight-bit
    pictures take a byte per value, a quarter of the ``Image`` that is made of them. Threads may share a cache.
    """

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.held = 0
        self._pixels: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._lock = Lock()

    def read(self, file: str | Path) -> Image:
        """The picture of a file, as ``read_picture`` gives it."""
        try:
            status = os.stat(file)
        except OSError:
            return read_picture(file)
        key = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
        with self._lock:
            if key in self._pixels:
                self._pixels.move_to_end(key)
                return _image(self._pixels[key])
        pixels = _read(file, str(file))
        with self._lock:
            if key not in self._pixels:
                self._pixels[key] = pixels
                self.held += pixels.nbytes
            while self.held > self.limit:
                self.held -= self._pixels.popitem(last=False)[1].nbytes
        return _image(pixels)


PICTURES = PictureCache()
"""The pictures that models are shown in this process; a run sets its limit (``data.picture_cache``)."""


def read_picture(source: str | Path | bytes, name: str = "") -> Image:
    """Decode a file, or the bytes of one; ``name`` is what errors call it.

    A file that is missing, damaged, cut short or larger than ``MOST_PIXELS`` is ``Unreadable``.
    """
    return _image(_read(source, name or (str(source) if isinstance(source, str | Path) else f"{len(source)} bytes")))


def _read(source: str | Path | bytes, name: str) -> Tensor:
    if isinstance(source, str | Path) and not Path(source).is_file():
        raise Unreadable(f"{name}: there is no such file (looked from {Path.cwd()})")
    try:
        # Read at once: a picture that keeps its file open until it is used exhausts the open files of a large set.
        with Pil.open(BytesIO(source) if isinstance(source, bytes) else source) as picture:
            return _pixels(picture)
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from error
    except Exception as error:  # decoders meet damaged data in ways of their own (struct.error, SyntaxError, ...)
        raise Unreadable(f"{name}: cannot be read as a picture ({type(error).__name__}: {error})") from error


def from_pil(picture: Pil.Image) -> Image:
    """The picture upright (EXIF), on white where it is transparent, in RGB, in [0, 1].

    Sixteen-bit greys are divided by 65535. Float pixels have no known range and are ``Unreadable``.
    """
    return _image(_pixels(picture))


def _image(pixels: Tensor) -> Image:
    return Image(pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels)


def _pixels(picture: Pil.Image) -> Tensor:
    """[3, height, width]: bytes, or floats in [0, 1] where the picture has more than eight bits."""
    if picture.width * picture.height > MOST_PIXELS:
        raise Unreadable(f"{picture.width} x {picture.height} pixels; at most {MOST_PIXELS} are decoded")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "F":
        raise Unreadable("has float pixels, whose range is not known; save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        grey = np.array(picture, dtype=np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise Unreadable(f"has values from {grey.min()} to {grey.max()}; wanted 8 or 16 bits")
        return torch.from_numpy(grey / 65535).float().expand(3, -1, -1).contiguous()
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        picture = Pil.alpha_composite(Pil.new("RGBA", seen.size, "white"), seen)
    rgb = np.array(picture.convert("RGB"))
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()
