"""A tiny model: FLUX.2 klein, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from tests.tiny import parts


def tiny(folder: str | Path = "", seed: int = 0, distilled: bool = False) -> Path:
    """Write a complete ``Flux2KleinPipeline`` folder (by default a new temporary one) and return it.

    One block of each kind with width 32, and a Qwen 3 of 27 layers, the last that the pipeline reads; the VAE halves
    height and width, and a token has 2 x 2 positions of its 4 channels.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-flux2-klein-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = Flux2KleinPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=parts.normalized_vae(4),
            text_encoder=parts.qwen3(layers=27),
            tokenizer=parts.qwen_tokenizer(),
            transformer=transformer(),
            is_distilled=distilled,
        )
    pipeline.save_pretrained(folder)
    return folder


def transformer(guided: bool = False) -> Any:
    """FLUX.2's transformer, one block of each kind with width 32; ``guided``: the scale of guidance is an input."""
    from diffusers import Flux2Transformer2DModel

    return Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * 16,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guided,
    )
