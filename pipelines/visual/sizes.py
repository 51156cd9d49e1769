"""Sizes of images and clips that a model can make, and the nearest ones to those that it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import lcm
from typing import Any, NamedTuple

from mmgrpo.runtime.memory import compression


class Sides(NamedTuple):
    """The sides of images, in pixels, that a network takes."""

    unit: int
    """They are multiples of it,"""
    most: int = 1 << 30
    """and at most as long."""


SIDES: Mapping[str, Callable[[Any, int], Sides]] = {
    "FluxTransformer2DModel": lambda config, factor: Sides(2 * factor),
    "Flux2Transformer2DModel": lambda config, factor: Sides(2 * factor),
    "LongCatImageTransformer2DModel": lambda config, factor: Sides(2 * factor),
    "QwenImage21Transformer2DModel": lambda config, factor: Sides(2 * factor),
    "QwenImageTransformer2DModel": lambda config, factor: Sides(2 * factor),
    "ZImageTransformer2DModel": lambda config, factor: Sides(2 * factor, 2 * factor * min(config["axes_lens"][1:])),
    "SD3Transformer2DModel": lambda config, factor: Sides(
        factor * config["patch_size"], factor * config["patch_size"] * config["pos_embed_max_size"]
    ),
    "SanaTransformer2DModel": lambda config, factor: Sides(factor * config["patch_size"]),
    "WanTransformer3DModel": lambda config, factor: Sides(
        factor * config["patch_size"][1], factor * config["patch_size"][1] * config["rope_max_seq_len"]
    ),
    # The pipelines of these ask for more than the networks need.
    "SanaVideoTransformer3DModel": lambda config, factor: Sides(
        lcm(32, factor * config["patch_size"][1]), factor * config["patch_size"][1] * config["rope_max_seq_len"]
    ),
    "HunyuanVideoTransformer3DModel": lambda config, factor: Sides(lcm(16, factor * config["patch_size"])),
    "HunyuanVideo15Transformer3DModel": lambda config, factor: Sides(factor * config["patch_size"]),
    "LTXVideoTransformer3DModel": lambda config, factor: Sides(lcm(32, factor)),
    "LTX2VideoTransformer3DModel": lambda config, factor: Sides(lcm(32, factor)),
    "UVit2DModel": lambda config, factor: Sides((1 + bool(config["downsample"])) * factor),
    "UNet2DConditionModel": lambda config, factor: Sides(max(8, factor)),
}
"""Class of a network to the sides that it takes, by its configuration and the pixels per side of a latent position."""


def sides_of(network: Any, factor: int) -> Sides:
    """The sides of images that a network of diffusers takes, with ``factor`` pixels per side of a latent position."""
    return SIDES[type(network).__name__](network.config, factor)


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


def refuse_sizes(path: str, height: int, width: int, frames: int) -> None:
    """ValueError for a size that a model does not make, by the configurations in its folder or on the hub; zeros are
    its own. A network that ``SIDES`` does not name is not asked."""
    from pipelines.pretrained import read_json

    if not (height or width or frames):
        return
    network = read_json(path, "transformer/config.json") or read_json(path, "unet/config.json") or {}
    if (rule := SIDES.get(str(network.get("_class_name")))) is None:
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
