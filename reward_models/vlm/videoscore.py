"""VideoScore (arXiv:2406.15252): Idefics2 with a linear head at the last token rates five sides of a clip, each 1 to 4.

The published folder (TIGER-Lab/VideoScore, and -v1.1) has the weights, the processor and the configuration. The
instruction that it was trained with stands in its model card; give it as a file, with ``{text_prompt}`` in it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt, Video
from reward_models.checkpoints import load_exactly, read_tensors
from reward_models.pixels import to_pil
from reward_models.vlm.instructions import texts
from reward_models.vlm.qwen2_vl import folder_of, precision_of

WEIGHTS, CONSTANT = "TIGER-Lab/VideoScore", "REGRESSION_QUERY_PROMPT"
SIDES = ("visual_quality", "temporal_consistency", "dynamic_degree", "text_alignment", "factual_consistency")
MARK = "<image>"


@dataclass(frozen=True)
class VideoScore:
    """The frozen network with its processor."""

    network: Any
    processor: Any
    device: torch.device

    @torch.no_grad()
    def scores(self, text: str, frames: Sequence[Any]) -> list[float]:
        """The five numbers of a clip, whose frames stand after the text."""
        whole = text + f"{MARK} " * (len(frames) - text.count(MARK))
        inputs = self.processor(text=[whole], images=[list(frames)], return_tensors="pt").to(self.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.network["score"].weight.dtype)
        hidden = self.network["model"](**inputs).last_hidden_state
        return self.network["score"](hidden[0, -1]).float().tolist()


@reward(
    "Video",
    range=(-inf, inf),
    scale="about 1 to 4",
    reads=("text",),
    packages=("transformers",),
    extra="vlm",
    weights={"TIGER-Lab/VideoScore": ("config.json", "preprocessor_config.json")},
    licence="MIT",
    source="VideoScore, arXiv:2406.15252",
)
def videoscore(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    instruction: str,
    side: str = "mean",
    frames: int = 16,
    weights: str = WEIGHTS,
    dtype: str = "",
    device: str = "cpu",
) -> list[float]:
    """One ``side`` of each clip, or the mean of all five, about 1 to 4; NaN for frames that are not finite.

    ``frames`` are seen, evenly from the first on: 16 for version 1, 48 for 1.1. ``instruction`` is the file of the
    published text. ``dtype``: float32, bfloat16 or float16; by default float32 on a CPU and bfloat16 elsewhere, whose
    scores differ.
    """
    if side not in (*SIDES, "mean") or frames < 1:
        raise ValueError(
            f"videoscore: got side={side!r} and frames={frames}, expected a positive number, and one of mean, "
            f"{', '.join(SIDES)}"
        )
    model, [text] = load(weights, device, dtype), texts(Path(instruction).expanduser(), [CONSTANT], "videoscore")
    values = []
    for prompt, output in zip(prompts, outputs, strict=True):
        if not isinstance(output, Video):
            raise TypeError(f"videoscore: got an output of kind {type(output).__name__}, expected a Video")
        if not len(output.frames) or not bool(output.frames.isfinite().all()):
            values.append(math.nan)
            continue
        step = max(1.0, len(output.frames) / frames)
        shown = [to_pil(Image(output.frames[int(n * step)])) for n in range(min(frames, len(output.frames)))]
        scores = model.scores(text.replace("{text_prompt}", prompt.text), shown)
        values.append(math.fsum(scores) / len(SIDES) if side == "mean" else scores[SIDES.index(side)])
    return values


@functools.cache
def load(weights: str, device: str, dtype: str = "") -> VideoScore:
    """The published network; every key of its files is used."""
    from transformers import AutoConfig, AutoProcessor, Idefics2Model

    folder = folder_of(weights, "videoscore", ("*.json", "*.safetensors", "tokenizer*"))
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        raise FileNotFoundError(f"videoscore: weights: {folder} has no config.json or no .safetensors, expected both")
    tensors = {}
    for file in files:
        tensors |= read_tensors(file, "videoscore")
    config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    processor: Any = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    score = nn.Linear(config.text_config.hidden_size, len(SIDES), bias="score.bias" in tensors)
    network = nn.ModuleDict({"model": Idefics2Model(config), "score": score})
    network = network.to(device, precision_of(dtype, device, "videoscore"))
    network = load_exactly(network, tensors, folder, "videoscore")
    return VideoScore(network, processor, torch.device(device))
