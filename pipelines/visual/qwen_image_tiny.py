"""A tiny model: Qwen-Image, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``QwenImagePipeline`` folder (by default a new temporary one) and return it.

    The architecture of Qwen-Image with 2 blocks of width 32; latents of 4 channels at half the resolution of the
    images.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import QwenImagePipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-qwen-image-"))
    nothing: Any = None
    template = QwenImagePipeline(nothing, nothing, nothing, nothing, nothing).prompt_template_encode
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = qwen_tiny_parts.tokenizer(template)
        pipeline = QwenImagePipeline(
            scheduler=qwen_tiny_parts.scheduler(),
            vae=qwen_tiny_parts.vae(),
            text_encoder=qwen_tiny_parts.vision_language(words),
            tokenizer=words,
            transformer=qwen_tiny_parts.transformer(),
        )
    pipeline.save_pretrained(folder)
    return folder
