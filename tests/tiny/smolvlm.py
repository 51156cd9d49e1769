"""Small SmolVLM models of the real architecture, over a vocabulary of words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.vlm.qwen_vl_tiny import TINY_WORDS, word_tokenizer

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<end_of_utterance>",
    "<fake_token_around_image>",
    "<image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)

CLIP_WORDS = "You provided following series from H MM SS video frames Frame four six eight ten twelve 00 01 02 03 04 05"

TEMPLATE = """\
<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}:
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}
{%- endfor %}<end_of_utterance>
{% endfor %}
{%- if add_generation_prompt %}Assistant:{% endif %}"""


def tiny(folder: str | Path, kind: str = "smolvlm") -> str:
    """Write a random model of about 60,000 parameters (a tile of 16 x 16 pixels has 4 tokens) and return its folder.

    ``kind`` is smolvlm or idefics3.
    """
    return write_model(folder, TINY_WORDS, width=32, layers=2, heads=2, vision_width=32, vision_layers=2, kind=kind)


def write_model(
    folder: str | Path,
    words: Sequence[str],
    *,
    width: int,
    layers: int,
    heads: int,
    vision_width: int,
    vision_layers: int,
    patch: int = 4,
    side: int = 16,
    tiles: int = 2,
    kind: str = "smolvlm",
    seed: int = 0,
) -> str:
    """Write a model with random weights as an ordinary folder; images are split into at most ``tiles`` x ``tiles``
    tiles of ``side`` pixels."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    vocabulary = (*words, *CLIP_WORDS.split(), "User", "Assistant", "System")
    tokenizer = word_tokenizer(vocabulary, SPECIAL, TEMPLATE, end="<end_of_utterance>", pad="<|im_end|>")
    ids = tokenizer.get_vocab()
    config = AutoConfig.for_model(
        kind,
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|im_start|>"],
            "eos_token_id": ids["<end_of_utterance>"],
            "pad_token_id": ids["<|im_end|>"],
        },
        vision_config={
            "hidden_size": vision_width,
            "intermediate_size": 2 * vision_width,
            "num_hidden_layers": vision_layers,
            "num_attention_heads": heads,
            "image_size": side,
            "patch_size": patch,
        },
        image_token_id=ids["<image>"],
        scale_factor=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network: Any = AutoModelForImageTextToText.from_config(config)
    network.generation_config.eos_token_id = [ids["<end_of_utterance>"], ids["<|im_end|>"]]
    network.generation_config.pad_token_id = ids["<|im_end|>"]
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor(side, tiles).save_pretrained(folder)
    return str(folder)


def image_processor(side: int, tiles: int) -> Any:
    """SmolVLM's image processor for small tiles."""
    from transformers.models.smolvlm import image_processing_pil_smolvlm as processing

    processor: Any = processing.SmolVLMImageProcessorPil  # saves video_sampling too, which it does not annotate
    return processor(
        size={"longest_edge": tiles * side},
        max_image_size={"longest_edge": side},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
        video_sampling={"fps": 1, "max_frames": 64, "video_size": {"longest_edge": side}},
    )
