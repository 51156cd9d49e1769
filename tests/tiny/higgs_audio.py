"""A small Higgs Audio v2 over letters: four codebooks of 32 codes, with the files that transformers' conversion writes,
but for the processor's, which names a codec that transformers reads with torchaudio alone."""

from __future__ import annotations

from pathlib import Path

import torch

CODEBOOKS, CODES = 4, 32
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'"
BEGINNING, TURN_END, TEXT_END = "<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>"
AUDIO, AUDIO_START, DELAY = "<|AUDIO_OUT|>", "<|audio_out_bos|>", "<|reserved_special_token_6|>"
MARKS = ("<|start_header_id|>", "<|end_header_id|>", "<|scene_desc_start|>", "<|scene_desc_end|>", "<|audio_eos|>")
HEADER = "'<|start_header_id|>' + {} + '<|end_header_id|>\\n\\n'"
TEMPLATE = (
    "{%- if messages[0].role != 'system' %}{{- raise_exception('A system message is required') }}{%- endif %}"
    "{{- bos_token + " + HEADER.format("'system'") + " + messages[0].content[0].text }}{%- set rest = messages[1:] %}"
    "{%- if rest[0].role == 'scene' %}{{- '\\n\\n<|scene_desc_start|>\\n' + rest[0].content[0].text + "
    "'\\n<|scene_desc_end|>' }}{%- set rest = rest[1:] %}{%- endif %}{{- '<|eot_id|>' }}"
    "{%- for message in rest %}{{- " + HEADER.format("message.role") + " + message.content[0].text + '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- " + HEADER.format("'assistant'") + " + '<|audio_out_bos|>' }}"
    "{%- endif %}"
)
"""Writes what the published template does for a system turn, a scene and a user's, each of one text."""


def tiny(folder: str | Path, seed: int = 0) -> str:
    """Write a random model of about 30,000 parameters, and return its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration, PreTrainedTokenizerFast

    words = ["<unknown>", " ", "\n", *LETTERS]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=BEGINNING, eos_token=TEXT_END, pad_token=TEXT_END
    )
    tokenizer.add_tokens([TURN_END, AUDIO, AUDIO_START, DELAY, *MARKS], special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    end, audio, start, delay, padding = map(
        tokenizer.convert_tokens_to_ids, (TURN_END, AUDIO, AUDIO_START, DELAY, TEXT_END)
    )
    config = HiggsAudioV2Config(
        vocab_size=len(tokenizer) + 2,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_codebooks=CODEBOOKS,
        codebook_size=CODES + 2,
        audio_token_id=audio,
        audio_bos_token_id=start,
        audio_delay_token_id=delay,
        audio_stream_bos_id=CODES,
        audio_stream_eos_id=CODES + 1,
        pad_token_id=padding,
        eos_token_id=end,
        initializer_range=0.2,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = HiggsAudioV2ForConditionalGeneration(config)
    network.generation_config.eos_token_id, network.generation_config.pad_token_id = end, padding
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
