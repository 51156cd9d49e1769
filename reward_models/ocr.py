"""Does the picture show the text that was asked for? Read by RapidOCR, offline.

The reward of Flow-GRPO (arXiv:2505.05470, section 4.1): 1 - edit distance / length of the text, at
least 0, after removing spaces and lowering case.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmgrpo.types import Image, Output, Prompt

SHORTEST_SIDE = 128
"""Smaller pictures are enlarged (nearest pixel) before reading; the detector misses tiny letters."""


def ocr(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Similarity in [0, 1] of the text read in each picture and ``prompt.answer`` (or ``prompt.meta["text"]``).

    A picture with pixels that are no numbers is NaN; an unreadable picture reads as the empty text,
    which is 0. A prompt without a text to compare with is an error.
    """
    return [_similarity(wanted_text(p), output) for p, output in zip(prompts, outputs, strict=True)]


def wanted_text(prompt: Prompt) -> str:
    """The text that the picture should show."""
    text = prompt.meta.get("text", prompt.answer)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"ocr: prompt '{prompt.id}' ({prompt.text!r}) has no text in answer or meta.text")
    return text


def _similarity(wanted: str, output: Output) -> float:
    if not isinstance(output, Image):
        raise TypeError(f"ocr scores pictures, got {type(output).__name__}")
    if not bool(output.pixels.isfinite().all()):
        return float("nan")
    from rapidfuzz.distance import Levenshtein

    target, seen = _plain(wanted), _plain(read(output))
    return max(0.0, 1 - Levenshtein.distance(target, seen) / len(target))


def read(image: Image) -> str:
    """All text in a picture, in reading order."""
    pixels = (image.pixels.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    factor = -(-SHORTEST_SIDE // min(pixels.shape[:2]))
    result = _engine()(pixels.repeat(factor, 0).repeat(factor, 1))
    return " ".join(result.txts or ())


def _plain(text: str) -> str:
    return "".join(text.lower().split())


@functools.cache
def _engine() -> Any:
    try:
        from rapidocr import RapidOCR
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"ocr needs the package '{error.name}': pip install 'mmgrpo[rewards]'", name=error.name
        ) from error
    return RapidOCR(params={"Global.log_level": "error"})
