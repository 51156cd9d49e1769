"""A tiny model: Z-Image, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts, tiny_parts
from tests.tiny.parts import qwen_language


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``ZImagePipeline`` folder (by default a new temporary one) and return it.

    The architecture of Z-Image with one block of each kind and width 32; latents of 4 channels at half the resolution
    of the images.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-z-image-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = qwen_tiny_parts.tokenizer("user\nassistant")
        pipeline = ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=tiny_parts.vae(4, scaling_factor=0.3611, shift_factor=0.1159),
            text_encoder=qwen_language(words),
            tokenizer=words,
            transformer=ZImageTransformer2DModel(
                in_channels=4,
                dim=32,
                n_layers=1,
                n_refiner_layers=1,
                n_heads=2,
                n_kv_heads=2,
                cap_feat_dim=32,
                axes_dims=[4, 6, 6],
                axes_lens=[1024, 512, 512],
            ),
        )
    pipeline.save_pretrained(folder)
    return folder
