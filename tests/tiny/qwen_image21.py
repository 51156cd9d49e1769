"""A tiny model: Qwen-Image-2.1, with random weights; nothing is downloaded."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts
from pipelines.visual.qwen_image import edit_processor
from pipelines.vlm import qwen_vl_tiny
from tests.tiny import image_text

SYSTEM = "Comprehend and analyze the provided prompt."
TEMPLATE = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{{}}<|im_end|>\n<|im_start|>assistant\n"


def tiny(folder: str | Path = "", seed: int = 0, sigmas: list[float] | None = None) -> Path:
    """Write a complete ``QwenImage21Pipeline`` folder (by default a new temporary one) and return it: 2 blocks of width
    32, latents of 4 channels with a position per 16 x 16 pixels, images with opacity; ``sigmas`` are the levels that
    its index states."""
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLQwenImage21, QwenImage21Pipeline, QwenImage21Transformer2DModel
    from transformers import Qwen3VLForConditionalGeneration

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-qwen-image-21-"))
    autoencoder: Any = AutoencoderKLQwenImage21  # diffusers' annotations allow one level only
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = qwen_tiny_parts.tokenizer(TEMPLATE)
        encoder = Qwen3VLForConditionalGeneration(image_text.qwen3_vl(words.get_vocab()))
        # A norm of ones would hide whether hidden states are those before it or behind it.
        torch.nn.init.uniform_(encoder.model.language_model.norm.weight, 0.5, 2)
        pipeline = QwenImage21Pipeline(
            scheduler=qwen_tiny_parts.scheduler(),
            vae=autoencoder(
                base_dim=4,
                decoder_base_dim=4,
                z_dim=4,
                dim_mult=[1, 1, 1, 1, 1],
                num_res_blocks=1,
                attn_scales=[],
                temperal_downsample=[False, True, True, True],
                latents_mean=[0.1 * i - 0.2 for i in range(4)],
                latents_std=[1.0 + 0.3 * i for i in range(4)],
            ),
            text_encoder=encoder,
            processor=edit_processor("Qwen3VLProcessor")(
                qwen_vl_tiny.image_processor(16, min_pixels=1024, max_pixels=4096),
                words,
                chat_template=qwen_tiny_parts.CHAT,
            ),
            transformer=QwenImage21Transformer2DModel(
                in_channels=4,
                out_channels=4,
                num_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                context_in_dim=image_text.WIDTH,
                axes_dims_rope=(4, 6, 6),
            ),
            sample_sigmas=sigmas,
        )
    pipeline.save_pretrained(folder)
    # As in published checkpoints, which name transformers' own class.
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index["processor"] = ["transformers", "Qwen3VLProcessor"]
    (folder / "model_index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return folder
