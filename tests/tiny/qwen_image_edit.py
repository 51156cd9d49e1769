"""A tiny model: Qwen-Image-Edit, with random weights; nothing is downloaded."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts
from pipelines.visual.qwen_image import edit_processor
from tests.tiny.parts import qwen_images


def tiny(folder: str | Path = "", seed: int = 0, plus: bool = False) -> Path:
    """Write a complete ``QwenImageEditPipeline`` (``QwenImageEditPlusPipeline``) folder, by default a new temporary
    one, and return it. Its parts are those of ``qwen_image.tiny``; Plus is as of 2511."""
    require("visual", "diffusers", "transformers")
    from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-qwen-image-edit-"))
    kind: Any = QwenImageEditPlusPipeline if plus else QwenImageEditPipeline
    template = kind(None, None, None, None, None, None).prompt_template_encode
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = qwen_tiny_parts.tokenizer(template)
        parts: dict[str, Any] = {
            "scheduler": qwen_tiny_parts.scheduler(),
            "vae": qwen_tiny_parts.vae(),
            "text_encoder": qwen_tiny_parts.vision_language(words),
            "tokenizer": words,
            "transformer": qwen_tiny_parts.transformer(zero_cond_t=plus),
        }
    processor = edit_processor()(qwen_images(), words)
    kind(**parts, processor=processor).save_pretrained(folder)
    name_part(folder, "processor", "Qwen2VLProcessor")
    return folder


def name_part(folder: Path, part: str, kind: str) -> None:
    """Write transformers' own class of a part into the index of a pipeline, as in published checkpoints."""
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    index[part] = ["transformers", kind]
    (folder / "model_index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
