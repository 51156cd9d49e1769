"""Published checkpoints that people train: the records of checkpoints.yaml, which says what the fields are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mmgrpo.config.records import records

__all__ = ["Checkpoint", "checkpoints"]


@dataclass(frozen=True)
class Checkpoint:
    """A model on the hub."""

    family: str
    network: str
    parameters: int
    config: Mapping[str, Any] = field(default_factory=dict)
    vae: Mapping[str, int] = field(default_factory=dict)
    prompt: int = 0


@cache
def checkpoints() -> Mapping[str, Checkpoint]:
    """All records by the id on the hub."""
    return {name: Checkpoint(**record) for name, record in records(Path(__file__).with_suffix(".yaml")).items()}
