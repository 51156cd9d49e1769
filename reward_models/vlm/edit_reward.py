"""EditReward (arXiv:2509.26346): Qwen2.5-VL-7B with two heads at the token <|Reward|>, of source, edit and instruction:
how well the instruction was followed, and how good the edit looks."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from math import inf
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt
from reward_models.checkpoints import load_exactly, read_tensors, weight_file
from reward_models.pixels import image_outputs
from reward_models.rules.edits import source_image
from reward_models.vlm.hpsv3 import PIXELS, TOKEN, head
from reward_models.vlm.instructions import texts
from reward_models.vlm.qwen2_vl import (
    IMAGE_TOKEN,
    QwenScorer,
    build,
    current_key,
    image_pixels,
    precision_of,
    read_base,
)

FILE = "model.safetensors"
BASE = "Qwen/Qwen2.5-VL-7B-Instruct"
SIDES = {"following": "INSTRUCTION_EDIT_FOLLOWING", "quality": "INSTRUCTION_EDIT_QUALITY"}
"""The heads in their order, and the names of their instructions in the published file."""
END = f"\nPlease provide the overall ratings of this image: {TOKEN}\n\nEND\n"
"""What follows every instruction (prompt_with_special_token)."""


class Heads(nn.Module):
    """Both heads, each with mean and log-deviation of its score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head_0, self.head_1 = head(width), head(width)

    def forward(self, hidden: Float[Tensor, "k width"]) -> Float[Tensor, "k 2 2"]:
        return torch.stack([self.head_0(hidden), self.head_1(hidden)], 1)


@reward(
    "Image",
    range=(-inf, inf),
    scale="mean of a score, about -1.4 to 1.8",
    reads=("text", "media"),
    row="reward_models.rules.edits:check_source_image",
    packages=("transformers",),
    extra="vlm",
    weights={BASE: ("config.json", "tokenizer.json")},
    licence="of the heads not stated; its base Apache-2.0",
    source="EditReward, arXiv:2509.26346",
)
def edit_reward(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    weights: str,
    instructions: str,
    side: str = "mean",
    base: str = BASE,
    dtype: str = "",
    device: str = "cpu",
) -> list[float]:
    """EditReward's ``side`` of each edit: following, quality, or the mean of both; unbounded, NaN for broken pixels.

    ``weights`` (a folder, or a hub id) has ``model.safetensors``, which holds the whole model; of ``base`` only
    configuration and tokenizer are read. ``instructions`` is the published file (EditReward/dataset/prompts.py), which
    is read and not run. ``dtype`` as for ``hpsv3``.
    """
    if side not in (*SIDES, "mean"):
        raise ValueError(f"edit_reward: side: got {side!r}, expected mean, {', '.join(SIDES)}")
    chosen = [*SIDES] if side == "mean" else [side]
    model, texts = load(weights, base, device, dtype), _instructions(instructions)
    values = []
    for prompt, image in zip(prompts, image_outputs(outputs, "edit_reward"), strict=True):
        if image is None:
            values.append(math.nan)
            continue
        shown = [image_pixels(picture, PIXELS, PIXELS) for picture in (source_image(prompt), image)]
        scores = [
            float(
                model.logits(_question(texts[name], prompt), shown, IMAGE_TOKEN, "edit_reward")[
                    0, [*SIDES].index(name), 0
                ]
            )
            for name in chosen
        ]
        values.append(math.fsum(scores) / len(scores))
    return values


def _question(instruction: str, prompt: Prompt) -> str:
    return instruction.replace("{text_prompt}", prompt.text) + END


@functools.cache
def _instructions(file: str) -> dict[str, str]:
    """The instruction of each head, of the published file of Python."""
    if not file.endswith(".py"):
        raise ValueError(f"edit_reward: instructions: got {file!r}, expected EditReward/dataset/prompts.py")
    return dict(zip(SIDES, texts(Path(file).expanduser(), [*SIDES.values()], "edit_reward"), strict=True))


@functools.cache
def load(weights: str, base: str, device: str, dtype: str = "") -> QwenScorer:
    """The published network; every key of its file is used, but for the language head."""
    file = weight_file(weights, FILE, "edit_reward")
    config, tokenizer = read_base(base, [TOKEN], "edit_reward")
    precision = precision_of(dtype, device, "edit_reward")
    network = build(config, Heads(config.text_config.hidden_size), device, precision)
    load_exactly(network, read_tensors(file, "edit_reward"), file, "edit_reward", network_key)
    return QwenScorer(network, tokenizer, (TOKEN,), torch.device(device))


def network_key(key: str) -> str | None:
    """The name in ``QwenReward`` of a published one."""
    return f"rm_head.{key.removeprefix('rm_heads.')}" if key.startswith("rm_heads.") else current_key(key)
