"""A tiny model: HunyuanVideo 1.5, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts
from pipelines.vlm import qwen_vl_tiny


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``HunyuanVideo15Pipeline`` folder (by default a new temporary one) and return it.

    2 blocks of width 32; latents of 4 channels at a quarter of the resolution and of the frames.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import (
        ClassifierFreeGuidance,
        FlowMatchEulerDiscreteScheduler,
        HunyuanVideo15Pipeline,
        HunyuanVideo15Transformer3DModel,
    )
    from transformers import ByT5Tokenizer, Qwen2_5_VLTextModel, T5Config, T5EncoderModel

    from pipelines.visual.hunyuan_video15 import chat

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-hunyuan-video-15-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = qwen_tiny_parts.tokenizer(chat(qwen_tiny_parts.tokenizer(), ""))
        shape = {"width": 32, "layers": 3, "heads": 2, "vision_width": 32, "vision_layers": 1, "patch": 4}
        texts = T5Config(vocab_size=384, d_model=24, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
        pipeline = HunyuanVideo15Pipeline(
            text_encoder=Qwen2_5_VLTextModel(qwen_vl_tiny.configuration(words.get_vocab(), **shape).text_config),
            tokenizer=words,
            transformer=HunyuanVideo15Transformer3DModel(
                in_channels=9,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=16,
                num_layers=2,
                num_refiner_layers=1,
                text_embed_dim=32,
                text_embed_2_dim=24,
                image_embed_dim=8,
                rope_axes_dim=(4, 6, 6),
                target_size=32,
                task_type="t2v",
            ),
            vae=vae(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=5.0),
            text_encoder_2=T5EncoderModel(texts),
            tokenizer_2=ByT5Tokenizer(),
            guider=ClassifierFreeGuidance(guidance_scale=6.0),
        )
    pipeline.save_pretrained(folder)
    return folder


def vae() -> Any:
    """An autoencoder of clips."""
    from diffusers import AutoencoderKLHunyuanVideo15

    autoencoder: Any = AutoencoderKLHunyuanVideo15  # diffusers' annotations allow one level only
    return autoencoder(
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=4,
        downsample_match_channel=False,
        upsample_match_channel=False,
    )
