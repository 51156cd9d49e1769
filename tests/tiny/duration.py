"""A tiny model: a network of durations, with random weights; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.speech.duration import Shape, create, write


def tiny(folder: str | Path, seed: int = 0, **sizes: Any) -> str:
    """Write a small random network: 24 classes of 40 frames (0.43 s), width 32; ``sizes`` are fields of ``Shape``."""
    small = {"classes": 24, "frames_a_class": 40, "width": 32, "layers": 1, "heads": 2, "inner": 64}
    shape = Shape(**{**small, **sizes})
    write(Path(folder), create(shape, seed), shape)
    return str(folder)
