"""HPSv3 (arXiv:2508.03789): Qwen2-VL-7B with a head of three layers at the token <|Reward|>; the score is its mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from math import inf

import torch
from torch import nn

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import load_exactly, read_tensors, weight_file
from reward_models.pixels import image_outputs
from reward_models.vlm.instructions import hpsv3_instruction
from reward_models.vlm.qwen2_vl import (
    IMAGE_TOKEN,
    QwenScorer,
    build,
    current_key,
    image_pixels,
    precision_of,
    read_base,
)

WEIGHTS, FILE = "MizzenAI/HPSv3", "HPSv3.safetensors"
BASE = "Qwen/Qwen2-VL-7B-Instruct"
TOKEN = "<|Reward|>"
PIXELS = 256 * 28 * 28
"""Every image is resized to about as many."""


@reward(
    "Image",
    range=(-inf, inf),
    scale="mean of a score, about -0.2 to 15",
    reads=("text",),
    packages=("transformers",),
    extra="vlm",
    weights={"MizzenAI/HPSv3": ("HPSv3.safetensors",), "Qwen/Qwen2-VL-7B-Instruct": ("config.json", "tokenizer.json")},
    licence="MIT; its base Apache-2.0",
    source="HPSv3, arXiv:2508.03789",
)
def hpsv3(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str = WEIGHTS,
    base: str = BASE,
    instruction: str = "",
    dtype: str = "",
    device: str = "cpu",
) -> list[float]:
    """HPSv3 of each image for its prompt: mu, about -0.2 to 15 and without bounds; NaN for broken pixels.

    ``weights`` has ``HPSv3.safetensors``, which holds the whole model; of ``base`` only configuration and tokenizer are
    read. The instruction is that of the package hpsv3, or of the file ``instruction``. Images above 15 are often a
    mess: log another reward as well. ``dtype``: float32, bfloat16 or float16; by default float32 on a CPU and
    bfloat16 elsewhere, whose scores differ.
    """
    model, text = load(weights, base, device, dtype), _instruction(instruction)
    values = []
    for prompt, image in zip(prompts, image_outputs(outputs, "hpsv3"), strict=True):
        if image is None:
            values.append(math.nan)
            continue
        pixels = [image_pixels(image, PIXELS, PIXELS)]
        values.append(
            float(model.logits(text.replace("{text_prompt}", prompt.text), pixels, IMAGE_TOKEN, "hpsv3")[0, 0])
        )
    return values


_instruction = functools.cache(hpsv3_instruction)


@functools.cache
def load(weights: str, base: str, device: str, dtype: str = "") -> QwenScorer:
    """The published network; every key of its file is used, but for the language head."""
    file = weight_file(weights, FILE, "hpsv3")
    config, tokenizer = read_base(base, [TOKEN], "hpsv3")
    precision = precision_of(dtype, device, "hpsv3")
    network = build(config, head(config.text_config.hidden_size), device, precision)
    load_exactly(network, read_tensors(file, "hpsv3"), file, "hpsv3", current_key)
    return QwenScorer(network, tokenizer, (TOKEN,), torch.device(device))


def head(width: int) -> nn.Sequential:
    """The published head, "ranknet": mean and log-deviation of a score. The third layer is a dropout there."""
    return nn.Sequential(
        nn.Linear(width, 1024), nn.ReLU(), nn.Identity(), nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 2)
    )
