"""A tiny model: FLUX.2 dev, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual import qwen_tiny_parts
from tests.tiny import flux2_klein, parts
from tests.tiny.qwen_image_edit import name_part

CONTROL = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")

TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}[SYSTEM_PROMPT]{{ message['content'][0]['text'] }}[/SYSTEM_PROMPT]
{%- else %}[INST]{% for part in message['content'] %}{{ part['text'] }}{% endfor %}[/INST]{% endif %}
{%- endfor %}"""
"""The form of Mistral 3's own, for words."""


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``Flux2Pipeline`` folder (by default a new temporary one) and return it.

    The network is that of the tiny FLUX.2 klein with embedded guidance; Mistral 3 has 30 layers, the last that the
    pipeline reads, and each word of the pipeline's system message is a token.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Pipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-flux2-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        words = tokenizer()
        Flux2Pipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True),
            vae=parts.normalized_vae(4),
            text_encoder=mistral3(words),
            tokenizer=words,
            transformer=flux2_klein.transformer(guided=True),
        ).save_pretrained(folder)
    name_part(folder, "tokenizer", "PixtralProcessor")
    return folder


def tokenizer() -> Any:
    """A tokenizer over bytes, padded at its left, to which every word of the system message is one token."""
    from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=qwen_tiny_parts.tokenizer(SYSTEM_MESSAGE).backend_tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        additional_special_tokens=list(CONTROL),
        padding_side="left",
        chat_template=TEMPLATE,
    )


def mistral3(words: Any) -> Any:
    """A Mistral 3 of width 16 with the smallest tower of images."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    return Mistral3ForConditionalGeneration(
        Mistral3Config(
            text_config={
                "model_type": "mistral",
                "vocab_size": len(words),
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 30,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                "head_dim": 8,
            },
            vision_config={
                "model_type": "pixtral",
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "head_dim": 8,
                "image_size": 16,
                "patch_size": 8,
            },
            image_token_index=words.convert_tokens_to_ids("[IMG]"),
        )
    )
