"""Image generators: models whose decisions are denoising transitions, or (flows only) sampled noise levels.

>>> from pipelines import visual
>>> policy = visual.policy("embedded:visual/scenes/base", lora_rank=4, plan="one_step_branch(first=0.7)", steps=6)
>>> policy.kind
'gaussian'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.factory import make_policy
from pipelines.visual.families import FAMILIES

if TYPE_CHECKING:
    from mmgrpo.types import Policy

__all__ = ["FAMILIES", "policy"]


def policy(path: str, *, family: str = "", seed: int = 0, preset: str = "", **options: Any) -> Policy:
    """An image generator as a policy.

    ``path`` is a folder or a hub id; its configuration determines the family, unless ``family`` names one. ``options``
    are those of the recipe sections ``model`` and ``sampling`` (height, guidance, lora_rank, steps, plan, kernel, ...).
    ``seed`` initializes new adapters. With ``preset``, options that are not given are those of the preset.
    """
    return make_policy(FAMILIES, path, family, seed, options, preset)
