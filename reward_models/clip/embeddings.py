"""Image embeddings by a CLIP or SigLIP, for rewards that compare images with each other or with a set."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mmgrpo.types import Output
from reward_models.clip.load import load_towers
from reward_models.pixels import image_outputs


def embed(
    outputs: Sequence[Output],
    weights: str = "openai/clip-vit-large-patch14",
    normalised: bool = True,
    quick_gelu: bool = False,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Float[Tensor, "n width"]:
    """The projected image embeddings of images, on the CPU and of length 1 where ``normalised``; the row of an image
    that is not finite is NaN. ``weights`` as for ``load_towers``."""
    towers = load_towers(weights, "embed", quick_gelu=quick_gelu, dtype=dtype, allow_pickle=allow_pickle, device=device)
    images = {row: image for row, image in enumerate(image_outputs(outputs, "embed")) if image is not None}
    if not images:
        raise ValueError(f"embed: got {len(outputs)} images, none of which is finite, expected at least one")
    vectors = towers.embeddings(list(images.values()))
    result = torch.full((len(outputs), vectors.shape[1]), float("nan"))
    result[list(images)] = functional.normalize(vectors) if normalised else vectors
    return result
