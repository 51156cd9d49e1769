"""Rewards of images of scenes that are differentiable in their pixels, for policies that draw with gradient."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.scoring.manifest import reward
from mmgrpo.toy.scenes import BACKGROUND, COLOURS, SIZE
from mmgrpo.types import Image, Output, Prompt

TEMPERATURE = 0.03
"""Of squared distances in RGB from 0 to 1, by which pixels belong to colours."""
SMALLEST = 8
"""Least coloured area of which the share is taken, in pixels of an image of 32."""


@reward("Image", range=(-1, 1), reads=("text",), gradient="reward_models.rules.palettes:differentiable", version=2)
def scene_palette(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Share of the coloured area that has the colours which the prompt names, minus the RMS distance to the colours.

    It is differentiable in the pixels and says nothing of shapes, numbers and positions: watch ``scene_all`` beside it.
    """
    values = []
    for prompt, output in zip(prompts, outputs, strict=True):
        if not isinstance(output, Image):
            raise TypeError(f"scene_palette: got an output of kind {type(output).__name__}, expected an Image")
        values.append(float(palette([prompt], output.pixels.float()[None])))
    return values


def differentiable() -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``scene_palette`` as a function of pixels."""
    return palette


def palette(prompts: Sequence[Prompt], pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, " N"]:
    """sum_p w_requested / max(sum_p (1 - w_white), 8 pixels of 32 x 32) - sqrt(mean_p sum_c w_c d_c^2), with d_c the
    distance of a pixel to a colour and w = softmax(-d^2 / temperature)."""
    colours = torch.tensor([*COLOURS.values(), BACKGROUND], device=pixels.device) / 255
    distance = (pixels[:, None] - colours[None, :, :, None, None]).square().sum(2)
    weight = (-distance / TEMPERATURE).softmax(1)
    requested = weight.new_zeros(len(prompts), len(colours))
    for row, prompt in enumerate(prompts):
        named = set(re.findall(r"\w+", prompt.text.lower())) & set(COLOURS)
        if not named:
            raise ValueError(f"scene_palette: prompt '{prompt.text}' names none of {', '.join(COLOURS)}")
        requested[row, [[*COLOURS].index(colour) for colour in named]] = 1
    area = weight.sum((2, 3))
    least = SMALLEST * pixels.shape[2] * pixels.shape[3] / SIZE**2
    share = (area * requested).sum(1) / (area.sum(1) - area[:, -1]).clamp_min(least)
    # Pixels of exactly the colours have distance 0, where the root has no slope.
    return share - ((weight * distance).sum(1).mean((1, 2)) + 1e-8).sqrt()


def cleanness() -> Callable[[Sequence[Prompt], Tensor], Tensor]:
    """``scene_clean`` as a function of pixels: mean of max(0, 1 - distance / 0.25) to the nearest colour."""

    def score(prompts: Sequence[Prompt], pixels: Tensor) -> Tensor:
        colours = torch.tensor([*COLOURS.values(), BACKGROUND], device=pixels.device) / 255
        squared = (pixels[:, None] - colours[None, :, :, None, None]).square().sum(2).amin(1)
        return (1 - (squared + 1e-12).sqrt() / 0.25).clamp(min=0).mean((1, 2))

    return score
