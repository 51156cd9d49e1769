"""Small pictures for pages that hold many: thumbnails, strips of frames, and boxes drawn into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TypeAlias

from PIL import Image as Pil
from PIL import ImageDraw

from mmgrpo.report.figures import is_number

SIDE = 160
"""Longer side of a thumbnail in pixels."""
HEIGHT = 96
"""Pixels of a page that a small picture is high, more or less."""
GAP = 2
"""Pixels between two frames of a strip."""
FRAMES = 6
"""Frames of a clip that its strip shows at most."""
REFERENCE, PREDICTION = "#1d9a5c", "#d0492f"
"""Colours of the reference boxes (key ``gold``) and of the predicted ones (key ``said``)."""

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom as fractions of the picture's width and height."""


def thumbnail(picture: Pil.Image) -> Pil.Image:
    """The picture on white, its longer side at most ``SIDE`` pixels."""
    opaque = Pil.new("RGB", picture.size, "white")
    opaque.paste(picture, mask=picture.convert("RGBA").getchannel("A"))
    opaque.thumbnail((SIDE, SIDE))
    return opaque


def strip(frames: Sequence[Pil.Image]) -> Pil.Image:
    """At most ``FRAMES`` frames of a clip in a row, evenly spread from the first to the last.

    Frame i of n is number round(i (N - 1) / (n - 1)) of the N of the clip.
    """
    if not frames:
        raise ValueError("got a clip without frames, expected at least one")
    count = min(FRAMES, len(frames))
    numbers = [round(i * (len(frames) - 1) / max(1, count - 1)) for i in range(count)]
    tiles = [thumbnail(frames[number]) for number in numbers]
    width, height = sum(tile.width for tile in tiles) + GAP * (count - 1), max(tile.height for tile in tiles)
    sheet = Pil.new("RGB", (width, height), "white")
    left = 0
    for tile in tiles:
        sheet.paste(tile, (left, 0))
        left += tile.width + GAP
    return sheet


def jpeg(picture: Pil.Image) -> bytes:
    """The picture as a JPEG of quality 80."""
    buffer = BytesIO()
    picture.convert("RGB").save(buffer, format="JPEG", quality=80)
    return buffer.getvalue()


def boxed_picture(picture: Pil.Image, boxes: Mapping[str, Sequence[Sequence[int | float]]]) -> Pil.Image:
    """A copy of the picture with the reference boxes and the predicted ones; corners may be in either order.

    What lies beyond the picture is not seen: a fraction is clipped to [-1, 2]. A completion may name any number; a box
    with one that is not finite has no place in the picture and is left out.
    """
    copy = picture.convert("RGB")
    pen = ImageDraw.Draw(copy)
    for name, colour in (("gold", REFERENCE), ("said", PREDICTION)):
        for box in boxes.get(name, ()):
            if not all(map(is_number, box)):
                continue
            left, top, right, bottom = (min(max(fraction, -1.0), 2.0) for fraction in box)
            x = sorted((left * copy.width, right * copy.width))
            y = sorted((top * copy.height, bottom * copy.height))
            pen.rectangle((x[0], y[0], x[1], y[1]), outline=colour, width=2)
    return copy


def enlarged_width(picture: Pil.Image) -> int:
    """Width in pixels of a page at which a small picture is about ``HEIGHT`` high; 0 of a picture that needs no factor.

    width round(HEIGHT / height), so that every pixel becomes a square of whole pixels.
    """
    factor = round(HEIGHT / picture.height)
    return picture.width * factor if factor > 1 else 0


def enlarge(picture: Pil.Image) -> Pil.Image:
    """The picture with every pixel repeated as often as its longer side stays within ``SIDE`` pixels."""
    factor = max(1, SIDE // max(picture.size))
    return picture.resize((picture.width * factor, picture.height * factor), Pil.Resampling.NEAREST)
