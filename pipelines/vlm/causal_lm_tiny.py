"""Random language models over a few words; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.pretrained import save_network

TINY_WORDS = "how many is are the a yes no red blue <think> </think> <answer> </answer> 0 1 2 3"


def tiny(folder: str | Path) -> str:
    """Write a random model over ``TINY_WORDS`` and return its folder."""
    network, tokenizer = network_of(TINY_WORDS.split())
    save_network(Path(folder), network, (tokenizer,))
    return str(folder)


def network_of(words: Sequence[str], width: int = 32, layers: int = 2, seed: int = 0) -> tuple[Any, Any]:
    """A random Qwen2 of a few thousand parameters over a vocabulary of words, and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<end>", *words])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
    config = Qwen2Config(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Qwen2ForCausalLM(config)
    return network, tokenizer
