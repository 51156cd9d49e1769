"""LAION's aesthetic predictors: a small head on CLIP ViT-L/14's image embedding, trained on ratings of 1 to 10.

Version 1 (LAION-AI/aesthetic-predictor, MIT) is one linear layer, version 2 (christophschuhmann/
improved-aesthetic-predictor, Apache-2.0) five, without activations or with ReLU. Both read embeddings of length 1, of
images preprocessed as by OpenAI. Version 2 is what DDPO, Flow-GRPO and most papers call the aesthetic score.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from torch import Tensor

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.checkpoints import read_tensors
from reward_models.clip.head import Head, HeadFacts, head_from, load_head
from reward_models.clip.load import load_towers
from reward_models.clip.towers import score_images
from reward_models.pixels import crop_of

CLIP = "openai/clip-vit-large-patch14"

LAYOUTS: dict[tuple[int, ...], str] = {(0, 2, 4, 6, 7): "none", (0, 3, 6, 9, 11): "relu"}
"""Numbers of the linear layers among ``layers.N`` of version 2 (the others are dropout and activations), and the
activation between them."""


@reward(
    "Image",
    range=(-inf, inf),
    scale="predicted rating, about 1 to 10",
    packages=("transformers",),
    extra="visual",
    weights={"openai/clip-vit-large-patch14": ()},
    licence="MIT; heads MIT (version 1) and Apache-2.0 (version 2)",
    source="LAION-Aesthetics",
    gradient="reward_models.clip.aesthetic:differentiable",
)
def aesthetic(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    head: str,
    weights: str = CLIP,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """The predicted rating, about 1 to 10; NaN for an image that is not finite. The prompt is not read.

    ``head`` is the published file (sa_0_4_vit_l_14_linear.pth, sac+logos+ava1-l14-linearMSE.pth, ...: pickles, which
    ``allow_pickle`` reads), the same converted to safetensors, or one that ``save_head`` wrote; ``weights`` is the CLIP
    that it reads.
    """
    layers = published_head(head, allow_pickle)
    towers = load_towers(weights, "aesthetic", dtype=dtype, allow_pickle=allow_pickle, device=device)

    def values(rows: list[int], images: list[Image]) -> Tensor:
        return layers(towers.embeddings(images, crop_of(towers.size)))[:, 0]

    return score_images(outputs, "aesthetic", values)


def differentiable(
    head: str, weights: str = CLIP, dtype: str = "float32", allow_pickle: bool = False, device: str = "cpu"
) -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``aesthetic`` as a function of pixels."""
    layers = published_head(head, allow_pickle)
    towers = load_towers(weights, "aesthetic", dtype=dtype, allow_pickle=allow_pickle, device=device)
    return lambda prompts, pixels: layers(towers.features(pixels, crop_of(towers.size)).cpu())[:, 0]


@functools.cache
def published_head(file: str, allow_pickle: bool = False) -> Head:
    """The head of a published file of version 1 or 2, or of ``save_head``."""
    path = Path(file).expanduser()
    tensors = read_tensors(path, "aesthetic", allow_pickle)
    if set(tensors) == {"weight", "bias"}:
        tensors, activation = {f"layers.0.{key}": tensor for key, tensor in tensors.items()}, "none"
    else:
        numbers = sorted({int(match[1]) for key in tensors if (match := re.match(r"layers\.(\d+)\.", key))})
        if path.suffix == ".safetensors" and numbers == list(range(len(numbers))):
            return load_head(path, "aesthetic")
        if tuple(numbers) not in LAYOUTS:
            raise ValueError(
                f"aesthetic: {path}: got the layers {numbers} of {sorted(tensors)[:5]}, expected weight and bias, or "
                f"layers {' or '.join(str(list(layout)) for layout in LAYOUTS)}"
            )
        activation = LAYOUTS[tuple(numbers)]
        tensors = {
            re.sub(r"^layers\.(\d+)", lambda match: f"layers.{numbers.index(int(match[1]))}", key): tensor
            for key, tensor in tensors.items()
        }
    return head_from(tensors, HeadFacts(CLIP, activation=activation), path, "aesthetic")
