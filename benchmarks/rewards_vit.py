"""The reward of the benchmark of rewards: a vision transformer with random weights, as expensive as one of CLIP's.

A module of its own, so another process can import it without the rest of the benchmark.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmgrpo.types import Image, Output, Prompt

PATCH, SIDE = 32, 224


class Vit(nn.Module):
    """Images of 224 x 224 to one number: patches of 32, ``layers`` blocks of ``width`` channels."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        block = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).mT).mean(1))[:, 0]


@functools.cache
def model(width: int, layers: int, device: str) -> Vit:
    """The same weights in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Vit(width, layers).eval().requires_grad_(False).to(device)


def vit(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    width: int = 768,
    layers: int = 12,
    repeats: int = 1,
    device: str = "cpu",
) -> list[float]:
    """One number per image, from images scaled to 224 x 224, computed ``repeats`` times."""
    pixels = [output.pixels[None] for output in outputs if isinstance(output, Image)]
    values = torch.zeros(len(pixels))
    with torch.inference_mode():
        scaled = [nn.functional.interpolate(image.to(device), (SIDE, SIDE), mode="bilinear") for image in pixels]
        for _ in range(repeats):
            values = model(width, layers, device)(torch.cat(scaled))
    return values.double().tolist()


def waits(prompts: Sequence[Prompt], outputs: Sequence[Output], seconds: float = 0.1) -> list[float]:
    """A reward that takes its time, ``seconds`` per output, but no processor of this machine."""
    time.sleep(seconds * len(outputs))
    return [float(row % 2) for row in range(len(outputs))]
