"""Small models of several architectures for ``image_text``, each with its own processor, over a vocabulary of words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines.processors import without_clips
from pipelines.vlm.qwen_vl_tiny import SPECIAL, TINY_WORDS, word_tokenizer
from pipelines.vlm.qwen_vl_tiny import TEMPLATE as QWEN_TEMPLATE
from pipelines.vlm.qwen_vl_tiny import image_processor as qwen_processor
from tests.tiny.causal_lm import Kind, bounded

SIDE, PATCH, WIDTH = 16, 4, 32
ONE_OR_TWO = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE]]
PINPOINTS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
LLAVA_TOKENS: dict[str, Any] = {"patch_size": PATCH, "num_additional_image_tokens": 1}
LLAVA_TOKENS |= {"vision_feature_select_strategy": "default"}
HALVES: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}

TEMPLATE = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% for part in message['content'] %}
{%- if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


GEMMA3 = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
{%- set prefix = messages[0]['content'] if messages[0]['content'] is string else messages[0]['content'][0]['text'] %}
{%- set prefix = prefix + '\\n\\n' %}{% set turns = messages[1:] %}
{%- else %}{% set prefix = '' %}{% set turns = messages %}{% endif %}
{%- for message in turns %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{{- '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
{{- prefix if loop.first else '' }}
{%- if message['content'] is string %}{{ message['content'] | trim }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}{{ '<start_of_image>' }}{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}
{%- endif %}{{ '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
"""Writes the beginning of the sequence, which the tokenizer adds as well; a system prompt is the user's."""

LLAVA = """\
{%- for message in messages %}
{%- if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}
{%- for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}
{%- for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] + ' ' }}{% endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""
"""Reads lists only, and leaves the beginning of the sequence to the tokenizer."""

CHATML = """\
{%- if messages[0]['role'] != 'system' %}{{ 'SYSTEM' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string %}{{ message['content'] }}{% else %}
{%- for part in message['content'] %}
{%- if part['type'] == 'image' %}{{ 'IMAGE' }}{% elif part['type'] == 'video' %}{{ 'VIDEO' }}
{%- else %}{{ part['text'] }}{% endif %}{% endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\nBEGUN' }}{% endif %}"""


def chatml(image: str, video: str = "", system: str = "", begun: str = "") -> str:
    """ChatML with marks of media, a default system prompt and a beginning of the answer."""
    written = f"<|im_start|>system\\n{system}<|im_end|>\\n" if system else ""
    return CHATML.replace("SYSTEM", written).replace("IMAGE", image).replace("VIDEO", video).replace("BEGUN", begun)


def tiny(folder: str | Path, kind: str = "gemma3", published: bool = False) -> str:
    """Write a random model of some 50,000 parameters with its processor; ``kind`` is of ``KINDS``.

    ``published`` gives it template, tokenizer and generation values of the published form (``PUBLISHED``).
    """
    from transformers import AutoModelForImageTextToText

    special, mark, config_of, processor_of = KINDS[kind]
    template = QWEN_TEMPLATE if mark == QWEN_MARK else TEMPLATE.replace("IMAGE", mark)
    words = (*TINY_WORDS, "<", ">") if kind == "qwen3_vl" else TINY_WORDS  # of the times in front of frames
    form = PUBLISHED[kind] if published else Kind(template)
    words = (*words, *["You", "are", "helpful", "an", "USER", "ASSISTANT", ":", "model"]) if published else words
    several = (*SPECIAL[:3], *special, *(token for token in form.special if token not in SPECIAL))
    tokenizer = bounded(word_tokenizer(words, several, form.template, end=form.end, pad=form.pad), form.bos)
    ids = tokenizer.get_vocab()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: Any = AutoModelForImageTextToText.from_config(config_of(ids))
        for parameter in network.parameters():
            if parameter.dim() > 1 and not parameter.any():  # Gemma's projection of images begins with zeros
                torch.nn.init.normal_(parameter, std=0.2)
    network.generation_config.eos_token_id = [ids[end] for end in form.ends] or None
    network.generation_config.pad_token_id = ids[form.pad]
    for name, value in (form.generation or {}).items():
        setattr(network.generation_config, name, value)
    network.save_pretrained(folder)
    processor_of(tokenizer).save_pretrained(folder)
    if kind == "qwen3_vl":
        clips = {"size": {"shortest_edge": 64, "longest_edge": 65536}, "patch_size": PATCH, "merge_size": 2}
        clips |= {"video_processor_type": "Qwen3VLVideoProcessor", "temporal_patch_size": 2}
        (Path(folder) / "video_preprocessor_config.json").write_text(json.dumps(clips))
    return str(folder)


def text(kind: str, ids: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """A language model of two layers."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "head_dim": WIDTH // 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 4096}
    ends = {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
    ends["pad_token_id"] = ids["<|endoftext|>"]
    return {"model_type": kind, "vocab_size": len(ids), **sizes, **heads, **ends, "tie_word_embeddings": True, **more}


def vision(kind: str, **more: Any) -> dict[str, Any]:
    """A vision transformer of two blocks for images of 16 x 16 pixels."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"model_type": kind, **sizes, "image_size": SIDE, "patch_size": PATCH, **more}


def gemma3(ids: Mapping[str, int]) -> Any:
    """Gemma 3: an image of 4 tokens, read in both directions; one layer attends to 8 tokens, the other to all."""
    from transformers import Gemma3Config

    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
    return Gemma3Config(
        text_config=text("gemma3_text", ids, **layers),
        vision_config=vision("siglip_vision_model", vision_use_head=False),
        mm_tokens_per_image=4,
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        image_token_index=ids["<image_soft_token>"],
    )


def gemma3_processor(tokenizer: Any) -> Any:
    """Gemma's processor."""
    from transformers import Gemma3Processor
    from transformers.models.gemma3 import image_processing_pil_gemma3 as images

    names = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    for name, token in names.items():
        tokenizer.init_kwargs[name] = token
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    processor = images.Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}, **HALVES)
    return Gemma3Processor(processor, tokenizer, chat_template=tokenizer.chat_template, image_seq_length=4)


def llava(ids: Mapping[str, int]) -> Any:
    """LLaVA 1.5: CLIP's patches, projected."""
    from transformers import LlavaConfig

    return LlavaConfig(
        text_config=text("llama", ids),
        vision_config=vision("clip_vision_model"),
        image_token_index=ids["<image>"],
        vision_feature_layer=-1,
    )


def llava_processor(tokenizer: Any) -> Any:
    """LLaVA's processor: 16 tokens an image."""
    from transformers import LlavaProcessor
    from transformers.models.clip import image_processing_pil_clip as images

    square = {"height": SIDE, "width": SIDE}
    processor = images.CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=square, **HALVES)
    return LlavaProcessor(processor, tokenizer, chat_template=tokenizer.chat_template, **LLAVA_TOKENS)


