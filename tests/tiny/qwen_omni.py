"""A small Qwen2.5-Omni in the files of the published one: the thinker beside parts that are not read."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from pipelines.vlm.qwen_vl_tiny import image_processor
from tests.tiny.audio_text import OMNI, named, qwen2_5_omni, whisper_extractor
from tests.tiny.qwen_audio import END, START, STOP, amplify, letter_tokenizer

TEMPLATE = """\
{%- set count = namespace(image=0, audio=0, video=0) %}
{%- for message in messages %}
{%- if loop.first and message['role'] != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}{% set count.image = count.image + 1 %}
{%- if add_vision_id %}Picture {{ count.image }}: {% endif %}<|vision_bos|><|IMAGE|><|vision_eos|>
{%- elif part['type'] == 'audio' %}{% set count.audio = count.audio + 1 %}
{%- if add_audio_id %}Audio {{ count.audio }}: {% endif %}<|audio_bos|><|AUDIO|><|audio_eos|>
{%- elif part['type'] == 'video' %}{% set count.video = count.video + 1 %}
{%- if add_vision_id %}Video {{ count.video }}: {% endif %}<|vision_bos|><|VIDEO|><|vision_eos|>
{%- else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""What the published template writes (its chat_template.json)."""


def tiny(folder: str | Path) -> str:
    """Write a random model of some 150,000 parameters and return its folder."""
    from safetensors.torch import load_file, save_file
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    folder = Path(folder)
    tokenizer = named(letter_tokenizer((END, START, STOP, *OMNI.values())), OMNI)
    tokenizer.add_tokens(["blue"])  # one word that is a token, as most are to Qwen's own
    ids = tokenizer.get_vocab()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Qwen2_5OmniThinkerForConditionalGeneration(qwen2_5_omni(ids))
        amplify(network)
    network.generation_config.eos_token_id = [ids[STOP], ids[END]]
    network.generation_config.pad_token_id = ids[END]
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    weights = folder / "model.safetensors"
    parts = {f"thinker.{name}": value for name, value in load_file(weights).items()} | {"talker.x": torch.zeros(2)}
    save_file(parts, weights, {"format": "pt"})
    thinker = json.loads((folder / "config.json").read_text())
    sounds, images = whisper_extractor().to_dict(), image_processor(14, 4 * 28**2, 16 * 28**2).to_dict()
    files = {
        "config.json": {"model_type": "qwen2_5_omni", "thinker_config": thinker},
        "chat_template.json": {"chat_template": TEMPLATE},
        "preprocessor_config.json": images
        | sounds
        | {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5OmniProcessor"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    return str(folder)
