"""Sizes of images and clips that a model can make, and the nearest ones to those that it cannot."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmgrpo.runtime.memory import compression


class Sides(NamedTuple):
    """The sides of images, in pixels, that a network takes."""

    unit: int
    """They are multiples of it,"""
    most: int = 1 << 30
    """and at most as long."""


@dataclass(frozen=True)
class Sample:
    """One sample of a run, to its network."""

    height: int
    """Rows of latents,"""
    width: int
    """and columns."""
    frames: int = 1
    """Latent frames."""
    words: int = 0
    """Tokens of the prompt, of which the network is told."""
    given: int = 0
    """Rows and columns each of the latents of an image of the prompt that the network reads with them; 0: none."""
    begins: bool = False
    """Whether a clip begins with an image of the prompt."""
    states: int = 0
    """States of an image encoder."""
    seconds: float = 0.0
    """Length of a clip."""


def latent_size(height: int, width: int, sides: Sides, *, factor: int, default: int | Sequence[int]) -> tuple[int, int]:
    """Height and width of latents, ``factor`` pixels per side of a position; ValueError for an unsupported size.

    A height or width of 0 is that of ``default``, in pixels.
    """
    unit, most = sides
    rows, columns = (default, default) if isinstance(default, int) else default
    height, width = height or rows, width or columns
    for name, size in (("height", height), ("width", width)):
        if size < unit or size % unit or size > most:
            raise ValueError(
                f"{name}: got {size} pixels, expected a multiple of {unit}, at most {most}; the nearest is "
                f"{nearest_multiple(size, unit, most)}"
            )
    return height // factor, width // factor


def refuse_sizes(path: str, module: str, height: int, width: int, frames: int) -> None:
    """ValueError for a size that a model does not make, by the configurations in its folder or on the hub; zeros are
    its own. ``module`` has the family's ``sides_of``; without one it is the loader that says so."""
    from pipelines.pretrained import read_json

    if not (height or width or frames):
        return
    network = read_json(path, "transformer/config.json") or read_json(path, "unet/config.json") or {}
    rule: Callable[[Any, int], Sides] | None = getattr(importlib.import_module(module), "sides_of", None)
    if not network or rule is None:
        return
    if vae := read_json(path, "vae/config.json") or read_json(path, "vqvae/config.json"):
        factor, pace = compression(vae)
    else:  # a small model, of which latents are pixels
        factor, pace = (read_json(path, "enlarger/enlarger.json") or {}).get("scale", 1), 1
    try:
        sides = rule(network, factor)
    except (LookupError, TypeError):  # a damaged configuration, of which the loader says what is wrong
        return
    latent_size(height, width, sides, factor=factor, default=sides.unit)
    if frames:
        latent_frames(frames, pace)


def nearest_multiple(size: int, unit: int, most: int) -> int:
    """The multiple of ``unit`` within [unit, most] that is nearest to ``size``."""
    return min(max(round(size / unit), 1) * unit, most - most % unit)


def latent_frames(frames: int, factor: int, most: int = 1 << 30) -> int:
    """Latent frames, at most ``most``, of a clip whose VAE encodes its first frame alone and then ``factor`` frames at
    a time.

    ValueError unless ``frames`` is 1 more than a multiple of ``factor``.
    """
    longest = (most - 1) * factor + 1
    if frames > longest:
        raise ValueError(f"frames: got {frames}, expected at most {longest}, which is also the nearest")
    if frames < 1 or (frames - 1) % factor:
        nearest = max(round((frames - 1) / factor), 0) * factor + 1
        raise ValueError(
            f"frames: got {frames}, expected 1 more than a multiple of {factor}, since the VAE encodes the first frame "
            f"alone and then {factor} at a time; the nearest is {nearest}"
        )
    return (frames - 1) // factor + 1
