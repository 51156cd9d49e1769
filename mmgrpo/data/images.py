"""Pictures as models are shown them: RGB, upright, in [0, 1]; whatever a file or a program holds."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image as Pil
from PIL import ImageOps

from mmgrpo.types import Image

MOST_PIXELS = 178_956_970
"""A picture with more is refused before it is decoded: a small file can hold one that fills the memory."""


class Unreadable(ValueError):
    """A picture, clip or sound that cannot be read; the message names it and says why."""


def read_picture(source: str | Path | bytes, name: str = "") -> Image:
    """Decode a file, or the bytes of one; ``name`` is what errors call it.

    A file that is missing, damaged, cut short or larger than ``MOST_PIXELS`` is ``Unreadable``.
    """
    name = name or (str(source) if isinstance(source, str | Path) else f"{len(source)} bytes")
    if isinstance(source, str | Path) and not Path(source).is_file():
        raise Unreadable(f"{name}: there is no such file (looked from {Path.cwd()})")
    try:
        # Read at once: a picture that keeps its file open until it is used exhausts the open files of a large set.
        with Pil.open(BytesIO(source) if isinstance(source, bytes) else source) as picture:
            return from_pil(picture)
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from error
    except Exception as error:  # decoders meet damaged data in ways of their own (struct.error, SyntaxError, ...)
        raise Unreadable(f"{name}: cannot be read as a picture ({type(error).__name__}: {error})") from error


def from_pil(picture: Pil.Image) -> Image:
    """The picture upright (EXIF), on white where it is transparent, in RGB, in [0, 1].

    Sixteen-bit greys are divided by 65535. Float pixels have no known range and are ``Unreadable``.
    """
    if picture.width * picture.height > MOST_PIXELS:
        raise Unreadable(f"{picture.width} x {picture.height} pixels; at most {MOST_PIXELS} are decoded")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode == "F":
        raise Unreadable("has float pixels, whose range is not known; save it with 8 or 16 bits")
    if picture.mode.startswith("I"):
        grey = np.array(picture, dtype=np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise Unreadable(f"has values from {grey.min()} to {grey.max()}; wanted 8 or 16 bits")
        return Image(torch.from_numpy(grey / 65535).float().expand(3, -1, -1).contiguous())
    if picture.has_transparency_data:
        seen = picture.convert("RGBA")
        picture = Pil.alpha_composite(Pil.new("RGBA", seen.size, "white"), seen)
    rgb = np.array(picture.convert("RGB"))
    return Image(torch.from_numpy(rgb).permute(2, 0, 1).contiguous().float() / 255)
