"""A tiny model: LTX-Video from an image, with random weights; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import ltx_video


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``LTXImageToVideoPipeline`` folder; see ``ltx_video.tiny``."""
    return ltx_video.tiny(folder, seed, image_input=True)
