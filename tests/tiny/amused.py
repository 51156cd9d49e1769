"""A tiny model: aMUSEd, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import tiny_parts

CODES = 32


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``AmusedPipeline`` folder (by default a new temporary one) and return it.

    A transformer of width 32 and two layers, 8 x 8 codes of 32, a quarter of the side of images of 32 pixels.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AmusedPipeline, AmusedScheduler, UVit2DModel, VQModel

    model: Any = VQModel  # diffusers' annotations allow one level only
    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-amused-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformer = UVit2DModel(
            hidden_size=32,
            cond_embed_dim=16,
            micro_cond_encode_dim=4,
            micro_cond_embed_dim=20,
            encoder_hidden_size=16,
            vocab_size=CODES + 2,
            codebook_size=CODES,
            in_channels=32,
            block_out_channels=32,
            num_res_blocks=1,
            block_num_heads=2,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            sample_size=8,
        )
        with torch.no_grad():  # as drawn by the class, logits hardly depend on the prompt
            for name, parameter in transformer.named_parameters():
                if parameter.ndim > 1 and "embed" not in name:
                    parameter.mul_(3)
        vqvae = model(
            block_out_channels=(32, 32, 32),
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            latent_channels=8,
            layers_per_block=1,
            norm_num_groups=8,
            num_vq_embeddings=CODES,
            vq_embed_dim=8,
            sample_size=32,
            mid_block_add_attention=False,
            lookup_from_codebook=True,
        )
        pipeline = AmusedPipeline(
            vqvae=vqvae,
            tokenizer=tiny_parts.clip_tokenizer(),
            text_encoder=tiny_parts.clip(),
            transformer=transformer,
            scheduler=AmusedScheduler(mask_token_id=CODES + 1),
        )
    pipeline.save_pretrained(folder)
    return folder
