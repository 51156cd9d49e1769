"""Small Qwen2.5-VL models of the real architecture, over a vocabulary of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""Single tokens that are no special tokens: they are generated and decoded like words."""

ROLES = ("system", "user", "assistant")

TINY_TEXT = """
what which how many is are the a an in on of and left right above below picture clip first box find when where it one
two three red blue green circle square triangle yes no answer to seconds . , ? : [ ] ( ) { }
"""
TINY_WORDS = (*TINY_TEXT.split(), *map(str, range(33)))

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>
{%- else %}{{ part['text'] }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tiny(folder: str | Path) -> str:
    """Write a random model of about 60,000 parameters (an image of 16 x 16 pixels has 4 tokens); return its folder."""
    return write_model(
        folder, TINY_WORDS, width=32, layers=2, heads=2, vision_width=32, vision_layers=2, patch=4, min_pixels=64
    )


def write_model(
    folder: str | Path,
    words: Sequence[str],
    *,
    width: int,
    layers: int,
    heads: int,
    vision_width: int,
    vision_layers: int,
    patch: int,
    min_pixels: int,
    max_pixels: int = 4096,
    theta: float = 10_000.0,
    seed: int = 0,
    tags: Sequence[str] = (),
    template: str = TEMPLATE,
) -> str:
    """Write a Qwen2.5-VL with random weights as an ordinary folder: config, weights, tokenizer, processor.

    ``theta`` is the base of the rotary positions, ``tags`` are further single tokens besides ``TAGS``.
    """
    from transformers import Qwen2_5_VLForConditionalGeneration

    tokenizer = word_tokenizer(words, template=template, tags=tags)
    ids = tokenizer.get_vocab()
    config = configuration(
        ids,
        width=width,
        layers=layers,
        heads=heads,
        vision_width=vision_width,
        vision_layers=vision_layers,
        patch=patch,
        theta=theta,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = Qwen2_5_VLForConditionalGeneration(config)
    network.generation_config.eos_token_id = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    network.generation_config.pad_token_id = ids["<|endoftext|>"]
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor(patch, min_pixels, max_pixels).save_pretrained(folder)
    return str(folder)


def configuration(
    ids: Mapping[str, int],
    *,
    width: int,
    layers: int,
    heads: int,
    vision_width: int,
    vision_layers: int,
    patch: int,
    theta: float = 10_000.0,
) -> Any:
    """The configuration of a small Qwen2.5-VL over a vocabulary (``ids``) with Qwen's special tokens."""
    from transformers import Qwen2_5_VLConfig

    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(ids),
            "hidden_size": width,
            "intermediate_size": 3 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": theta,
                "mrope_section": _sections(width // heads),
            },
            "tie_word_embeddings": True,
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "depth": vision_layers,
            "hidden_size": vision_width,
            "intermediate_size": 2 * vision_width,
            "num_heads": heads,
            "out_hidden_size": width,
            "patch_size": patch,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 4 * 2 * patch,
            "fullatt_block_indexes": [vision_layers - 1],
            "tokens_per_second": 2,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def word_tokenizer(
    words: Sequence[str],
    special: Sequence[str] = SPECIAL,
    template: str | None = TEMPLATE,
    *,
    end: str = "<|im_end|>",
    pad: str | None = "<|endoftext|>",
    tags: Sequence[str] = (),
) -> Any:
    """A tokenizer of words and single punctuation marks, by default with Qwen's special tokens and chat template.
    ``tags`` are single tokens besides ``TAGS``."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tags = (*TAGS, *tags)
    vocabulary = {word: place for place, word in enumerate(dict.fromkeys((*special, "<unk>", *tags, *ROLES, *words)))}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "isolated")]
    )
    inner.add_special_tokens([AddedToken(token, special=True) for token in special])
    inner.add_tokens([AddedToken(tag, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=end,
        pad_token=pad,
        unk_token="<unk>",
        chat_template=template,
    )


def image_processor(patch: int, min_pixels: int, max_pixels: int) -> Any:
    """Qwen's image processor for small images."""
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as processing

    return processing.Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": min_pixels, "longest_edge": max_pixels},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def _sections(head: int) -> list[int]:
    """Rotary pairs of a head for time, height and width, in Qwen's proportions 1 : 1.5 : 1.5."""
    pairs = head // 2
    time = max(1, pairs // 4)
    height = (pairs - time) // 2
    return [time, height, pairs - time - height]
