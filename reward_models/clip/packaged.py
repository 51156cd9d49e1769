"""Any model of the package open_clip (EVA, ConvNeXt, SigLIP, CoCa, ...), loaded and preprocessed by the package."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.types import Image
from reward_models.clip.towers import Towers
from reward_models.pixels import to_pil


def packaged_towers(name: str, reward: str, dtype: torch.dtype, device: str) -> Towers:
    """The towers ``ARCHITECTURE/TAG`` (a tag of the package, or the path of a checkpoint), ``hf-hub:ID`` or
    ``local-dir:FOLDER``; ModuleNotFoundError where the package is not installed."""
    try:
        import open_clip
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{reward}: weights 'open_clip:{name}' need the package '{error.name}': {install('clip')}",
            name=error.name,
        ) from error
    local = name.startswith(("hf-hub:", "local-dir:"))
    architecture, _, tag = (name, "", "") if local else name.partition("/")
    if not local and not tag:
        raise ValueError(
            f"{reward}: weights: got 'open_clip:{name}', expected ARCHITECTURE/TAG, hf-hub:ID or local-dir:FOLDER"
        )
    model, transform = open_clip.create_model_from_pretrained(architecture, pretrained=tag or None, device=device)
    model = model.to(dtype=dtype).eval().requires_grad_(False)
    tokenizer = open_clip.get_tokenizer(architecture)
    size = model.visual.image_size

    def transformed(image: Image) -> Tensor:
        pixels: Any = transform(to_pil(image))
        return pixels

    return Towers(
        lambda pixels: model.encode_image(pixels.to(device, dtype)),
        lambda texts: model.encode_text(tokenizer(texts).to(device)),
        transformed,
        int(size[0] if isinstance(size, tuple | list) else size),
        float(model.logit_scale.float().exp()),
    )
