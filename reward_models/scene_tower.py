"""A small network that looks at an image of a scene with its sentence in mind, trained together with its head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.toy.scenes import SIZE, vocabulary
from mmgrpo.types import Image, Output, Prompt

WORDS, LETTERS, CHANNELS = 12, 24, 64
"""Longest sentence in words; width of a word's embedding; channels of the convolutions."""


class SceneTower(nn.Module):
    """Three convolutions over pixels and coordinates, each scaled and shifted by the sentence (FiLM, arXiv:1709.07871).

    Words are embedded with their places, so "a red circle left of a blue square" differs from its reverse. The
    features are the mean and the maximum over positions, of ``width`` in all.
    """

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.words = {word: number for number, word in enumerate(vocabulary(), start=1)}
        self.embedding = nn.Embedding(len(self.words) + 1, LETTERS, padding_idx=0)
        self.sentence = nn.Sequential(nn.Linear(WORDS * LETTERS, 256), nn.SiLU(), nn.Linear(256, 3 * 2 * CHANNELS))
        sizes = ((5, CHANNELS, 2), (CHANNELS + 2, CHANNELS, 2), (CHANNELS, CHANNELS, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, stride, padding=1) for a, b, stride in sizes)
        self.norms = nn.ModuleList(nn.GroupNorm(8, CHANNELS, affine=False) for _ in sizes)
        self.out = nn.Linear(2 * CHANNELS, width)

    def inputs(
        self, prompts: Sequence[Prompt], outputs: Sequence[Output]
    ) -> tuple[Int[Tensor, "N words"], Float[Tensor, "N 3 32 32"]]:
        """``numbers`` of the words, and pixels resized to 32."""
        images = []
        for output in outputs:
            if not isinstance(output, Image):
                raise TypeError(f"preference: got an output of kind {type(output).__name__}, expected an Image")
            images.append(resize(output.pixels[None]))
        return self.numbers(prompts), torch.cat(images)

    def numbers(self, prompts: Sequence[Prompt]) -> Int[Tensor, "N words"]:
        """Numbers of the words, 0 for unknown ones and after the end."""
        sentences = [[self.words.get(word, 0) for word in prompt.text.lower().split()[:WORDS]] for prompt in prompts]
        return torch.tensor([row + [0] * (WORDS - len(row)) for row in sentences]).reshape(-1, WORDS)

    def forward(
        self, words: Int[Tensor, "N words"], pixels: Float[Tensor, "N 3 height width"]
    ) -> Float[Tensor, "N width"]:
        scales = self.sentence(self.embedding(words).flatten(1)).view(-1, 3, 2, CHANNELS, 1, 1)
        x = 2 * pixels - 1
        for layer, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            if layer < 2:
                x = torch.cat([x, _coordinates(x)], 1)
            x = functional.silu(norm(convolution(x)) * (1 + scales[:, layer, 0]) + scales[:, layer, 1])
        return self.out(torch.cat([x.mean((2, 3)), x.amax((2, 3))], 1))


def resize(pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N 3 32 32"]:
    """Pixels resized to 32."""
    return functional.interpolate(pixels, (SIZE, SIZE), mode="bilinear", antialias=True)


def _coordinates(x: Float[Tensor, "N C height width"]) -> Float[Tensor, "N 2 height width"]:
    """Rows and columns in [-1, 1]."""
    rows, columns = (torch.linspace(-1, 1, size, device=x.device) for size in x.shape[2:])
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij")).expand(len(x), -1, -1, -1)
