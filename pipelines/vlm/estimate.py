"""Number of tokens of media, computed from their sizes without resizing images or decoding clips."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmgrpo.data.chat import chat_of, conversation_ids, prompt_ids
from mmgrpo.data.images import smart_resize
from mmgrpo.types import Media, Prompt
from pipelines import require
from pipelines.containers import frame_indices
from pipelines.pretrained import INDEX, architecture, locate, read_part
from pipelines.processors import load_tokenizer
from pipelines.vlm.media import CLIP_PIXELS, Measure, frame_pixel_limit, rate_of, span_of

QWEN_VL = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Types of models whose tokens of media follow from ``Sizes``."""


class NotCounted(ValueError):
    """A model whose prompts have no length that follows from the sizes of their media."""


@dataclass(frozen=True)
class Sizes:
    """The settings of a Qwen-VL model that determine the resolution of media; the defaults are Qwen2.5-VL's."""

    patch: int = 14
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 4 * 28 * 28
    max_pixels: int = 16384 * 28 * 28
    frame_pixels: int = 768 * 28 * 28
    clip_pixels: int = CLIP_PIXELS
    """Limit for all frames of a clip together."""
    max_frames: int = 768
    fps: float = 2.0


def tokens_of(media: Media, measure: Measure, sizes: Sizes) -> int:
    """Tokens of a medium in the prompt: height * width / (patch * merge)^2, once for an image and once per
    ``temporal`` frames of a clip. Source: qwen-vl-utils (github.com/QwenLM/Qwen3-VL)."""
    factor = sizes.patch * sizes.merge
    low = media.options.get("min_pixels", sizes.min_pixels)
    high, layers = media.options.get("max_pixels", sizes.max_pixels), 1
    if media.kind == "video":
        number: dict[str, Any] = {"fps": rate_of(media.options, sizes.fps), "frames": media.options.get("frames", 0)}
        source_fps = measure.frames / measure.seconds
        span: dict[str, Any] = dict(span_of(media.options))
        frames = len(frame_indices(measure.frames, source_fps, max_frames=sizes.max_frames, **number, **span))
        limit = frame_pixel_limit(frames, low, sizes.frame_pixels, sizes.temporal, sizes.clip_pixels)
        high, layers = media.options.get("max_pixels", limit), math.ceil(frames / sizes.temporal)
    height, width = smart_resize(measure.height, measure.width, factor, low, high)
    return layers * height * width // factor**2


def is_language_model(kind: str) -> bool:
    """Whether transformers has a type of model as a language model of texts alone."""
    from transformers.models.auto import modeling_auto as auto

    others = (auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES)
    return kind in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not any(kind in names for names in others)


def of_model(path: str, **limits: Any) -> tuple[Sizes, Callable[[Prompt], int]]:
    """The sizes of a model (folder or hub id), with ``limits`` in place of some, and a function that counts the tokens
    of a prompt without its media.

    Only processor and tokenizer are loaded, no weights. Of a language model, which reads no media, the sizes are the
    defaults. NotCounted for any other model than these and Qwen-VL's.
    """
    require("vlm", "transformers")
    from transformers import AutoImageProcessor

    from pipelines.vlm.qwen_vl import MARKS

    source = locate(path, "Qwen/Qwen2.5-VL-3B-Instruct", *INDEX)
    kind = architecture(source)
    if kind not in QWEN_VL and not is_language_model(kind):
        raise NotCounted(
            f"'{path}' is of the type {kind or '(none)'}, and lengths are counted for Qwen-VL and language models"
        )
    tokenizer: Any = load_tokenizer(source)
    chat = chat_of(tokenizer)
    if kind not in QWEN_VL:
        return Sizes(**limits), lambda prompt: len(prompt_ids(tokenizer, chat, prompt))
    processor: Any = read_part(AutoImageProcessor, source, trust_remote_code=False)
    settings = {
        "patch": processor.patch_size,
        "merge": processor.merge_size,
        "temporal": processor.temporal_patch_size,
        "min_pixels": processor.size["shortest_edge"],
        "max_pixels": processor.size["longest_edge"],
        "frame_pixels": 768 * (processor.patch_size * processor.merge_size) ** 2,
    }

    def words(prompt: Prompt) -> int:
        # Each medium has one mark in the template, which its tokens will replace.
        ids = conversation_ids(chat, prompt, MARKS, lambda media: [{"type": media.kind}])
        return len(ids) - len(prompt.media)

    return Sizes(**{**settings, **limits}), words
