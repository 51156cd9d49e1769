"""Random Stable Diffusion 3 checkpoints of a few hundred kilobytes, of the real classes; nothing is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines import require, tiny_text
from pipelines.visual import tiny_parts
from pipelines.visual.words import WordEncoder

WORDS = ("a", "red", "green", "blue", "circle", "square", "and", "left", "right", "of", ".")
"""Vocabulary of ``tiny_words``."""


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``StableDiffusion3Pipeline`` folder (by default a new temporary one) and return it.

    The architecture of SD 3.5 medium (normalized queries and keys, dual attention in the first layer) with 2 layers of
    width 32; images of up to 64 x 64 pixels in steps of 4, latents of 16 channels at half the resolution.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import StableDiffusion3Pipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-sd3-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        t5, vae = tiny_text.t5(), tiny_parts.vae(16, scaling_factor=1.5305, shift_factor=0.0609)
        pipeline = StableDiffusion3Pipeline(
            transformer=_transformer(in_channels=16, sample_size=8, patch_size=2, qk_norm="rms_norm", dual=(0,)),
            scheduler=_scheduler(),
            vae=vae,
            text_encoder=tiny_parts.clip(old=True),
            tokenizer=tiny_parts.clip_tokenizer(),
            text_encoder_2=tiny_parts.clip(old=True),
            tokenizer_2=tiny_parts.clip_tokenizer("!"),
            text_encoder_3=t5,
            tokenizer_3=tiny_text.t5_tokenizer(),
        )
    pipeline.save_pretrained(folder)
    return folder


def tiny_words(folder: str | Path = "", vocabulary: Sequence[str] = WORDS, seed: int = 0) -> Path:
    """Write a folder without VAE (``transformer/``, ``words/``, ``scheduler/``) for up to 64 x 64 pixels; return it."""
    require("visual", "diffusers")
    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-words-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = _transformer(in_channels=3, sample_size=16, patch_size=4, qk_norm=None, dual=())
        words = WordEncoder(vocabulary, length=8, width=32, pooled_width=32)
    network.save_pretrained(folder / "transformer")
    words.save(folder / "words")
    _scheduler().save_pretrained(folder / "scheduler")
    return folder


def _transformer(in_channels: int, sample_size: int, patch_size: int, qk_norm: str | None, dual: tuple) -> Any:
    from diffusers import SD3Transformer2DModel

    return SD3Transformer2DModel(
        sample_size=sample_size,
        patch_size=patch_size,
        in_channels=in_channels,
        out_channels=in_channels,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=32,
        pos_embed_max_size=16,
        dual_attention_layers=dual,
        qk_norm=qk_norm,
    )


def _scheduler() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=3.0)
