"""Models with a tower for images and one for texts (CLIP, SigLIP), as the rewards of this room use them.

    towers = load_towers("openai/clip-vit-base-patch32", "clip_score")
    cosines = towers.images(images) @ towers.texts(["a red cube"]).T

Features are normalized in 32 bits, whatever the precision of the towers is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from mmgrpo.types import Image, Output
from reward_models.pixels import Preprocessing, image_outputs

BATCH = 32
"""Images or texts that a tower reads at once."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Towers:
    """A two-tower model on its device."""

    encode_images: Callable[[Tensor], Tensor]
    """From pixels [n, 3, h, w] to embeddings [n, width], not normalized."""
    encode_texts: Callable[[list[str]], Tensor]
    transform: Preprocessing
    size: int
    """Side of the square that the vision tower reads."""
    logit_scale: float
    """The learned factor of its cosines, about 100."""
    model: Any = None
    """transformers' model, where it is one."""
    tokenize: Callable[[list[str]], Tensor] | None = None

    def embeddings(self, images: Sequence[Image], transform: Preprocessing | None = None) -> Float[Tensor, "n width"]:
        """The projected embeddings of images, in 32 bits and not normalized."""
        return _in_parts(
            list(images), lambda part: self.encode_images(torch.stack([(transform or self.transform)(i) for i in part]))
        )

    def images(self, images: Sequence[Image], transform: Preprocessing | None = None) -> Float[Tensor, "n width"]:
        """The features of images, of length 1."""
        return functional.normalize(self.embeddings(images, transform))

    def features(
        self, pixels: Float[Tensor, "n 3 height width"], transform: Preprocessing | None = None
    ) -> Float[Tensor, "n width"]:
        """The projected embeddings of pixels in [0, 1], as ``embeddings``, with gradient and on the towers' device."""
        return self.encode_images((transform or self.transform).differentiable(pixels)).float()

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "n width"]:
        """The features of texts, of length 1; equal texts are encoded once."""
        unique = list(dict.fromkeys(texts))
        features = functional.normalize(_in_parts(unique, self.encode_texts))
        return features[[unique.index(text) for text in texts]]


def _in_parts(items: list[Any], encode: Callable[[list[Any]], Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([encode(items[n : n + BATCH]).float().cpu() for n in range(0, len(items), BATCH)])


def score_images(
    outputs: Sequence[Output], reward: str, values: Callable[[list[int], list[Image]], Float[Tensor, " n"]]
) -> list[float]:
    """One number for each output: ``values`` of the rows and images that can be scored, NaN for the others."""
    images = {row: image for row, image in enumerate(image_outputs(outputs, reward)) if image is not None}
    result = [math.nan] * len(outputs)
    if images:
        for row, value in zip(images, values(list(images), list(images.values())).tolist(), strict=True):
            result[row] = value
    return result
