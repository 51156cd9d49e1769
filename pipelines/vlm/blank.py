"""Prompts with blank media: rewards that a model still obtains come from the text alone.

Each image or clip is replaced by a grey one of the same size and duration, and a sound beside them by silence, so
the prompt keeps its form, its number of tokens and all positions. Prompts without any media would be out of
distribution for the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmgrpo.types import Media, Prompt

GREY = 0.5
"""Level of every pixel, the middle of [0, 1]."""


def with_blank_media(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with their media replaced by blank ones; empty where no prompt has an image or clip."""
    if not any(medium.kind != "audio" for prompt in prompts for medium in prompt.media):
        return []
    return [
        replace(
            prompt,
            turns=tuple(
                replace(turn, parts=tuple(part if isinstance(part, str) else blank(part) for part in turn.parts))
                for turn in prompt.turns
            ),
        )
        for prompt in prompts
    ]


def blank(media: Media) -> Media:
    """A grey image or clip with the same size, number of frames and duration, or a silent recording."""
    import torch

    from mmgrpo.data.perturbations import Mask
    from mmgrpo.types import Image, Video
    from pipelines.vlm.media import measure

    if media.kind == "audio":
        return replace(media, options={**media.options, "mask": Mask(1.0, level=GREY)})
    size = measure(media)
    pixel = torch.full((), GREY)  # expanded, so a long clip takes no memory
    if media.kind == "image":
        return replace(media, source=Image(pixel.expand(3, size.height, size.width)))
    frames = pixel.expand(size.frames, 3, size.height, size.width)
    return replace(media, source=Video(frames, size.frames / size.seconds))
