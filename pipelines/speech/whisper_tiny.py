"""A small Whisper of the real architecture, over letters."""

from __future__ import annotations

import json
from pathlib import Path

import torch

BASE = "<|endoftext|>"
SPECIAL = (
    BASE,
    "<|startoftranscript|>",
    "<|en|>",
    "<|transcribe|>",
    "<|translate|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
STAMPS = tuple(f"<|{step / 50:.2f}|>" for step in range(4))


def tiny(folder: str | Path, seed: int = 0) -> str:
    """Write a random English-only Whisper of about 100,000 parameters and return its folder."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import (
        GenerationConfig,
        WhisperConfig,
        WhisperFeatureExtractor,
        WhisperForConditionalGeneration,
    )
    from transformers.models.whisper import WhisperTokenizerFast  # type: ignore[attr-defined]

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, BASE: len(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizerFast(
        str(folder / "vocab.json"), str(folder / "merges.txt"), unk_token=BASE, bos_token=BASE, eos_token=BASE
    )
    tokenizer.add_special_tokens({"pad_token": BASE, "additional_special_tokens": list(SPECIAL[1:])})
    tokenizer.add_tokens(list(STAMPS), special_tokens=True)
    tokenizer.save_pretrained(folder)
    end, start = (tokenizer.convert_tokens_to_ids(token) for token in SPECIAL[:2])
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=80,
        max_target_positions=64,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = WhisperForConditionalGeneration(config)
        # With the default initialization the output hardly depends on the sound, so that no test could detect it.
        for parameter in network.model.parameters():
            if parameter.dim() > 1:
                parameter.data *= 4
    network.generation_config = GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        is_multilingual=False,
        suppress_tokens=[vocabulary["#"], vocabulary["*"]],
        begin_suppress_tokens=[vocabulary["Ġ"], end],
        max_length=64,
    )
    network.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
    return str(folder)
