"""How images become the input of published models, to the pixel: resized, cropped or padded, normalized.

torchvision is not needed: the resizing of its PIL path is Pillow's, that of its tensor path is torch's. For gradients
of rewards the same is done in torch, in Pillow's two passes and with its rounding to 8 bits, which has the gradient 1
(``Preprocessing.differentiable``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image as Pil
from torch import Tensor
from torch.nn import functional

from mmgrpo.types import Image, Output

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Of RGB in [0, 1], as all CLIP models normalize it."""


def image_outputs(outputs: Sequence[Output], reward: str) -> list[Image | None]:
    """The outputs, which must be images; None for one with pixels that are not finite, whose value is NaN."""
    images: list[Image | None] = []
    for output in outputs:
        if not isinstance(output, Image):
            raise TypeError(
                f"{reward}: got an output of kind {type(output).__name__}, expected an Image; "
                f'for clips name frames(reward="{reward}")'
            )
        images.append(output if bool(output.pixels.isfinite().all()) else None)
    return images


def to_pil(image: Image) -> Pil.Image:
    """The image with 8 bits a channel."""
    return Pil.fromarray((image.pixels.permute(1, 2, 0).clamp(0, 1).numpy() * 255).round().astype(np.uint8))


def from_pil(image: Pil.Image) -> Float[Tensor, "3 height width"]:
    """RGB in [0, 1]."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


def normalize(
    pixels: Float[Tensor, "*n 3 height width"],
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
) -> Float[Tensor, "*n 3 height width"]:
    """(pixels - mean) / std by channel."""
    centre, spread = (torch.tensor(values, device=pixels.device)[:, None, None] for values in (mean, std))
    return (pixels - centre) / spread


def centre_crop(
    image: Image, size: int, resample: int = Pil.Resampling.BICUBIC, corner: Callable[[float], int] = round
) -> Float[Tensor, "3 size size"]:
    """The shortest side resized to ``size`` (bicubic, Pillow) and the centre cut out: CLIP, PickScore, ImageReward.

    The longer side is truncated to whole pixels. The crop's ``corner`` is rounded, as torchvision does (CLIP's own
    code, open_clip), or truncated (``int``), as transformers does: other pixels where 3, 7, 11, ... are cut off.
    """
    pil = to_pil(image)
    width, height = pil.size
    short = min(width, height)
    width, height = int(size * width / short), int(size * height / short)
    pil = pil.resize((width, height), Pil.Resampling(resample))
    left, top = corner((width - size) / 2), corner((height - size) / 2)
    return from_pil(pil.crop((left, top, left + size, top + size)))


def stretch(
    image: Image, size: tuple[int, int], resample: int = Pil.Resampling.BICUBIC
) -> Float[Tensor, "3 height width"]:
    """Resized to (height, width) whatever its proportions were (Pillow): SigLIP, DFN."""
    return from_pil(to_pil(image).resize((size[1], size[0]), Pil.Resampling(resample)))


def padded_longest(image: Image, size: int, antialias: bool) -> Float[Tensor, "3 size size"]:
    """The longest side resized to ``size`` (bicubic, on the tensor) and the rest filled with black: HPSv2.

    As there, the image has 8 bits a channel first, and values that bicubic interpolation takes out of [0, 1] are
    kept.
    """
    return _resize_and_pad(from_pil(to_pil(image))[None], size, antialias)[0]


def _resize_and_pad(given: Float[Tensor, "N 3 H W"], size: int, antialias: bool) -> Float[Tensor, "N 3 size size"]:
    height, width = given.shape[2:]
    factor = size / max(height, width)
    new = [round(side * factor) for side in (height, width)]
    pixels = functional.interpolate(given, size=new, mode="bicubic", antialias=antialias)
    across, down = size - new[1], size - new[0]
    return functional.pad(pixels, (across // 2, across - across // 2, down // 2, down - down // 2))


@dataclass(frozen=True)
class Preprocessing:
    """From an image to the input of a network: as published, and differentiable."""

    published: Callable[[Image], Float[Tensor, "3 height width"]]
    differentiable: Callable[[Float[Tensor, "N 3 H W"]], Float[Tensor, "N 3 height width"]]
    """Of pixels in [0, 1]; equal to the published one but for single values that lie half way between two of 8 bits."""

    def __call__(self, image: Image) -> Float[Tensor, "3 height width"]:
        return self.published(image)


def crop_of(
    size: int,
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
    resample: int = Pil.Resampling.BICUBIC,
    corner: Callable[[float], int] = round,
) -> Preprocessing:
    """``centre_crop``, normalized."""

    def differentiable(pixels: Tensor) -> Tensor:
        height, width = pixels.shape[2:]
        short = min(width, height)
        width, height = int(size * width / short), int(size * height / short)
        resized = resized_as_pillow(pixels, (height, width), resample)
        left, top = corner((width - size) / 2), corner((height - size) / 2)
        return normalize(resized[:, :, top : top + size, left : left + size], mean, std)

    return Preprocessing(lambda image: normalize(centre_crop(image, size, resample, corner), mean, std), differentiable)


def stretch_to(
    size: tuple[int, int], mean: Sequence[float], std: Sequence[float], resample: int = Pil.Resampling.BICUBIC
) -> Preprocessing:
    """Stretched and normalized."""
    return Preprocessing(
        lambda image: normalize(stretch(image, size, resample), mean, std),
        lambda pixels: normalize(resized_as_pillow(pixels, size, resample), mean, std),
    )


def padding_to(size: int, antialias: bool) -> Preprocessing:
    """``padded_longest``, normalized as for CLIP."""
    return Preprocessing(
        lambda image: normalize(padded_longest(image, size, antialias)),
        lambda pixels: normalize(_resize_and_pad(eight_bits(pixels), size, antialias)),
    )


def eight_bits(pixels: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Clamped to [0, 1] and rounded to 255ths; the rounding has the gradient 1."""
    inside = pixels.clamp(0, 1)
    return inside + ((inside.detach() * 255).round() / 255 - inside.detach())


def resized_as_pillow(
    pixels: Float[Tensor, "N 3 H W"], size: tuple[int, int], resample: int
) -> Float[Tensor, "N 3 height width"]:
    """Resized to (height, width) as Pillow does it: rows, then columns, each with 8 bits. ValueError for a filter that
    torch does not have."""
    modes = {Pil.Resampling.BICUBIC: "bicubic", Pil.Resampling.BILINEAR: "bilinear"}
    if resample not in modes:
        raise ValueError(
            f"resample: got {Pil.Resampling(resample).name.lower()}, expected bicubic or bilinear for the gradient of "
            "a reward"
        )
    pixels = eight_bits(pixels)
    for between in ((pixels.shape[2], size[1]), size):
        if tuple(pixels.shape[2:]) != between:
            mode = modes[Pil.Resampling(resample)]
            pixels = eight_bits(functional.interpolate(pixels, size=between, mode=mode, antialias=True))
    return pixels
