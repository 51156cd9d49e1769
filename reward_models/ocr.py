"""Accuracy of rendered text, read by RapidOCR offline.

The reward of Flow-GRPO (arXiv:2505.05470, section 4.1): max(0, 1 - edit distance / length of the text), both texts in
lower case and without spaces.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmgrpo.types import Image, Output, Prompt

SHORTEST_SIDE = 128
"""Pictures with a shorter side are enlarged (nearest pixel) first, since the detector misses small letters."""


def ocr(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Similarity in [0, 1] of the text recognized in each picture and ``prompt.answer`` (or ``prompt.meta["text"]``).

    A picture without recognizable text scores 0, one with non-finite pixels NaN. A prompt without a text to compare
    with is an error.
    """
    return [_similarity(target_text(p), output) for p, output in zip(prompts, outputs, strict=True)]


def target_text(prompt: Prompt) -> str:
    """The text that the picture should show."""
    text = prompt.meta.get("text", prompt.answer)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(
            f"ocr: prompt '{prompt.id}' ({prompt.text!r}): got {text!r}, expected the text to render in answer or "
            "meta.text"
        )
    return text


def _similarity(text: str, output: Output) -> float:
    if not isinstance(output, Image):
        raise TypeError(f"ocr: got an output of kind {type(output).__name__}, expected an Image")
    if not bool(output.pixels.isfinite().all()):
        return float("nan")
    from rapidfuzz.distance import Levenshtein

    target, recognized = _plain(text), _plain(read(output))
    return max(0.0, 1 - Levenshtein.distance(target, recognized) / len(target))


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
