"""A small Qwen2-Audio of the real architecture, over letters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END, START, STOP, "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>")


def letter_tokenizer(special: Sequence[str]) -> Any:
    """A tokenizer over bytes and special tokens; ``END`` pads and ``STOP`` ends a turn."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], eos_token=STOP, pad_token=END)
    tokenizer.add_tokens(list(special), special_tokens=True)
    return tokenizer


def amplify(network: nn.Module) -> None:
    """Multiply the matrices: with the default initialization the output hardly depends on the recording, so no
    test could detect it."""
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.data *= 16 if parameter.dim() == 4 else 4  # two-dimensional convolutions have few inputs


def tiny(folder: str | Path, seed: int = 0, dropout: float = 0.0) -> str:
    """Write a random model of about 150,000 parameters and return its folder; the chat template is the processor's.

    ``dropout`` is the value of every dropout rate in its config.
    """
    from transformers import (
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        WhisperFeatureExtractor,
    )

    tokenizer = letter_tokenizer(SPECIAL)
    ids = tokenizer.get_vocab()
    config = Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": 128,
            "d_model": 32,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "dropout": dropout,
            "attention_dropout": dropout,
            "activation_dropout": dropout,
            "encoder_layerdrop": dropout,
        },
        text_config={
            "model_type": "qwen2",
            "vocab_size": len(tokenizer) + 2,  # as in real checkpoints, some rows of the embedding have no token
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "max_position_embeddings": 8192,
            "attention_dropout": dropout,
            "tie_word_embeddings": False,
        },
        audio_token_index=ids["<|AUDIO|>"],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Qwen2AudioForConditionalGeneration(config)
        amplify(network)
    network.generation_config.eos_token_id = [ids[STOP], ids[END]]
    network.generation_config.pad_token_id = ids[END]
    network.save_pretrained(folder)
    Qwen2AudioProcessor(WhisperFeatureExtractor(feature_size=128), tokenizer).save_pretrained(folder)
    return str(folder)
