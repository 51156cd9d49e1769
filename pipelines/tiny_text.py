"""A small random T5 encoder and its tokenizer over printable characters, of tiny checkpoints."""

from __future__ import annotations

from typing import Any


def t5() -> Any:
    """A T5 encoder of width 32."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4))


def t5_tokenizer() -> Any:
    """A tokenizer over printable characters."""
    from transformers import T5Tokenizer

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    letters = [(letter, -3.0) for letter in ("\u2581", *map(chr, range(33, 127)))]
    return T5Tokenizer(vocab=special + letters, extra_ids=0)
