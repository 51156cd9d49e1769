"""A random Janus of about 0.4 M parameters, most of them in its VQ model: images of 8 x 8 pixels of 16 codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

TEXT_WORDS = ("a", "red", "green", "blue", "square", "circle", "left", "of", ".", *map(str, range(10)))


def tiny(folder: str | Path, seed: int = 0, places: int = 64) -> str:
    """Write a random checkpoint and return its folder; the language model reads at most ``places`` tokens."""
    from transformers import JanusConfig, JanusForConditionalGeneration

    from scripts.pretrain.tokens import word_tokenizer

    tokenizer = word_tokenizer(TEXT_WORDS)
    text = {
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "max_position_embeddings": places,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 8,
        "patch_size": 2,
        "projection_dim": 32,
        "num_image_tokens": 16,
        "mlp_ratio": 1.0,
    }
    codes = {
        "embed_dim": 4,
        "num_embeddings": 24,
        "latent_channels": 32,
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "projection_dim": 32,
        "image_token_embed_dim": 32,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network: Any = JanusForConditionalGeneration(
            JanusConfig(text_config=text, vision_config=vision, vq_config=codes, image_token_id=3)
        )
    network.generation_config.pad_token_id, network.generation_config.bos_token_id = 0, 1
    network.generation_config.generation_kwargs = {"boi_token_id": 4}
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
