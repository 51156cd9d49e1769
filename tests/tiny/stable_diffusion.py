"""A tiny model: Stable Diffusion, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import tiny_parts
from tests.tiny import parts


def tiny(folder: str | Path = "", seed: int = 0, prediction: str = "epsilon") -> Path:
    """Write a complete ``StableDiffusionPipeline`` folder (by default a new temporary one) and return it.

    The scheduler is that of SD 1.4 (PNDM), or of 2.1 (DDIM) for ``prediction`` v_prediction; one block with and one
    without attention, of widths 8 and 16; latents of 4 channels at half the resolution of the images.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import DDIMScheduler, PNDMScheduler, StableDiffusionPipeline

    later = prediction == "v_prediction"
    kind: Any = DDIMScheduler if later else PNDMScheduler
    whole: Any = StableDiffusionPipeline  # its annotations do not allow for None
    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-stable-diffusion-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = whole(
            scheduler=kind.from_config(parts.stable_diffusion_levels(prediction)),
            unet=parts.unet(cross_attention_dim=16, later=later),
            vae=tiny_parts.vae(4, scaling_factor=0.18215, shift_factor=None),
            text_encoder=tiny_parts.clip(projection=False),
            tokenizer=tiny_parts.clip_tokenizer("!" if later else "<|endoftext|>"),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    pipeline.save_pretrained(folder)
    return folder
