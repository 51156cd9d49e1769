"""HPSv2 and HPSv2.1 (arXiv:2306.09341, tgxs002/HPSv2): human preference, by an open_clip ViT-H-14 trained on votes.

The score is the plain cosine, typically 0.20 to 0.35 (tables show 100 times as much). The longest side of an image is
resized to 224 pixels and the rest is black. The published code resizes a tensor by torchvision, which smooths since its
version 0.17 and did not before; ``antialias=False`` is the older behaviour.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.clip.load import load_towers
from reward_models.clip.match import Match, score
from reward_models.pixels import padding_to

FILES = {"2.0": "HPS_v2_compressed.pt", "2.1": "HPS_v2.1_compressed.pt"}

TOKENIZER = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


@reward(
    "Image",
    range=(-1, 1),
    scale="cosine, typically 0.20 to 0.35",
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    weights={"xswu/HPSv2": ("HPS_v2.1_compressed.pt",), "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": ("tokenizer.json",)},
    licence="Apache-2.0; tokenizer MIT",
    source="HPSv2, arXiv:2306.09341",
    gradient="reward_models.clip.hpsv2:match",
)
def hpsv2(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str = "xswu/HPSv2",
    version: str = "2.1",
    antialias: bool = True,
    tokenizer: str = TOKENIZER,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> list[float]:
    """The cosine of image and prompt; NaN for an image that is not finite.

    ``weights`` is a folder or hub id with the published file of the ``version`` (or the same converted to safetensors),
    or that file.
    """
    return score(match(weights, version, antialias, tokenizer, dtype, allow_pickle, device), prompts, outputs)


def match(
    weights: str = "xswu/HPSv2",
    version: str = "2.1",
    antialias: bool = True,
    tokenizer: str = TOKENIZER,
    dtype: str = "float32",
    allow_pickle: bool = False,
    device: str = "cpu",
) -> Match:
    """How ``hpsv2`` with these parameters compares an image with its prompt."""
    if version not in FILES:
        raise ValueError(f"hpsv2: version: got {version!r}, expected one of {', '.join(map(repr, FILES))}")
    towers = load_towers(
        weights,
        "hpsv2",
        tokenizer=tokenizer,
        file=FILES[version],
        dtype=dtype,
        allow_pickle=allow_pickle,
        device=device,
    )

    return Match("hpsv2", towers, lambda cosine: cosine, padding_to(towers.size, antialias))
