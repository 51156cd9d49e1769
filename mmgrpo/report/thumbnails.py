"""Small pictures for pages with many of them: thumbnails, strips of frames, and drawn boxes."""

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
"""Approximate height in CSS pixels to which a page enlarges a small picture."""
GAP = 2
"""Pixels between the frames of a strip."""
FRAMES = 6
"""Largest number of frames in a strip."""
BOXES = 1000
"""Largest number of boxes of a kind that are drawn into a picture."""
REFERENCE, PREDICTION = "#1d9a5c", "#d0492f"
"""Colours of reference boxes (key ``gold`` in samples/*.jsonl) and of predicted boxes (key ``said``)."""

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom as fractions of the picture's width and height."""


def thumbnail(picture: Pil.Image) -> Pil.Image:
    """The picture on white, scaled down to a longer side of at most ``SIDE`` pixels."""
    opaque = Pil.new("RGB", picture.size, "white")
    opaque.paste(picture, mask=picture.convert("RGBA").getchannel("A"))
    opaque.thumbnail((SIDE, SIDE))
    return opaque


def strip(frames: Sequence[Pil.Image]) -> Pil.Image:
    """At most ``FRAMES`` frames of a clip side by side, evenly spaced from the first to the last.

    Frame i of n has the index round(i (N - 1) / (n - 1)) in a clip of N frames.
    """
    if not frames:
        raise ValueError("got a clip without frames, expected at least one")
    count = min(FRAMES, len(frames))
    indices = [round(i * (len(frames) - 1) / max(1, count - 1)) for i in range(count)]
    tiles = [thumbnail(frames[index]) for index in indices]
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
    """A copy of the picture with reference and predicted boxes; corners may be in either order.

    A completion may contain any numbers: fractions are clipped to [-1, 2], since lines outside the picture are not
    visible, and boxes with a non-finite coordinate are left out.
    """
    copy = picture.convert("RGB")
    pen = ImageDraw.Draw(copy)
    for name, colour in (("gold", REFERENCE), ("said", PREDICTION)):
        for box in boxes.get(name, ())[:BOXES]:
            if not all(map(is_number, box)):
                continue
            left, top, right, bottom = (min(max(fraction, -1.0), 2.0) for fraction in box)
            x = sorted((left * copy.width, right * copy.width))
            y = sorted((top * copy.height, bottom * copy.height))
            pen.rectangle((x[0], y[0], x[1], y[1]), outline=colour, width=2)
    return copy


def enlarged_width(picture: Pil.Image) -> int:
    """Width in CSS pixels at which a small picture is about ``HEIGHT`` high; 0 if it is large enough.

    width round(HEIGHT / height): an integer factor, so that all pixels are equally large.
    """
    factor = round(HEIGHT / picture.height)
    return picture.width * factor if factor > 1 else 0


def enlarge(picture: Pil.Image) -> Pil.Image:
    """The picture with every pixel repeated by the largest integer factor that keeps both sides within ``SIDE``."""
    factor = max(1, SIDE // max(picture.size))
    return picture.resize((picture.width * factor, picture.height * factor), Pil.Resampling.NEAREST)
