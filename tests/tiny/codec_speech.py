"""A small language model over letters, digits and 32 speech tokens, with the files of CosyVoice 2 or of Llasa.

cosyvoice2    Qwen2; the template writes the marks, and the generation config has the end of speech
llasa         Llama; template and tokenizer both write the beginning, the template a system turn with today's date; the
              generation config has the three ends of Llama 3's texts, and not that of speech
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

CODES = 32
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'"
PAD, END, START, TASK = "<pad>", "<|eos1|>", "<|sos|>", "<|task_id|>"
TEMPLATE = (
    "{%- for message in messages %}{%- if message['role'] == 'user' %}"
    "{{- '<|sos|>' + message['content'] + '<|task_id|>' }}{%- endif %}{%- endfor %}"
)
"""The prompt of CosyVoice 2's converted language model."""

BEGINNING, TURN_END, HEADER, HEADER_END = "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"
TEXT_ENDS = ("<|end_of_text|>", "<|eom_id|>", TURN_END)
SPEECH_START, SPEECH_END = "<|SPEECH_GENERATION_START|>", "<|SPEECH_GENERATION_END|>"
TEXT_START, TEXT_STOP = "<|TEXT_UNDERSTANDING_START|>", "<|TEXT_UNDERSTANDING_END|>"
LLASA = (BEGINNING, HEADER, HEADER_END, *TEXT_ENDS, SPEECH_START, SPEECH_END, TEXT_START, TEXT_STOP)
INSTRUCTION = f"convert the text to speech:{TEXT_START}{{text}}{TEXT_STOP}"
"""What the user says to Llasa, in the letters of the tiny model."""

LLAMA_TEMPLATE = (
    "{{- bos_token }}{{- '<|start_header_id|>system<|end_header_id|>\\n\\ntoday date: ' + strftime_now('%d %b %Y') + "
    "'\\n\\n<|eot_id|>' }}{%- for message in messages %}{{- '<|start_header_id|>' + message['role'] + "
    "'<|end_header_id|>\\n\\n' + (message['content'] | trim) + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
"""Llama 3.2's, which makes Python's text of a list and reads the clock."""


def tiny(folder: str | Path, seed: int = 0, codes: int = CODES, width: int = 32, kind: str = "cosyvoice2") -> str:
    """Write a random model of about 20,000 parameters of a ``kind``, cosyvoice2 or llasa, and return its folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    llasa = kind == "llasa"

    words = [PAD, " ", *LETTERS, "<unknown>"]
    inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unknown>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    ends = {"bos_token": BEGINNING, "eos_token": TURN_END} if llasa else {"eos_token": END}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token=PAD, **ends)
    tokenizer.add_tokens([*(f"<|s_{code}|>" for code in range(codes)), *(LLASA if llasa else (END, START, TASK))])
    tokenizer.chat_template = LLAMA_TEMPLATE if llasa else TEMPLATE
    if llasa:
        first = tokenizer.convert_tokens_to_ids(BEGINNING)
        inner = tokenizer.backend_tokenizer
        inner.post_processor = processors.TemplateProcessing(f"{BEGINNING} $A", special_tokens=[(BEGINNING, first)])
    config: Any = (LlamaConfig if llasa else Qwen2Config)(
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
        network: Any = (LlamaForCausalLM if llasa else Qwen2ForCausalLM)(config)
    declared = tokenizer.convert_tokens_to_ids(list(TEXT_ENDS) if llasa else END)
    network.generation_config.eos_token_id = declared
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
