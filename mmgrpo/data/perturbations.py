"""Changes of what a prompt shows, under which the same decisions are scored or sampled again.

A change is a pure function of (prompt, seen, seed): ``seen`` are (height, width) in pixels at which the model saw each
of the prompt's media, and all randomness comes from ``seed``. Nothing is opened here: what is to be hidden is an option
of the medium (``Mask``), which whoever reads it applies, so a change suits every model. A prompt that has nothing
to change is returned itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, TypeAlias

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import interpolate

from mmgrpo.config.ranges import COUNT, POSITIVE_FRACTION
from mmgrpo.config.registry import bind, block, table_of
from mmgrpo.randomness import derive
from mmgrpo.types import Media, Prompt

CHANGES = table_of("change")
"""Changes by name, as the parameter ``change`` of a term names them."""


Sizes: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Mask:
    """Patches of an image that are filled with one level; in a clip the same ones in all frames, since its other
    frames would show what is hidden in one."""

    ratio: float
    """Fraction of the patches."""
    level: float
    """Level of hidden pixels in [0, 1]."""
    seed: int = 0
    patch: int = 14
    """Side of a patch in pixels of the image as the model sees it."""
    seen: tuple[int, int] | None = None
    """(height, width) at which the model sees the image; None: as it is."""

    def apply(self, pixels: Shaped[Tensor, "*frames 3 height width"]) -> Shaped[Tensor, "*frames 3 height width"]:
        """The pixels, in [0, 1] or as bytes, with ``round(ratio * patches)`` patches hidden."""
        height, width = pixels.shape[-2:]
        seen = self.seen or (height, width)
        rows, columns = (-(-side // self.patch) for side in seen)
        order = torch.randperm(rows * columns, generator=torch.Generator("cpu").manual_seed(self.seed))
        hidden = torch.zeros(rows * columns, dtype=torch.bool)
        hidden[order[: round(self.ratio * len(order))]] = True
        y, x = (
            ((torch.arange(side) + 0.5) * shown / (side * self.patch)).long()
            for side, shown in zip((height, width), seen, strict=True)
        )
        level = round(255 * self.level) if pixels.dtype == torch.uint8 else self.level
        return pixels.masked_fill(hidden.view(rows, columns)[y][:, x].to(pixels.device), level)


@dataclass(frozen=True)
class Pixels:
    """An image of fewer pixels, shown as large as before; a clip frame by frame."""

    ratio: float
    """Of its sides."""

    def apply(self, pixels: Shaped[Tensor, "*frames 3 height width"]) -> Shaped[Tensor, "*frames 3 height width"]:
        """The pixels, in [0, 1] or as bytes, bilinearly made smaller and enlarged again by repetition."""
        height, width = pixels.shape[-2:]
        small = max(1, round(self.ratio * height)), max(1, round(self.ratio * width))
        frames = pixels.reshape(-1, 3, height, width).to(torch.float32)
        frames = interpolate(frames, small, mode="bilinear", antialias=True)
        frames = interpolate(frames, (height, width), mode="nearest").reshape(pixels.shape)
        return frames.round().to(pixels.dtype) if pixels.dtype == torch.uint8 else frames.to(pixels.dtype)


def mask_pixels(
    media: Media, pixels: Shaped[Tensor, "*frames 3 height width"]
) -> Shaped[Tensor, "*frames 3 height width"]:
    """The pixels of a medium as a change hides them; unchanged without one."""
    return media.options["mask"].apply(pixels) if "mask" in media.options else pixels


@block(CHANGES)
def mask_patches(
    prompt: Prompt,
    seen: Sizes,
    seed: int,
    *,
    ratio: Annotated[float, POSITIVE_FRACTION] = 0.6,
    patch: Annotated[int, COUNT] = 14,
) -> Prompt:
    """Images and clips with a random ``ratio`` of their patches black, each of ``patch`` x ``patch`` pixels as the
    model sees them. PAPO (arXiv:2507.06448), section 3.2, with its ratio and patch size; clips are ours."""

    def hide(media: Media, index: int) -> Media:
        if media.kind == "audio":
            return media
        size = seen[index] if index < len(seen) else None
        mask = Mask(ratio, level=0.0, seed=derive(seed, "mask", index), patch=patch, seen=size)
        return replace(media, options={**media.options, "mask": mask})

    return _with_media(prompt, hide)


@block(CHANGES)
def pixelated(prompt: Prompt, seen: Sizes, seed: int, *, ratio: Annotated[float, POSITIVE_FRACTION] = 0.1) -> Prompt:
    """Images and clips at ``ratio`` of their sides, enlarged again: what is left is layout and colour, without detail
    (visual advantage, arXiv:2605.21924; .1)."""

    def degrade(media: Media, index: int) -> Media:
        return media if media.kind == "audio" else replace(media, options={**media.options, "mask": Pixels(ratio)})

    return _with_media(prompt, degrade)


@block(CHANGES)
def blank(prompt: Prompt, seen: Sizes, seed: int) -> Prompt:
    """Images and clips all grey, recordings silent: what is left is the text, in a prompt of the same form."""
    return _with_media(prompt, lambda media, _: replace(media, options={**media.options, "mask": Mask(1.0, level=0.5)}))


@block(CHANGES)
def shuffle_frames(prompt: Prompt, seen: Sizes, seed: int) -> Prompt:
    """The frames of clips in random order, as in T-GRPO (Video-R1, arXiv:2503.21776, section 3.2)."""
    order = derive(seed, "shuffle", prompt.id)

    def shuffle(media: Media, index: int) -> Media:
        return replace(media, options={**media.options, "shuffle": order}) if media.kind == "video" else media

    return _with_media(prompt, shuffle)


def _with_media(prompt: Prompt, change: Callable[[Media, int], Media]) -> Prompt:
    media = [change(medium, index) for index, medium in enumerate(prompt.media)]
    if all(new is old for new, old in zip(media, prompt.media, strict=True)):
        return prompt
    following = iter(media)
    turns = tuple(
        replace(turn, parts=tuple(part if isinstance(part, str) else next(following) for part in turn.parts))
        for turn in prompt.turns
    )
    return replace(prompt, turns=turns)


def check_changes(scores: Iterable[str]) -> None:
    """Raise ValueError for a score ``NAME@CHANGE`` whose change is unknown or has wrong parameters."""
    for name in scores:
        if "@" in name:
            bind(name.partition("@")[2], CHANGES, "algorithm.terms: change")
