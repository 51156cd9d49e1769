"""A tiny model: Stable Diffusion XL, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import tiny_parts
from tests.tiny import parts


def tiny(folder: str | Path = "", seed: int = 0, prediction: str = "epsilon") -> Path:
    """Write a complete ``StableDiffusionXLPipeline`` folder (by default a new temporary one) and return it.

    The scheduler is that of SDXL base (Euler), with ``prediction`` epsilon or v_prediction; one block with and one
    without attention, of widths 8 and 16; latents of 4 channels at half the resolution of the images.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline

    levels: Any = EulerDiscreteScheduler.from_config(parts.stable_diffusion_levels(prediction))
    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-sdxl-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = StableDiffusionXLPipeline(
            scheduler=levels,
            unet=parts.unet(cross_attention_dim=32, pooled_width=16),
            vae=tiny_parts.vae(4, scaling_factor=0.13025, shift_factor=None),
            text_encoder=tiny_parts.clip(projection=False, old=True),
            tokenizer=tiny_parts.clip_tokenizer(),
            text_encoder_2=tiny_parts.clip(old=True),
            tokenizer_2=tiny_parts.clip_tokenizer("!"),
            add_watermarker=False,
        )
    pipeline.save_pretrained(folder)
    return folder
