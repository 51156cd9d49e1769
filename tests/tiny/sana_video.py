"""A tiny model: SANA-Video, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import wan_tiny
from tests.tiny import parts


def tiny(folder: str | Path = "", seed: int = 0, version: str = "480p") -> Path:
    """Write a complete ``SanaVideoPipeline`` folder (by default a new temporary one) and return it.

    2 layers of width 24, latents of 4 channels. ``version`` is 480p, with Wan's VAE, of which a latent position is 8 x
    8 pixels of 1 frame at first and then of 4, and patches of 2 x 2 positions; or 720p, with that of LTX-2, of which a
    position is here 2 x 2 pixels of 1 frame and then of 2, and patches of one.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import DPMSolverMultistepScheduler, SanaVideoPipeline, SanaVideoTransformer3DModel

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-sana-video-"))
    network: Any = SanaVideoTransformer3DModel  # diffusers' annotations are narrower than its own defaults
    large = version == "720p"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = SanaVideoPipeline(
            tokenizer=parts.gemma_tokenizer(),
            text_encoder=parts.gemma(),
            vae=ltx2_vae() if large else wan_tiny.vae(residual=False),
            transformer=network(
                in_channels=4,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=12,
                num_layers=2,
                num_cross_attention_heads=2,
                cross_attention_head_dim=12,
                cross_attention_dim=24,
                caption_channels=32,
                mlp_ratio=3.0,
                sample_size=22 if large else 30,
                patch_size=(1, 1, 1) if large else (1, 2, 2),
                rope_max_seq_len=128,
            ),
            scheduler=DPMSolverMultistepScheduler(
                prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0
            ),
        )
    pipeline.save_pretrained(folder)
    return folder


def ltx2_vae() -> Any:
    """An autoencoder of LTX-2 with statistics of its latents."""
    from diffusers import AutoencoderKLLTX2Video

    autoencoder: Any = AutoencoderKLLTX2Video  # diffusers' annotations allow four blocks only
    made = autoencoder(
        latent_channels=4,
        block_out_channels=(8,),
        down_block_types=("LTX2VideoDownBlock3D",),
        decoder_block_out_channels=(8,),
        layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        downsample_type=("spatiotemporal",),
        upsample_type=("spatiotemporal",),
        upsample_residual=(False,),
        upsample_factor=(1,),
        patch_size=1,
        spatial_compression_ratio=2,
        temporal_compression_ratio=2,
    )
    made.latents_mean.normal_(std=0.1)
    made.latents_std.uniform_(0.5, 1.5)
    return made
