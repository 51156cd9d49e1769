"""A tiny model: SkyReels from an image, with random weights; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import hunyuan_video


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``HunyuanSkyreelsImageToVideoPipeline`` folder; see ``hunyuan_video.tiny``."""
    return hunyuan_video.tiny(folder, seed, image_input=True)
