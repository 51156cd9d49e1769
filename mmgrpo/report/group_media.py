"""Pictures and clips as files of a limited size: exact where they fit, else smaller."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
from PIL import Image as Pil

from mmgrpo.report.thumbnails import jpeg

CLIP_SIDE = 256
"""Longer side of a clip in pixels."""
CLIP_FRAMES = 24
"""Frames of a clip; of longer ones as many, evenly spaced, at their own pace."""
SMALLEST = 64
"""Longer side in pixels below which nothing is made smaller."""

File: TypeAlias = tuple[bytes, str, str]
"""The content of a file, its suffix, and a note on what is not exact in it (or an empty one)."""


def picture_within(picture: Pil.Image, limit: int) -> File:
    """A PNG if it has at most ``limit`` bytes, else a JPEG that does, as far as it may be made smaller."""
    # Pictures of more than four bytes a pixel for each that may be kept are not worth the time of a PNG encoder.
    if picture.width * picture.height * 3 <= 4 * limit:
        buffer = BytesIO()
        picture.save(buffer, format="PNG")
        if buffer.tell() <= limit:
            return buffer.getvalue(), ".png", ""
    return jpeg_within(picture, limit, "pictures are compressed with losses")


def jpeg_within(picture: Pil.Image, limit: int, note: str = "") -> File:
    """A JPEG, with its sides halved until it has at most ``limit`` bytes."""
    content = jpeg(picture)
    while len(content) > limit and max(picture.size) > SMALLEST:
        picture = picture.resize((-(-picture.width // 2), -(-picture.height // 2)))
        note, content = "pictures are made smaller", jpeg(picture)
    return content, ".jpg", note


def webp_within(frames: Sequence[Pil.Image], fps: float, limit: int) -> File:
    """A WebP that plays for ever at ``fps`` frames per second; small frames keep their exact colours."""
    count = min(len(frames), CLIP_FRAMES)
    indices = np.linspace(0, len(frames) - 1, count).round().astype(int).tolist()
    chosen, exact = [frames[index] for index in indices], max(frames[0].size) <= CLIP_SIDE // 2
    scale = min(1.0, CLIP_SIDE / max(frames[0].size))
    duration = max(1, round(1000 * len(frames) / fps / count))
    note = "" if count == len(frames) else f"clips have {CLIP_FRAMES} frames here"
    while True:
        size = (max(1, round(frames[0].width * scale)), max(1, round(frames[0].height * scale)))
        first, *rest = [frame.resize(size) for frame in chosen]
        options: dict[str, Any] = {"save_all": True, "append_images": rest, "duration": duration, "loop": 0}
        buffer = BytesIO()
        first.save(buffer, "WEBP", lossless=exact, method=2, **options)
        if buffer.tell() <= limit or max(size) <= SMALLEST:
            return buffer.getvalue(), ".webp", note or ("" if scale == 1.0 else "clips are made smaller")
        scale, exact = scale / 2, False
