"""The images that a judge sees of a medium of a prompt: an image, or frames of a video."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch

from mmgrpo.data.images import IMAGE_CACHE
from mmgrpo.data.limits import open_source
from mmgrpo.types import Image, Media, Video
from reward_models.evaluation.media import read_video

FRAMES = 8
"""Frames of a clip that a judge sees, evenly spaced over it."""


def evenly_spaced(count: int) -> list[int]:
    """The numbers of at most ``FRAMES`` of ``count`` frames, the first and the last among them."""
    return torch.linspace(0, count - 1, min(FRAMES, count)).round().long().tolist()


def images_of(medium: Media) -> Sequence[Image]:
    """An image, or the frames of a video between its ``start`` and ``end``; ``Unreadable`` or OSError for a file that
    cannot be read."""
    source, options = medium.source, medium.options
    if medium.kind == "image":
        return [source if isinstance(source, Image) else IMAGE_CACHE.read(str(source))]
    start, end = float(options.get("start", 0.0)), float(options.get("end", math.inf))
    if isinstance(source, str):
        file = open_source(source)
        content = file.getvalue() if isinstance(file, BytesIO) else Path(file)
        return [Image(frame) for frame in read_video(content, FRAMES, start, end).frames]
    files = source if isinstance(source, tuple) else ()
    frames = source.frames if isinstance(source, Video) else files
    fps = source.fps if isinstance(source, Video) else float(options.get("fps", math.inf))
    inside = (
        [place for place in range(len(frames)) if start <= place / fps <= end]
        if fps < math.inf
        else [*range(len(frames))]
    )
    chosen = [inside[place] for place in evenly_spaced(len(inside))]
    return [IMAGE_CACHE.read(files[place]) if files else Image(frames[place]) for place in chosen]  # type: ignore[arg-type]
