"""A tiny model: Sana, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from pipelines import require
from tests.tiny import parts


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``SanaPipeline`` folder (by default a new temporary one) and return it.

    The architecture of Sana 1.5 (normalized queries and keys) with 2 layers of width 32, images of 16 x 16 pixels by
    default, and latents of 4 channels at a quarter of the resolution.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-sana-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = SanaPipeline(
            tokenizer=parts.gemma_tokenizer(),
            text_encoder=parts.gemma(),
            vae=parts.compressing_vae(4, scaling_factor=0.41407),
            transformer=SanaTransformer2DModel(
                in_channels=4,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=16,
                num_layers=2,
                num_cross_attention_heads=2,
                cross_attention_head_dim=16,
                cross_attention_dim=32,
                caption_channels=32,
                sample_size=4,
                timestep_scale=0.5,
                qk_norm="rms_norm_across_heads",
            ),
            scheduler=DPMSolverMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
            ),
        )
    pipeline.save_pretrained(folder)
    return folder
