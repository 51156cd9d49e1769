"""Vision-language models: images, video and text in, text out.

>>> from pipelines import vlm
>>> policy = vlm.policy("embedded:vlm/questions/base", max_tokens=24)
>>> policy.kind
'tokens'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.factory import make_policy
from pipelines.vlm.families import FAMILIES

if TYPE_CHECKING:
    from mmgrpo.types import Policy

__all__ = ["FAMILIES", "policy"]


def policy(path: str, *, family: str = "", seed: int = 0, preset: str = "", **options: Any) -> Policy:
    """A vision-language model as a policy over tokens; ``pipelines.text.policy`` is that of a language model.

    ``path`` is a folder or a hub id; its configuration determines the family, unless ``family`` names one. ``options``
    are those of the recipe sections ``model`` and ``sampling`` (lora_rank, max_pixels, max_tokens, temperature, ...).
    ``seed`` initializes new adapters. With ``preset``, options that are not given are those of the preset.
    """
    return make_policy(FAMILIES, path, family, seed, options, preset)
