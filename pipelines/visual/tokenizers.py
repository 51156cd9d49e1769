"""Whether text encoders read prompts whole, by the tokenizers of a checkpoint, before any weights are read."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from mmgrpo.types import Prompt
from pipelines.pretrained import read_json, read_part


def word_check(module: str, path: str, most: int) -> Callable[[Prompt], None] | None:
    """What raises ValueError for a prompt of which the text encoders of a checkpoint would cut something.

    ``module`` has the family's ``check_words``, and ``most`` is its longest prompt in tokens.

    None for a checkpoint without tokenizers (small models know whole words), and for one whose tokenizers cannot be
    read, which an error of its loading names.
    """
    pipeline = tokenizers(path)
    if pipeline is None:
        return None
    check = getattr(importlib.import_module(module), "check_words", None)
    if check is None:  # a family of the user's own
        return None
    return lambda prompt: check(pipeline, prompt, most)


@cache
def tokenizers(path: str) -> Any | None:
    """The pipeline of a checkpoint with its tokenizers and nothing else; None where it cannot be read."""
    if any(find_spec(package) is None for package in ("diffusers", "transformers")):
        return None
    import diffusers
    from transformers import ByT5Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

    try:
        index = read_json(path, "model_index.json") or {}
        kind: Any = getattr(diffusers, str(index.get("_class_name")), None)
        parts = {name: part for name, part in index.items() if isinstance(part, list)}
        in_processor = str(index.get("_class_name")) == "QwenImage21Pipeline"  # which has its tokenizer there
        named = in_processor or any(name.startswith("tokenizer") and part[0] for name, part in parts.items())
        if kind is None or not named:
            return None
        given: dict[str, Any] = {name: None for name in parts if not name.startswith("tokenizer")}
        if kind.__name__ == "HunyuanVideo15Pipeline":  # which asks its VAE when it is made
            return SimpleNamespace(
                tokenizer=read_part(Qwen2Tokenizer, path, subfolder="tokenizer"),
                tokenizer_2=read_part(ByT5Tokenizer, path, subfolder="tokenizer_2"),
            )
        if in_processor:
            from pipelines.visual.qwen_image import edit_processor

            given["processor"] = read_part(edit_processor("Qwen3VLProcessor"), path, subfolder="processor")
        if "Hunyuan" in kind.__name__ or "Skyreels" in kind.__name__:  # its class would split words in a way of its own
            given["tokenizer"] = read_part(PreTrainedTokenizerFast, path, subfolder="tokenizer")
        words = None
        if kind.__name__ == "Flux2Pipeline":  # whose tokenizer is a processor of images, too
            from pipelines.visual.flux2 import words_of

            given["tokenizer"], words = None, words_of(path)
        pipeline = read_part(kind, path, **given, use_safetensors=True, trust_remote_code=False)
        if words is not None:
            pipeline.tokenizer = words
        return pipeline
    except Exception:  # a damaged checkpoint raises whatever its reader uses, and again when it is loaded
        return None
