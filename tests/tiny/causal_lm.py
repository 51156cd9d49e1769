"""Random language models over a few words; nothing is downloaded.

``KINDS`` are the forms that published chat templates and tokenizers have: what they read of a turn's content, who
writes the beginning-of-sequence token, a default system prompt, a prefilled thought, a date, roles that are refused,
and ends of turns that are not the tokenizer's end. The templates are short ones of the published form, with the same
marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.pretrained import save_network
from pipelines.text.causal_lm import decoder, network_of

TINY_WORDS = "how many is are the a yes no red blue <think> </think> <answer> </answer> 0 1 2 3"

CHATML = """\
{%- if messages[0]['role'] == 'system' %}{{ '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>system\\nDEFAULT<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if not (loop.first and message['role'] == 'system') %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Concatenates contents; a system prompt of its own where the row has none (Qwen2.5, SmolLM2)."""

TOOLS = """\
{%- set own = messages[0].role == 'system' %}
{%- set system = messages[0].content if own else 'DEFAULT' %}
{%- if tools %}{% set call = '<tool_call>\\n{"name": ..., "arguments": ...}\\n</tool_call>' %}
{%- set told = 'Call tools as ' + call + ':\\n' + (tools | map('tojson') | join('\\n')) %}
{%- set system = system + '\\n\\n' + told %}{% endif %}
{{- '<|im_start|>system\\n' + system + '<|im_end|>\\n' }}
{%- for message in (messages[1:] if own else messages) %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Writes tools into the system prompt and their results into a turn of the user (Qwen2.5 with tools)."""

QWEN3 = """\
{%- for message in messages %}
{%- if message.content is string %}{% set content = message.content %}{% else %}{% set content = '' %}{% endif %}
{%- if message.role == 'assistant' and '</think>' in content %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
"""Reads anything but a string as an empty text; thinks unless ``enable_thinking`` is false (Qwen3)."""

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
{%- if strftime_now is defined %}{% set date_string = strftime_now("%d %b %Y") %}
{%- else %}{% set date_string = "26 Jul 2024" %}{% endif %}{% endif %}
{%- if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content']|trim %}
{%- set messages = messages[1:] %}{% else %}{% set system_message = "" %}{% endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" + "Today Date: " + date_string + "\\n\\n" }}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
"""Pipes contents through trim, writes the beginning of the sequence and today's date (Llama 3.2)."""

R1 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{ message['content'] }}{% endif %}
{%- if message['role'] == 'user' %}{{ '<|User|>' + message['content'] }}{% endif %}
{%- if message['role'] == 'assistant' %}{% set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
{{- '<|Assistant|>' + content + '<|endofsentence|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"""
"""Opens the thought itself (DeepSeek-R1 and what was distilled from it)."""

GEMMA2 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
"""Refuses a system turn, and roles that do not alternate (Gemma 1 and 2)."""


@dataclass(frozen=True)
class Kind:
    """The form of a published tokenizer."""

    template: str = ""
    special: Sequence[str] = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    bos: str = ""
    """The tokenizer adds it to every text."""
    end: str = "<|im_end|>"
    pad: str = "<|endoftext|>"
    ends: Sequence[str] = ("<|im_end|>", "<|endoftext|>")
    """Those of the generation configuration."""
    generation: Mapping[str, Any] | None = None
    added: Sequence[str] = ()
    """Words that are one token, and no special one."""


LLAMA_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
KINDS: Mapping[str, Kind] = {
    "base": Kind(special=("<s>", "</s>"), bos="<s>", end="</s>", pad="", ends=("</s>",)),
    "qwen2.5": Kind(
        CHATML.replace("DEFAULT", "You are a helpful assistant"),
        generation={"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05},
    ),
    "tools": Kind(TOOLS.replace("DEFAULT", "You are a helpful assistant"), added=("<tool_call>", "</tool_call>")),
    "smollm2": Kind(
        CHATML.replace("DEFAULT", "You are an assistant named Smol"), pad="<|im_end|>", ends=("<|im_end|>",)
    ),
    "qwen3": Kind(QWEN3, generation={"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}),
    "llama3": Kind(LLAMA3, LLAMA_SPECIAL, LLAMA_SPECIAL[0], "<|eot_id|>", "", ("<|end_of_text|>", "<|eot_id|>")),
    "r1": Kind(
        R1,
        ("<|beginofsentence|>", "<|endofsentence|>", "<|User|>", "<|Assistant|>"),
        "<|beginofsentence|>",
        "<|endofsentence|>",
        "<|endofsentence|>",
        ("<|endofsentence|>",),
        {"do_sample": True, "temperature": 0.6, "top_p": 0.95},
    ),
    "gemma2": Kind(
        GEMMA2, ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"), "<bos>", "<eos>", "<pad>", ("<eos>",)
    ),
}
"""Kind to its tokenizer and generation values."""


def tiny(folder: str | Path, kind: str = "") -> str:
    """Write a random model over ``TINY_WORDS`` and return its folder: of one of ``KINDS``, or without a template."""
    if not kind:
        network, tokenizer = network_of(TINY_WORDS.split())
        save_network(Path(folder), network, (tokenizer,))
        return str(folder)
    form = KINDS[kind]
    tokenizer = tokenizer_of(form)
    ids = tokenizer.get_vocab()
    # The embedding has rows beyond the tokenizer, as published ones do.
    network = decoder(len(tokenizer) + 8)
    network.generation_config.eos_token_id = [ids[end] for end in form.ends]
    network.generation_config.pad_token_id = ids[form.pad] if form.pad else None
    for name, value in (form.generation or {}).items():
        setattr(network.generation_config, name, value)
    save_network(Path(folder), network, (tokenizer,))
    return str(folder)


def tokenizer_of(form: Kind) -> Any:
    """The tokenizer of a kind, over words."""
    from pipelines.vlm.qwen_vl_tiny import word_tokenizer

    words = f"{TINY_WORDS} You are helpful an named Smol Today Date : 26 Jul 2024 model what be brief".split()
    tokenizer = word_tokenizer(words, form.special, form.template or None, end=form.end, pad=form.pad or None)
    tokenizer.add_tokens(list(form.added))
    return bounded(tokenizer, form.bos)


def bounded(tokenizer: Any, bos: str) -> Any:
    """The tokenizer with ``bos`` in front of every text; "" changes nothing."""
    from tokenizers import processors

    if bos:
        tokenizer.bos_token = bos
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    return tokenizer
