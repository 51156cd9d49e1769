"""Group-relative reinforcement learning for models that see, draw, film, hear and speak."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmgrpo.api import Result, train
    from mmgrpo.rewards import from_trl

__all__ = ["Result", "from_trl", "train"]

_PUBLIC = {"train": "mmgrpo.api", "Result": "mmgrpo.api", "from_trl": "mmgrpo.rewards"}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are asked for, since they load torch."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mmgrpo' has no attribute '{name}'")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
