"""A small Whisper of the real architecture, over letters, with the files that published ones of each kind have.

english         openai/whisper-tiny.en and kin: no language and no task in the prompt
multilingual    openai/whisper-small and kin: tables of languages and tasks, forced tokens
large_v3        128 mels, one language more, so the ids of tasks and time stamps are others, and, as in its first
                files, a forced task that is not the one that is asked for
fine_tune       a fine-tune of ``multilingual``: dropout in its config, and no such key in its generation config
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
LANGUAGES = ("<|en|>", "<|zh|>", "<|de|>", "<|hi|>")
MULTILINGUAL = (*SPECIAL[:2], *LANGUAGES, "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>")
STAMPS = tuple(f"<|{step / 50:.2f}|>" for step in range(4))
KINDS = {
    "english": SPECIAL,
    "multilingual": (*MULTILINGUAL, *SPECIAL[-2:]),
    "large_v3": (*MULTILINGUAL[:6], "<|yue|>", *MULTILINGUAL[6:], *SPECIAL[-2:]),
    "fine_tune": (*MULTILINGUAL, *SPECIAL[-2:]),
}
"""Kind to its special tokens, in their order."""


def tiny(folder: str | Path, seed: int = 0, kind: str = "english") -> str:
    """Write a random Whisper of about 100,000 parameters and return its folder; ``kind`` is of ``KINDS``."""
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
    special = KINDS[kind]
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(letters)}
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, BASE: len(vocabulary)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = WhisperTokenizerFast(
        str(folder / "vocab.json"), str(folder / "merges.txt"), unk_token=BASE, bos_token=BASE, eos_token=BASE
    )
    tokenizer.add_special_tokens({"pad_token": BASE, "additional_special_tokens": list(special[1:])})
    tokenizer.add_tokens(list(STAMPS), special_tokens=True)
    tokenizer.save_pretrained(folder)
    end, start = (tokenizer.convert_tokens_to_ids(token) for token in special[:2])
    config = WhisperConfig(
        vocab_size=len(tokenizer),
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=128 if kind == "large_v3" else 80,
        dropout=0.1 if kind == "fine_tune" else 0.0,
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
        # With the default initialization the output hardly depends on the recording, so no test could detect it.
        for parameter in network.model.parameters():
            if parameter.dim() > 1:
                parameter.data *= 4
    network.generation_config = GenerationConfig(
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=[vocabulary["#"], vocabulary["*"]],
        begin_suppress_tokens=[vocabulary["Ġ"], end],
        max_length=64,
        **prompts_of(kind, tokenizer),
    )
    network.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=network.config.num_mel_bins).save_pretrained(folder)
    return str(folder)


def prompts_of(kind: str, tokenizer: Any) -> dict[str, Any]:
    """What a generation config of this kind says of languages and tasks."""
    ids = tokenizer.convert_tokens_to_ids
    if kind == "fine_tune":
        return {}
    if kind == "english":
        return {"is_multilingual": False}
    languages = [token for token in KINDS[kind] if len(token) in (6, 7)]
    forced = "translate" if kind == "large_v3" else "transcribe"
    return {
        "is_multilingual": True,
        "lang_to_id": {token: ids(token) for token in languages},
        "task_to_id": {task: ids(f"<|{task}|>") for task in ("transcribe", "translate")},
        "forced_decoder_ids": [[1, None], [2, ids(f"<|{forced}|>")]],
        "no_timestamps_token_id": ids("<|notimestamps|>"),
    }
