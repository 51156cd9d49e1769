"""Changes that must not raise a score: damaged images, another prompt, padded answers, another reading order."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image as Pil
from torch.nn import functional

from mmgrpo.types import Image, Output, Text, Video
from reward_models.pixels import from_pil, to_pil

Damage: TypeAlias = Callable[[Image, np.random.Generator, float], Image]


def blur(image: Image, generator: np.random.Generator, strength: float) -> Image:
    """Gaussian blur of ``strength`` pixels of an image of 32, and proportionally more on larger ones."""
    sigma = strength * max(image.pixels.shape[1:]) / 32
    reach = min(math.ceil(3 * sigma), min(image.pixels.shape[1:]) - 1)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    kernel = (kernel / kernel.sum()).expand(3, 1, 1, -1)
    padded = functional.pad(image.pixels[None], (reach, reach, reach, reach), mode="reflect")
    across = functional.conv2d(padded, kernel, groups=3)
    return Image(functional.conv2d(across, kernel.transpose(2, 3), groups=3)[0].clamp(0, 1))


def noise(image: Image, generator: np.random.Generator, strength: float) -> Image:
    """White Gaussian noise of standard deviation ``strength``, where white is 1."""
    drawn = generator.standard_normal(tuple(image.pixels.shape)).astype(np.float32)
    return Image((image.pixels + strength * torch.from_numpy(drawn)).clamp(0, 1))


def jpeg(image: Image, generator: np.random.Generator, strength: float) -> Image:
    """JPEG of quality ``strength``, 1 (worst) to 95."""
    buffer = io.BytesIO()
    to_pil(image).save(buffer, format="JPEG", quality=round(strength))
    return Image(from_pil(Pil.open(buffer)))


def texture(image: Image, generator: np.random.Generator, strength: float) -> Image:
    """A fine checkerboard of amplitude ``strength``, two pixels a period: the pattern that generators learn when a
    reward likes detail."""
    height, width = image.pixels.shape[1:]
    board = (torch.arange(height)[:, None] + torch.arange(width) + int(generator.integers(2))) % 2
    return Image((image.pixels + strength * (2.0 * board - 1)).clamp(0, 1))


DAMAGES: Mapping[str, Damage] = {"blur": blur, "noise": noise, "jpeg": jpeg, "texture": texture}
STRENGTHS: Mapping[str, float] = {"blur": 1.0, "noise": 0.15, "jpeg": 10.0, "texture": 0.15}
"""Strength of each damage as an attack: a person sees it at once."""


def damage_output(
    output: Output, name: str, generator: np.random.Generator, strength: int | float = 0
) -> Output | None:
    """The output after a damage, at 0 of that in ``STRENGTHS``; a clip frame by frame with one draw; None for what has
    no pixels."""
    strength = float(strength or STRENGTHS[name])
    if isinstance(output, Image):
        return DAMAGES[name](output, generator, strength)
    if isinstance(output, Video):
        seed = int(generator.integers(1 << 31))
        frames = [DAMAGES[name](Image(frame), np.random.default_rng(seed), strength).pixels for frame in output.frames]
        return replace(output, frames=torch.stack(frames))
    return None


def repeat_text(output: Output) -> Output | None:
    """A text that says everything twice; None for other outputs."""
    return replace(output, text=f"{output.text}\n\n{output.text}") if isinstance(output, Text) else None