def llava_next(ids: Mapping[str, int]) -> Any:
    """LLaVA-NeXT: tiles of the resolution that fits best, of each image."""
    from transformers import LlavaNextConfig

    return LlavaNextConfig(
        text_config=text("llama", ids),
        vision_config=vision("clip_vision_model"),
        image_token_index=ids["<image>"],
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-1,
    )


def llava_next_processor(tokenizer: Any) -> Any:
    """LLaVA-NeXT's processor."""
    from transformers import LlavaNextProcessor
    from transformers.models.llava_next import image_processing_pil_llava_next as images

    square = {"height": SIDE, "width": SIDE}
    processor = images.LlavaNextImageProcessorPil(
        size={"shortest_edge": SIDE}, crop_size=square, image_grid_pinpoints=PINPOINTS, **HALVES
    )
    return LlavaNextProcessor(processor, tokenizer, chat_template=tokenizer.chat_template, **LLAVA_TOKENS)


def qwen2_vl(ids: Mapping[str, int]) -> Any:
    """Qwen2-VL: positions of three axes, images of any size."""
    from transformers import Qwen2VLConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
    return Qwen2VLConfig(
        text_config=text("qwen2_vl_text", ids, rope_parameters=rope),
        vision_config=qwen_vision(embed_dim=WIDTH, mlp_ratio=2),
        **qwen_marks(ids),
    )


def qwen_vision(**more: Any) -> dict[str, Any]:
    """Qwen's vision transformer of two blocks, which merges four patches."""
    sizes = {"depth": 2, "hidden_size": WIDTH, "num_heads": 2, "patch_size": PATCH}
    return {**sizes, "spatial_merge_size": 2, "temporal_patch_size": 2, **more}


def qwen_marks(ids: Mapping[str, int]) -> dict[str, Any]:
    """The ids that Qwen's models know media by."""
    marks = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    marks |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    return {name: ids[mark] for name, mark in marks.items()} | {"tie_word_embeddings": True}


def qwen3_vl(ids: Mapping[str, int]) -> Any:
    """Qwen3-VL: features of several depths of the vision tower enter several layers."""
    from transformers import Qwen3VLConfig

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    return Qwen3VLConfig(
        text_config=text("qwen3_vl_text", ids, rope_parameters=rope),
        vision_config=qwen_vision(
            intermediate_size=2 * WIDTH, out_hidden_size=WIDTH, num_position_embeddings=64, deepstack_visual_indexes=[0]
        ),
        **qwen_marks(ids),
    )


