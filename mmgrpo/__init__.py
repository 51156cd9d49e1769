"""Group-relative reinforcement learning for image, video, vision-language and speech models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmgrpo.api import Result, train
    from mmgrpo.config.registry import block
    from mmgrpo.rewards import from_trl
    from mmgrpo.rounds.callback import Callback

__all__ = ["Callback", "Result", "block", "from_trl", "train"]

_PUBLIC = {
    "train": "mmgrpo.api",
    "Result": "mmgrpo.api",
    "block": "mmgrpo.config.registry",
    "from_trl": "mmgrpo.rewards",
    "Callback": "mmgrpo.rounds.callback",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are asked for, since they load torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mmgrpo' has no attribute '{name}'")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
