"""Prompts whose media are taken away: what a model still scores then, it guessed from the words alone.

A blank picture or clip of the same size and length stands in each medium's place, so that the prompt keeps its form,
its number of tokens and every position: only what there was to see is gone. Leaving the media out would ask another
question, in a form that the model may never have met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmgrpo.types import Media, Prompt

GREY = 0.5
"""Level of every pixel, the middle of [0, 1]."""


def blanked(prompts: Sequence[Prompt]) -> list[Prompt]:
    """The prompts with blank media, those without as they are; nothing where none shows pictures or clips."""
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
    """A grey picture or clip of the same size, number of frames and duration."""
    import torch

    from mmgrpo.types import Image, Video
    from pipelines.vlm.media import measure

    size = measure(media)
    pixel = torch.full((), GREY)  # expanded, so that a long clip takes no memory
    if media.kind == "image":
        return replace(media, source=Image(pixel.expand(3, size.height, size.width)))
    if media.kind == "video":
        frames = pixel.expand(size.frames, 3, size.height, size.width)
        return replace(media, source=Video(frames, size.frames / size.seconds))
    raise ValueError(f"a blank {media.kind} cannot be made; expected image or video")
