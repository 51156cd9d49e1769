"""Rewards of images by two-tower models (CLIP, SigLIP), one a file.

``towers`` is such a model, ``load`` makes it of published files (``checkpoint``) or by the package open_clip
(``packaged``); ``match`` is what the rewards by cosine share, ``head`` the file format of heads on image embeddings,
and ``embeddings`` the image features for rewards of sets.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

MATCH = Manifest(("Image",), 0, 2.5, reads=("text",), packages=("transformers",), extra="visual")
VIT_H = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"

MANIFESTS = {
    "clip_score": replace(
        MATCH,
        low=-100,
        high=100,
        scale="2.5 max(cosine, 0) of 0 to 2.5; cosine or 100 cosine with scale=...",
        weights={"openai/clip-vit-base-patch32": ()},
        licence="MIT",
        source="CLIPScore, arXiv:2104.08718",
    ),
    "hpsv2": replace(
        MATCH,
        low=-1,
        high=1,
        scale="cosine, typically 0.20 to 0.35",
        weights={"xswu/HPSv2": ("HPS_v2.1_compressed.pt",), VIT_H: ("tokenizer.json",)},
        licence="Apache-2.0; tokenizer MIT",
        source="HPSv2, arXiv:2306.09341",
    ),
    "pickscore": replace(
        MATCH,
        low=-inf,
        high=inf,
        scale="logit, typically 15 to 25",
        weights={"yuvalkirstain/PickScore_v1": ("config.json", "model.safetensors"), VIT_H: ("tokenizer.json",)},
        licence="MIT",
        source="Pick-a-Pic, arXiv:2305.01569",
    ),
    "mps": replace(
        MATCH,
        low=-inf,
        high=inf,
        scale="logit, typically 5 to 20",
        weights={VIT_H: ("tokenizer.json",)},
        licence="MIT",
        source="MPS, arXiv:2405.14705",
    ),
    "aesthetic": replace(
        MATCH,
        low=-inf,
        high=inf,
        scale="predicted rating, about 1 to 10",
        reads=(),
        weights={"openai/clip-vit-large-patch14": ()},
        licence="MIT; heads MIT (version 1) and Apache-2.0 (version 2)",
        source="LAION-Aesthetics",
    ),
    "clip_iqa": replace(
        MATCH,
        high=1,
        scale="probability of the positive description",
        reads=(),
        weights={"openai/clip-vit-base-patch16": ()},
        licence="MIT",
        source="CLIP-IQA, arXiv:2207.12396",
    ),
    "artifact": replace(
        MATCH, high=1, scale="probability of no artifact", reads=(), source="arXiv:2601.03468; arXiv:2509.10260"
    ),
    "d2_align": replace(MATCH, low=-inf, high=inf, scale="that of the reward", source="D2-Align, arXiv:2512.24146"),
}

REWARDS: dict[str, RewardEntry] = {
    name: RewardEntry(f"reward_models.clip.{name}:{name}", manifest=manifest) for name, manifest in MANIFESTS.items()
}
"""Joins the table of all rewards."""
