"""A small language model over letters, digits and 32 speech tokens."""

from __future__ import annotations

from pathlib import Path

import torch

CODES = 32
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'"
PAD, END, START, TASK = "<pad>", "<|eos1|>", "<|sos|>", "<|task_id|>"
TEMPLATE = (
    "{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{{- '<|sos|>' + message['content'] + '<|task_id|>' }}{%- endif %}{%- endfor %}"
)
"""The prompt of CosyVoice 2's converted language model."""


def tiny(folder: str | Path, seed: int = 0, codes: int = CODES, width: int = 32) -> str:
    """Write a random Qwen2 of about 20,000 parameters with the marks of CosyVoice 2 and return its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = [PAD, " ", *LETTERS, "<unknown>"]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=PAD, eos_token=END)
    tokenizer.add_tokens([*(f"<|s_{code}|>" for code in range(codes)), END, START, TASK])
    tokenizer.chat_template = TEMPLATE
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 3,  # as in real checkpoints, some rows of the embedding have no token
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Qwen2ForCausalLM(config)
    network.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(END)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