def qwen3_5(ids: Mapping[str, int]) -> Any:
    """Qwen3.5: one layer has a state (gated delta rule), the other attends."""
    from transformers import Qwen3_5Config

    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    layers = {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 8}
    layers |= {"linear_value_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
    return Qwen3_5Config(
        text_config=text("qwen3_5_text", ids, rope_parameters={**rope, "partial_rotary_factor": 1.0}, **layers),
        vision_config=qwen_vision(intermediate_size=2 * WIDTH, out_hidden_size=WIDTH, num_position_embeddings=64),
        **qwen_marks(ids),
    )


def qwen_processor_of(name: str) -> Callable[[Any], Any]:
    """The processor of a Qwen-VL by its class's name."""

    def build(tokenizer: Any) -> Any:
        import transformers

        kind = without_clips(getattr(transformers, name))
        images = qwen_processor(PATCH, 64, 1024)
        return kind(image_processor=images, tokenizer=tokenizer, chat_template=tokenizer.chat_template)

    return build


def internvl(ids: Mapping[str, int]) -> Any:
    """InternVL 3: square tiles whose patches are merged by four."""
    from transformers import InternVLConfig

    return InternVLConfig(
        text_config=text("qwen2", ids),
        vision_config=vision("internvl_vision", image_size=[SIDE, SIDE], patch_size=[PATCH, PATCH]),
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=4,
    )


def internvl_processor(tokenizer: Any) -> Any:
    """InternVL's processor, which cuts an image into tiles."""
    from transformers import InternVLProcessor
    from transformers.models.got_ocr2 import image_processing_pil_got_ocr2 as images

    names = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    for name, token in {**names, "video_token": "<video>"}.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
        tokenizer.init_kwargs[name] = token
    size = {"height": SIDE, "width": SIDE}
    processor = images.GotOcr2ImageProcessorPil(size=size, crop_to_patches=True, max_patches=2, **HALVES)
    kind = without_clips(InternVLProcessor)
    return kind(processor, tokenizer, image_seq_length=4, chat_template=tokenizer.chat_template)


def llava_onevision(ids: Mapping[str, int]) -> Any:
    """LLaVA-OneVision: tiles of the resolution that fits best, without their padding."""
    from transformers import LlavaOnevisionConfig

    return LlavaOnevisionConfig(
        text_config=text("qwen2", ids),
        vision_config=vision("siglip_vision_model", vision_use_head=False),
        image_token_index=ids["<image>"],
        video_token_index=ids["<video>"],
        image_grid_pinpoints=ONE_OR_TWO,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )


def llava_onevision_processor(tokenizer: Any) -> Any:
    """LLaVA-OneVision's processor."""
    from transformers import LlavaOnevisionProcessor
    from transformers.models.llava_onevision import image_processing_pil_llava_onevision as images

    processor = images.LlavaOnevisionImageProcessorPil(
        size={"height": SIDE, "width": SIDE},
        image_grid_pinpoints=ONE_OR_TWO,
        **HALVES,
    )
    return without_clips(LlavaOnevisionProcessor)(
        processor,
        tokenizer,
        num_image_tokens=(SIDE // PATCH) ** 2,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )


QWEN_SPECIAL = SPECIAL[3:]
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"

KINDS: Mapping[str, tuple[Sequence[str], str, Callable[[Mapping[str, int]], Any], Callable[[Any], Any]]] = {
    "gemma3": (
        ("<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        "<start_of_image>",
        gemma3,
        gemma3_processor,
    ),
    "llava": (("<image>",), "<image>", llava, llava_processor),
    "llava_next": (("<image>",), "<image>", llava_next, llava_next_processor),
    "qwen2_vl": (QWEN_SPECIAL, QWEN_MARK, qwen2_vl, qwen_processor_of("Qwen2VLProcessor")),
    "qwen3_vl": (QWEN_SPECIAL, QWEN_MARK, qwen3_vl, qwen_processor_of("Qwen3VLProcessor")),
    "qwen3_5": (QWEN_SPECIAL, QWEN_MARK, qwen3_5, qwen_processor_of("Qwen3VLProcessor")),
    "internvl": (("<img>", "</img>", "<IMG_CONTEXT>", "<video>"), "<IMG_CONTEXT>", internvl, internvl_processor),
    "llava_onevision": (("<image>", "<video>"), "<image>", llava_onevision, llava_onevision_processor),
}
"""Kind to its special tokens, the mark of an image in its template, its configuration and its processor."""

GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
GEMMA_VALUES = {"do_sample": True, "top_k": 64, "top_p": 0.95}
SHARP = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.001, "repetition_penalty": 1.05}
"""Generation values of Qwen2-VL and Qwen2.5-VL."""
QWEN_CLIP = "<|vision_start|><|video_pad|><|vision_end|>"

PUBLISHED: Mapping[str, Kind] = {
    "gemma3": Kind(GEMMA3, GEMMA_SPECIAL, "<bos>", "<eos>", "<pad>", ("<eos>", "<end_of_turn>"), GEMMA_VALUES),
    "llava": Kind(LLAVA, ("<s>", "</s>", "<pad>"), "<s>", "</s>", "<pad>", ("</s>",)),
    "llava_next": Kind(LLAVA, ("<s>", "</s>", "<pad>"), "<s>", "</s>", "<pad>", ("</s>",)),
    "qwen2_vl": Kind(chatml(QWEN_MARK, QWEN_CLIP, "You are a helpful assistant."), generation=SHARP),
    "qwen3_vl": Kind(chatml(QWEN_MARK, QWEN_CLIP, begun="<think>\\n")),  # Thinking
    "qwen3_5": Kind(chatml(QWEN_MARK, QWEN_CLIP, begun="<think>\\n")),
    "internvl": Kind(chatml("<IMG_CONTEXT>\\n"), ends=()),  # ends are those of the text configuration
    "llava_onevision": Kind(chatml("<image>\\n")),
}
"""Kind to template, tokenizer and generation values as they are published, with words for words."""
