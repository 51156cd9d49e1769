"""Compressibility of images: two rewards of DDPO (arXiv:2305.13301, section 5.1)."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from math import inf

import numpy as np
from PIL import Image as Pil

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt

jpeg_reward = functools.partial(reward, "Image", scale="kilobytes", source="DDPO, arXiv:2305.13301")


@jpeg_reward(range=(0, inf))
def jpeg_incompressibility(prompts: Sequence[Prompt], outputs: Sequence[Output], quality: int = 95) -> list[float]:
    """Size of the image as JPEG in kilobytes (1000 bytes); NaN for images with non-finite pixels."""
    return [_kilobytes(output, quality) for output in outputs]


@jpeg_reward(range=(-inf, 0))
def jpeg_compressibility(prompts: Sequence[Prompt], outputs: Sequence[Output], quality: int = 95) -> list[float]:
    """The negative of ``jpeg_incompressibility``."""
    return [-size for size in jpeg_incompressibility(prompts, outputs, quality)]


def _kilobytes(output: Output, quality: int) -> float:
    if not isinstance(output, Image):
        raise TypeError(f"jpeg rewards: got an output of kind {type(output).__name__}, expected an Image")
    if not bool(output.pixels.isfinite().all()):
        return float("nan")
    pixels = (output.pixels.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    buffer = io.BytesIO()
    Pil.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
    return buffer.tell() / 1000
