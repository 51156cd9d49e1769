"""PickScore (arXiv:2305.01569, yuvalkirstain/PickScore_v1): human preference, by a CLIP ViT-H/14 trained on votes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from torch import Tensor

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.clip.load import load_towers
from reward_models.clip.match import Match, score

TOKENIZER = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"

SCALES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "logit": lambda cosine, factor: factor * cosine,
    "over26": lambda cosine, factor: factor * cosine / 26,
    "cosine": lambda cosine, factor: cosine,
}
"""As published, typically 15 to 25; as Flow-GRPO trains on it; as DanceGRPO does."""


@reward(
    "Image",
    range=(-inf, inf),
    scale="logit, typically 15 to 25",
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    weights={
        "yuvalkirstain/PickScore_v1": ("config.json", "model.safetensors"),
        "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": ("tokenizer.json",),
    },
    licence="MIT",
    source="Pick-a-Pic, arXiv:2305.01569",
    gradient="reward_models.clip.pickscore:match",
)
def pickscore(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str = "yuvalkirstain/PickScore_v1",
    scale: str = "logit",
    tokenizer: str = TOKENIZER,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """exp(logit_scale) cos(image, prompt), on one of ``SCALES``; NaN for an image that is not finite.

    Softmax over the scores of several images of one prompt gives the probability that people prefer each.
    """
    return score(match(weights, scale, tokenizer, dtype, allow_pickle, device), prompts, outputs)


def match(
    weights: str = "yuvalkirstain/PickScore_v1",
    scale: str = "logit",
    tokenizer: str = TOKENIZER,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Match:
    """How ``pickscore`` with these parameters compares an image with its prompt."""
    if scale not in SCALES:
        raise ValueError(f"pickscore: scale: got {scale!r}, expected one of {', '.join(SCALES)}")
    towers = load_towers(
        weights, "pickscore", tokenizer=tokenizer, dtype=dtype, allow_pickle=allow_pickle, device=device
    )
    return Match("pickscore", towers, lambda cosine: SCALES[scale](cosine, towers.logit_scale))
