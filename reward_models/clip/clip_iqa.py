"""CLIP-IQA (arXiv:2207.12396): quality and look of an image, by which of two opposite descriptions fits it better.

For each pair, softmax(100 cos(image, positive), 100 cos(image, negative)), and the mean over the pairs. The paper's
own numbers are of a ResNet-50 without positions; with a vision transformer, as here, they are those of torchmetrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.clip.load import load_towers
from reward_models.clip.towers import Towers, score_images

PAIRS: dict[str, tuple[str, str]] = {
    "quality": ("Good photo.", "Bad photo."),
    "brightness": ("Bright photo.", "Dark photo."),
    "noisiness": ("Clean photo.", "Noisy photo."),
    "colorfulness": ("Colorful photo.", "Dull photo."),
    "sharpness": ("Sharp photo.", "Blurry photo."),
    "contrast": ("High contrast photo.", "Low contrast photo."),
    "complexity": ("Complex photo.", "Simple photo."),
    "natural": ("Natural photo.", "Synthetic photo."),
    "real": ("Real photo.", "Abstract photo."),
    "beautiful": ("Beautiful photo.", "Ugly photo."),
}
"""Descriptions by name, the positive one first."""

FACTOR = 100.0
"""Of cosines before the softmax, whatever the checkpoint's own factor is."""


@reward(
    "Image",
    scale="probability of the positive description",
    packages=("transformers",),
    extra="visual",
    weights={"openai/clip-vit-base-patch16": ()},
    licence="MIT",
    source="CLIP-IQA, arXiv:2207.12396",
    gradient="reward_models.clip.clip_iqa:differentiable",
)
def clip_iqa(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    pairs: str | Sequence[Sequence[str]] = "quality",
    weights: str = "openai/clip-vit-base-patch16",
    tokenizer: str = "",
    quick_gelu: bool = False,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """Probability in [0, 1] of the positive description, the mean over ``pairs``: names of ``PAIRS`` joined by "+", or
    [positive, negative] of your own. The prompt is not read. NaN for an image that is not finite."""
    chosen = _pairs(pairs)
    towers = load_towers(
        weights,
        "clip_iqa",
        tokenizer=tokenizer,
        quick_gelu=quick_gelu,
        dtype=dtype,
        allow_pickle=allow_pickle,
        device=device,
    )

    def values(rows: list[int], images: list[Image]) -> Tensor:
        return _probability(towers.images(images), _texts(towers, chosen))

    return score_images(outputs, "clip_iqa", values)


def differentiable(
    pairs: str | Sequence[Sequence[str]] = "quality",
    weights: str = "openai/clip-vit-base-patch16",
    tokenizer: str = "",
    quick_gelu: bool = False,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``clip_iqa`` as a function of pixels."""
    chosen = _pairs(pairs)
    towers = load_towers(
        weights,
        "clip_iqa",
        tokenizer=tokenizer,
        quick_gelu=quick_gelu,
        dtype=dtype,
        allow_pickle=allow_pickle,
        device=device,
    )

    def score(prompts: Sequence[Prompt], pixels: Tensor) -> Tensor:
        images = functional.normalize(towers.features(pixels))
        return _probability(images, _texts(towers, chosen).to(images.device))

    return score


def _texts(towers: Towers, pairs: Sequence[tuple[str, str]]) -> Tensor:
    """The features of both descriptions of every pair, one after the other."""
    return towers.texts([text for pair in pairs for text in pair])


def _probability(images: Tensor, texts: Tensor) -> Tensor:
    """Mean probability over the pairs that the positive description fits each image better."""
    cosines = (images @ texts.T).unflatten(1, (-1, 2))
    return torch.softmax(FACTOR * cosines, -1)[..., 0].mean(1)


def _pairs(pairs: str | Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    if isinstance(pairs, str):
        unknown = [name for name in pairs.split("+") if name not in PAIRS]
        if unknown:
            raise ValueError(f"clip_iqa: pairs: got {unknown[0]!r}, expected some of {', '.join(PAIRS)}, joined by '+'")
        return [PAIRS[name] for name in pairs.split("+")]
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
            raise ValueError(f"clip_iqa: pairs: got {pair!r}, expected [positive text, negative text]")
    if not pairs:
        raise ValueError("clip_iqa: pairs: got none, expected at least one")
    return [(pair[0], pair[1]) for pair in pairs]
