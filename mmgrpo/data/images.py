"""Images in the one form that models receive: RGB, upright, in [0, 1], whatever the file or the caller holds."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image as Pil
from PIL import ImageCms, ImageOps
from PIL.ExifTags import Base
from PIL.TiffImagePlugin import PHOTOMETRIC_INTERPRETATION, TiffImageFile
from torch import Tensor

from mmgrpo.data.limits import (
    IMAGE_FORMATS,
    MAX_IMAGE_BYTES,
    Unreadable,
    check_image_size,
    is_inside,
    open_image,
    open_source,
    regular_file,
)
from mmgrpo.types import Image

SIDEWAYS = 5
"""The first EXIF orientation that is shown with its sides exchanged."""
MIN_IS_WHITE = 0
"""Photometric interpretation of a TIFF file in which 0 is white."""


class ImageCache:
    """Decoded images of files; beyond ``limit`` bytes the least recently used are dropped.

    The key of a file is its device, inode, modification time and size, so a file that was rewritten is decoded
    again. Eight-bit images are stored with one byte per value, a quarter of their ``Image``. Thread-safe.
    """

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.nbytes = 0
        self._pixels: OrderedDict[tuple[int | str, ...], Tensor] = OrderedDict()
        self._lock = Lock()

    def read(self, file: str | Path) -> Image:
        """The image of a file, or of one inside of a data file, equal to that of ``decode_image``."""
        key = self._key(file)
        with self._lock:
            if key in self._pixels:
                self._pixels.move_to_end(key)
                return _image(self._pixels[key])
        pixels = _read(file, str(file))
        with self._lock:
            if key not in self._pixels:
                self._pixels[key] = pixels
                self.nbytes += pixels.nbytes
            while self.nbytes > self.limit:
                self.nbytes -= self._pixels.popitem(last=False)[1].nbytes
        return _image(pixels)

    def holds(self, file: str | Path) -> bool:
        """Whether the image is decoded already."""
        try:
            return self._key(file) in self._pixels
        except Unreadable:
            return False

    def _key(self, file: str | Path) -> tuple[int | str, ...]:
        if is_inside(file):
            return (str(file),)
        status = regular_file(file, MAX_IMAGE_BYTES)
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


SAME_COLOUR = 2
"""Levels of 255 by which the conversion from a profile of sRGB moves colours, by rounding."""

IMAGE_CACHE = ImageCache()
"""The cache of this process; a run sets its limit (``data.image_cache``)."""


def decode_image(source: str | Path | bytes, name: str = "") -> Image:
    """Decode a file or its bytes; errors refer to it as ``name``.

    A file that is missing, damaged, truncated, of another format or beyond the limits is ``Unreadable``. Of an
    animation the first frame is read.
    """
    return _image(_read(source, name or (str(source) if isinstance(source, str | Path) else f"{len(source)} bytes")))


def size_of(image: str | Path | Image) -> tuple[int, int]:
    """Height and width of an image as it is shown, of a file by its header; errors are those of ``decode_image``."""
    if isinstance(image, Image):
        return image.pixels.shape[1], image.pixels.shape[2]
    try:
        with open_image(open_source(str(image), MAX_IMAGE_BYTES)) as header:
            turned = header.getexif().get(Base.Orientation, 1) >= SIDEWAYS
            return (header.width, header.height) if turned else (header.height, header.width)
    except Unreadable as error:
        raise Unreadable(f"{image}: {error}") from error
    except Exception as error:  # as in _read
        raise Unreadable(f"{image}: cannot be read as an image ({type(error).__name__}: {error})") from error


def _read(source: str | Path | bytes, name: str) -> Tensor:
    file = BytesIO(source) if isinstance(source, bytes) else open_source(str(source), MAX_IMAGE_BYTES)
    try:
        # Decode eagerly: a lazy image keeps its file open, and a large set exhausts the file descriptors.
        with open_image(file) as image:
            return _pixels(image)
    except Unreadable as error:
        raise Unreadable(f"{name}: {error}") from error
    except Pil.UnidentifiedImageError as error:
        raise Unreadable(f"{name}: cannot be read as an image, expected {', '.join(IMAGE_FORMATS)}") from error
    except Exception as error:  # damaged data raises whatever the decoder uses (struct.error, SyntaxError, ...)
        raise Unreadable(f"{name}: cannot be read as an image ({type(error).__name__}: {error})") from error


def from_pil(image: Pil.Image) -> Image:
    """A PIL image rotated upright (EXIF), composited on white where it is transparent, as RGB in [0, 1].

    Sixteen-bit greyscale is divided by 65535. Float pixels have no known range and are ``Unreadable``.
    """
    return _image(_pixels(image))


def _image(pixels: Tensor) -> Image:
    return Image(pixels.float().div_(255) if pixels.dtype == torch.uint8 else pixels)


def _pixels(image: Pil.Image) -> Tensor:
    """[3, height, width]: uint8, or floats in [0, 1] where the image has more than eight bits per value."""
    check_image_size(image.width, image.height)
    # Pillow inverts TIFF files in which 0 is white with 8 bits, not those with 16.
    inverted = isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == MIN_IS_WHITE
    if image.getexif().get(Base.Orientation) not in (None, 1):  # exif_transpose copies also what is upright
        image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise Unreadable("has float pixels, whose range is unknown; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        if grey.min() < 0 or grey.max() > 65535:
            raise Unreadable(f"got values from {grey.min()} to {grey.max()}, expected 8 or 16 bits (0 to 65535)")
        values = 65535 - grey.astype(np.float32) if inverted else grey.astype(np.float32)
        return torch.from_numpy(values).div_(65535).expand(3, -1, -1).contiguous()
    image = in_srgb(image)
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        image = Pil.alpha_composite(Pil.new("RGBA", layered.size, "white"), layered)
    rgb = np.array(image.convert("RGB"))
    return torch.from_numpy(rgb).permute(2, 0, 1).contiguous()


def in_srgb(image: Pil.Image) -> Pil.Image:
    """An image of eight bits with its embedded colour profile converted to sRGB, transparency unchanged. One whose
    profile is that of sRGB, is damaged, or belongs to another kind of image is left as it is, as browsers do."""
    profile = image.info.get("icc_profile")
    if not profile:
        return image
    if image.mode in ("P", "PA"):  # a palette has the colours of the profile
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    alpha = image.getchannel("A") if image.mode in ("LA", "RGBA") else None
    base = image.convert(image.mode.removesuffix("A")) if alpha else image
    convert = _conversion(profile, base.mode)
    if convert is None:
        return image
    converted = convert.apply(base)
    converted.info.pop("icc_profile", None)
    if alpha:
        converted.putalpha(alpha)
    return converted


@lru_cache(maxsize=32)
def _conversion(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """What converts images of a profile and mode to sRGB; None where nothing is to be converted or can be."""
    if mode not in ("L", "RGB", "CMYK"):
        return None
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        convert = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), mode, "RGB", intent)
    except (ImageCms.PyCMSError, OSError):
        return None
    if mode == "CMYK":
        return convert
    # A lattice of colours that stay where they are, but for rounding: no conversion, which would round all others too.
    levels = np.arange(0, 256, 17, dtype=np.uint8)
    channels = np.meshgrid(levels, levels, levels) if mode == "RGB" else [levels[None, :, None]] * 3
    lattice = np.stack([channel.reshape(1, -1) for channel in channels], axis=-1)
    colours = Pil.fromarray(lattice).convert(mode)
    moved = np.abs(np.asarray(convert.apply(colours)).astype(int) - lattice).max()
    return convert if moved > SAME_COLOUR else None


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The nearest size whose sides are multiples of ``factor`` and whose area lies in [min_pixels, max_pixels].

    With h, w the sides rounded to multiples: where h w > max, both are divided by b = sqrt(height width / max) and
    rounded down; where h w < min, multiplied by sqrt(min / (height width)) and rounded up. No side is below
    ``factor``, so a very elongated image may exceed max. Aspect ratios above 200 are refused.
    Source: transformers, models/qwen2_vl/image_processing_qwen2_vl.py.
    """
    if min(height, width) < 1 or max(height, width) > 200 * min(height, width):
        raise Unreadable(f"got an image of {height} x {width} pixels, expected an aspect ratio of at most 200 to 1")
    if not 0 < min_pixels <= max_pixels:
        raise ValueError(
            f"got min_pixels={min_pixels} and max_pixels={max_pixels}, expected 0 < min_pixels <= max_pixels"
        )
    sides = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if math.prod(sides) > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif math.prod(sides) < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        sides = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return sides[0], sides[1]


def patchify(
    frames: Float[Tensor, "frames 3 height width"], patch: int, merge: int, temporal: int
) -> tuple[Float[Tensor, "n values"], tuple[int, int, int]]:
    """Patches of ``temporal`` frames each, in an order in which the merge x merge patches of a token are adjacent, and
    their grid (time, height, width).

    The last frame is repeated until their number is a multiple of ``temporal``; an image is one frame.
    """
    missing = -len(frames) % temporal
    frames = torch.cat([frames, frames[-1:].expand(missing, -1, -1, -1)])
    t, h, w = len(frames) // temporal, frames.shape[2] // patch, frames.shape[3] // patch
    blocks = frames.reshape(t, temporal, 3, h // merge, merge, patch, w // merge, merge, patch)
    # [time, block row, block column, row in block, column in block | channel, frame, y, x]
    ordered = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return ordered.reshape(t * h * w, 3 * temporal * patch * patch), (t, h, w)
