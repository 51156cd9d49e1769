"""A tiny model: LongCat-Image, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts, tiny_parts
from pipelines.visual.qwen_image import edit_processor
from tests.tiny.parts import qwen_images
from tests.tiny.qwen_image_edit import name_part


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``LongCatImagePipeline`` folder (by default a new temporary one) and return it.

    One block of each kind with width 32; latents of 4 channels at half the resolution of the images.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FlowMatchEulerDiscreteScheduler, LongCatImagePipeline, LongCatImageTransformer2DModel

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-longcat-image-"))
    kind: Any = LongCatImagePipeline
    template = kind(None, None, None, None, None, None)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = qwen_tiny_parts.tokenizer(
            template.prompt_template_encode_prefix + template.prompt_template_encode_suffix,
        )
        kind(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=tiny_parts.vae(4, scaling_factor=0.3611, shift_factor=0.1159),
            text_encoder=qwen_tiny_parts.vision_language(words),
            tokenizer=words,
            text_processor=edit_processor()(qwen_images(), words),
            transformer=LongCatImageTransformer2DModel(
                in_channels=16,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                pooled_projection_dim=16,
                axes_dims_rope=[4, 6, 6],
            ),
        ).save_pretrained(folder)
    name_part(folder, "text_processor", "Qwen2VLProcessor")
    return folder
