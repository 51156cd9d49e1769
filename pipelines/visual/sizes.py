"""Sizes of images and clips that a model can make, and the nearest ones to those that it cannot."""

from __future__ import annotations

from collections.abc import Sequence


def latent_size(
    height: int, width: int, *, unit: int, factor: int, default: int | Sequence[int], most: int = 1 << 30
) -> tuple[int, int]:
    """Height and width of latents, ``factor`` pixels per side of a position; ValueError for an unsupported size.

    A height or width of 0 is that of ``default``, in pixels. Sizes are multiples of ``unit`` pixels, at most ``most``.
    """
    rows, columns = (default, default) if isinstance(default, int) else default
    height, width = height or rows, width or columns
    for name, size in (("height", height), ("width", width)):
        if size < unit or size % unit or size > most:
            raise ValueError(
                f"{name}: got {size} pixels, expected a multiple of {unit}, at most {most}; the nearest is "
                f"{nearest_multiple(size, unit, most)}"
            )
    return height // factor, width // factor


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


def at_least_one(name: str, scale: float) -> float:
    """The scale of guidance, which must be at least 1 (none)."""
    if scale < 1:
        raise ValueError(f"{name}: got {scale}, expected 1 (no guidance) or more")
    return float(scale)
