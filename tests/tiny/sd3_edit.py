"""A tiny model: small models of SD3's architecture that edit an image, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines.visual import sd3_tiny

WORDS = (*sd3_tiny.WORDS, *map(str, range(10)))


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """``sd3_tiny.tiny_words`` with three further input channels, for images of up to 64 x 64 pixels."""
    from diffusers import SD3Transformer2DModel

    folder = sd3_tiny.tiny_words(folder or tempfile.mkdtemp(prefix="tiny-sd3-edit-"), WORDS, seed)
    config: Any = SD3Transformer2DModel.load_config(str(folder / "transformer"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network: Any = SD3Transformer2DModel.from_config({**config, "in_channels": 6})
    network.save_pretrained(folder / "transformer")
    return folder
