"""How images become the input of published models, to the pixel: resized, cropped or padded, normalized.

torchvision is not needed: the resizing of its PIL path is Pillow's, that of its tensor path is torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    found: list[Image | None] = []
    for output in outputs:
        if not isinstance(output, Image):
            raise TypeError(
                f"{reward}: got an output of kind {type(output).__name__}, expected an Image; "
                f'for clips name frames(reward="{reward}")'
            )
        found.append(output if bool(output.pixels.isfinite().all()) else None)
    return found


def to_pil(image: Image) -> Pil.Image:
    """The image with 8 bits a channel."""
    return Pil.fromarray((image.pixels.permute(1, 2, 0).clamp(0, 1).numpy() * 255).round().astype(np.uint8))


def from_pil(image: Pil.Image) -> Float[Tensor, "3 height width"]:
    """RGB in [0, 1]."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


def normalized(
    pixels: Float[Tensor, "*n 3 height width"],
    mean: Sequence[float] = CLIP_MEAN,
    std: Sequence[float] = CLIP_STD,
) -> Float[Tensor, "*n 3 height width"]:
    """(pixels - mean) / std by channel."""
    return (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]


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


def stretched(
    image: Image, size: tuple[int, int], resample: int = Pil.Resampling.BICUBIC
) -> Float[Tensor, "3 height width"]:
    """Resized to (height, width) whatever its proportions were (Pillow): SigLIP, DFN."""
    return from_pil(to_pil(image).resize((size[1], size[0]), Pil.Resampling(resample)))


def padded_longest(image: Image, size: int, antialias: bool) -> Float[Tensor, "3 size size"]:
    """The longest side resized to ``size`` (bicubic, on the tensor) and the rest filled with black: HPSv2.

    As there, the image has 8 bits a channel first, and values that bicubic interpolation takes out of [0, 1] are
    kept.
    """
    given = from_pil(to_pil(image))
    height, width = given.shape[1:]
    factor = size / max(height, width)
    new = [round(side * factor) for side in (height, width)]
    pixels = functional.interpolate(given[None], size=new, mode="bicubic", antialias=antialias)[0]
    across, down = size - new[1], size - new[0]
    return functional.pad(pixels, (across // 2, across - across // 2, down // 2, down - down // 2))
