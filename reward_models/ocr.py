"""Accuracy of rendered text, read by RapidOCR offline.

The reward of Flow-GRPO (arXiv:2505.05470, section 4.1): max(0, 1 - edit distance / length of the text), both texts in
lower case and without spaces.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmgrpo.config.extras import install
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt

SHORTEST_SIDE = 128
"""Images with a shorter side are enlarged (nearest pixel) first, since the detector misses small letters."""


@reward(
    "Image",
    reads=("answer", "meta.text"),
    packages=("rapidocr", "onnxruntime", "rapidfuzz"),
    extra="rewards",
    source="Flow-GRPO, arXiv:2505.05470",
    row="reward_models.ocr:target_text",
)
def ocr(prompts: Sequence[Prompt], outputs: Sequence[Output], from_quotes: bool = False) -> list[float]:
    """Similarity in [0, 1] of the text recognized in each image and ``prompt.answer`` (or ``prompt.meta["text"]``).

    ``from_quotes`` takes the text from the quotation marks in the prompt where a row has neither, as in the prompts of
    Flow-GRPO: 'New York Skyline with "Diffusion" written with fireworks'. An image without recognizable text scores 0,
    one with non-finite pixels NaN. A prompt without a text to compare with is an error.
    """
    return [_similarity(target_text(p, from_quotes), output) for p, output in zip(prompts, outputs, strict=True)]


def target_text(prompt: Prompt, from_quotes: bool = False) -> str:
    """The text that the image should show; several quoted ones are joined by spaces, in their order."""
    text = prompt.meta.get("text", prompt.answer)
    if text is None and from_quotes:
        text = " ".join(quotations(prompt.text)) or None
    if not isinstance(text, str) or not text.strip():
        how = "" if from_quotes else "; ocr(from_quotes=True) takes it from the quotation marks in the prompt"
        where = "answer, meta.text or quotation marks in the prompt" if from_quotes else "answer or meta.text"
        raise ValueError(
            f"ocr: prompt '{prompt.id}' ({prompt.text!r}): got {text!r}, expected the text to render in {where}{how}"
        )
    return text


def quotations(text: str) -> list[str]:
    """What stands in quotation marks; in single ones only where there are no others."""
    hits = re.findall(r"\"([^\"]+)\"|\u201c([^\u201d]+)\u201d|\u00ab([^\u00bb]+)\u00bb|\u300c([^\u300d]+)\u300d", text)
    parts = ["".join(groups).strip() for groups in hits]
    return [part for part in parts if part] or re.findall(r"(?<!\w)['\u2018]([^'\u2019]+)['\u2019](?!\w)", text)


def _similarity(text: str, output: Output) -> float:
    if not isinstance(output, Image):
        raise TypeError(f"ocr: got an output of kind {type(output).__name__}, expected an Image")
    if not bool(output.pixels.isfinite().all()):
        return float("nan")
    from rapidfuzz.distance import Levenshtein

    target, recognized = _plain(text), _plain(read(output))
    return max(0.0, 1 - Levenshtein.distance(target, recognized) / len(target))


def read(image: Image) -> str:
    """All text in an image, in reading order."""
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
            f"ocr needs the package '{error.name}': {install('rewards')}", name=error.name
        ) from error
    return RapidOCR(params={"Global.log_level": "error"})
