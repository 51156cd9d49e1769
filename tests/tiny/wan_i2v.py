"""A tiny model: Wan from an image, with random weights; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from pipelines.visual import wan_tiny


def tiny(folder: str | Path = "", seed: int = 0, version: str = "2.1") -> Path:
    """Write a complete ``WanImageToVideoPipeline`` folder; see ``wan_tiny.tiny``."""
    return wan_tiny.tiny(folder, seed, version, image_input=True)
