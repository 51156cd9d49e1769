"""What an edit left of its source outside of a mask, and exact verifiers of edited scenes; no model.

The source is the first image of the prompt. The column ``mask`` of a row says what may change: a box ``[left, top,
right, bottom]`` in pixels of the source, a list of boxes, or an image of which the white part may.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

from mmgrpo.data.images import IMAGE_CACHE
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt
from reward_models.judges.source import images_of
from reward_models.rules.scenes import Detection, see_once

CHANGE = 0.03
"""Largest mean change of what an exact edit keeps, of values in [0, 1]."""

FORGOTTEN = 0.12
"""Mean change outside of the mask at which ``scene_edit_score`` is 0."""

NEAR = 4.0
"""Pixels between the centre of the mask of a scene and that of the object that was to be edited."""

RATIO = 1.02
"""Largest factor between the ratios of sides of a source and of its edit."""


def source_image(prompt: Prompt) -> Image:
    """The first image of a prompt, which is edited; ValueError where there is none."""
    check_source_image(prompt)
    return images_of(next(medium for medium in prompt.media if medium.kind == "image"))[0]


def check_source_image(prompt: Prompt, **_: object) -> None:
    """ValueError for a row without an image that is edited; reads no file."""
    if not any(medium.kind == "image" for medium in prompt.media):
        raise ValueError(f"prompt '{prompt.id}' has no image that is edited; give the row a column 'image'")


def check_mask(prompt: Prompt, **_: object) -> None:
    """ValueError for a row without a source, or whose ``mask`` is neither boxes nor an image."""
    check_source_image(prompt)
    mask = prompt.meta.get("mask")
    if not (isinstance(mask, str) and mask) and not boxes_of(mask):
        raise ValueError(
            f"prompt '{prompt.id}': mask: got {str(mask)[:80]}, expected a box [left, top, right, bottom] in pixels of "
            "the image, a list of boxes, or the path of an image whose white part may change"
        )


def check_scene(prompt: Prompt, **_: object) -> None:
    """ValueError for a row that is no edit of a scene (``mmgrpo.toy.edits``)."""
    check_mask(prompt)
    if not isinstance(prompt.answer, Mapping) or not {"colour", "shape"} <= prompt.answer.keys():
        raise ValueError(
            f"prompt '{prompt.id}': answer: got {str(prompt.answer)[:80]}, expected the colour and shape of the edited "
            "object, as mmgrpo.toy.edits writes them"
        )


def boxes_of(mask: object) -> list[tuple[float, float, float, float]]:
    """The boxes of a column ``mask``, none where it is something else."""
    boxes = mask if isinstance(mask, Sequence) and mask and isinstance(mask[0], Sequence) else [mask]
    read = []
    for box in boxes:
        if not isinstance(box, Sequence) or isinstance(box, str) or len(box) != 4:
            return []
        if not all(isinstance(side, int | float) and math.isfinite(side) for side in box):
            return []
        left, top, right, bottom = box
        if not (left < right and top < bottom):
            return []
        read.append((left, top, right, bottom))
    return read


def may_change(prompt: Prompt, size: tuple[int, int]) -> Bool[Tensor, "h w"]:
    """The mask of a prompt in its source of ``size`` (height, width)."""
    mask = prompt.meta.get("mask")
    if isinstance(mask, str):
        white = IMAGE_CACHE.read(mask).pixels.mean(0)
        if white.shape != size:
            raise ValueError(
                f"prompt '{prompt.id}': mask: got an image of {white.shape[1]} x {white.shape[0]} pixels, expected "
                f"{size[1]} x {size[0]} as the image that is edited"
            )
        return white > 0.5
    inside = torch.zeros(size, dtype=torch.bool)
    for left, top, right, bottom in boxes_of(mask):
        inside[max(0, math.floor(top)) : math.ceil(bottom), max(0, math.floor(left)) : math.ceil(right)] = True
    return inside


def change_outside(prompt: Prompt, output: Output, reward: str) -> float:
    """Mean over pixels outside of the mask, and colours, of |edit - source|, in [0, 1]; NaN where nothing is outside,
    or where pixels are not finite. A source of another size is brought to that of the edit."""
    if not isinstance(output, Image):
        raise TypeError(f"{reward}: got an output of kind {type(output).__name__}, expected an Image")
    pixels, source = output.pixels.detach().cpu().float(), source_image(prompt).pixels.float()
    outside = ~may_change(prompt, (source.shape[1], source.shape[2]))
    if source.shape != pixels.shape:
        source, outside = _resize(prompt, source, outside, pixels)
    if not pixels.isfinite().all() or not outside.any():
        return math.nan
    return float((pixels - source)[:, outside].abs().mean())


def _resize(
    prompt: Prompt, source: Float[Tensor, "3 h w"], outside: Bool[Tensor, "h w"], pixels: Float[Tensor, "3 H W"]
) -> tuple[Float[Tensor, "3 H W"], Bool[Tensor, "H W"]]:
    """Source and what is outside of its mask in the size of an edit: pixels that no part of the mask falls on."""
    (height, width), (rows, columns) = source.shape[1:], pixels.shape[1:]
    if not 1 / RATIO <= (height * columns) / (width * rows) <= RATIO:
        raise ValueError(
            f"prompt '{prompt.id}': the image that is edited has {width} x {height} pixels and the edit {columns} x "
            f"{rows}, expected equal ratios of sides, so their pixels can be compared; set model.height and "
            "model.width accordingly, or crop the image"
        )
    size = (rows, columns)
    small = interpolate(source[None], size, mode="bilinear", antialias=True, align_corners=False)[0]
    inside = interpolate((~outside).float()[None, None], size, mode="bilinear", antialias=True, align_corners=False)
    return small.clamp(0, 1), inside[0, 0] <= 1e-6


@reward("Image", reads=("media", "meta.mask"), row="reward_models.rules.edits:check_mask")
def unchanged_outside(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 - mean |edit - source| outside of the column ``mask``, 1 exactly where nothing changed there.

    The source itself has 1 as well: multiply it with a reward of the instruction, or watch both.
    """
    return [
        1 - change_outside(prompt, output, "unchanged_outside") for prompt, output in zip(prompts, outputs, strict=True)
    ]


@reward("Image", reads=("answer", "media", "meta.mask"), row="reward_models.rules.edits:check_scene")
def scene_edit_follows(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the object that was to be edited has its new colour and its shape, otherwise 0."""
    return [float(all(fit)) for fit, _, _ in _compare(prompts, outputs, "scene_edit_follows")]


@reward("Image", reads=("answer", "media", "meta.mask"), row="reward_models.rules.edits:check_scene")
def scene_edit_all(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 if the object has its new colour and its shape, there are as many objects as before, and outside of the mask
    values changed by at most 0.03 in the mean, otherwise 0."""
    rows = _compare(prompts, outputs, "scene_edit_all")
    return [
        math.nan if math.isnan(change) else float(all(fit) and same and change <= CHANGE) for fit, same, change in rows
    ]


@reward("Image", reads=("answer", "media", "meta.mask"), row="reward_models.rules.edits:check_scene")
def scene_edit_score(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A graded reward for training: sqrt(followed kept), 0 for the source and for an image painted anew.

    followed is the mean of colour and shape of the object, 0 without its colour; kept max(0, 1 - change / 0.12), with
    the mean change outside of the mask.
    """
    rows = _compare(prompts, outputs, "scene_edit_score")
    return [
        math.nan if math.isnan(change) else (fit[0] * (1 + fit[1]) / 2 * max(0.0, 1 - change / FORGOTTEN)) ** 0.5
        for fit, _, change in rows
    ]


REWARDS: Mapping[str, Callable[[Sequence[Prompt], Sequence[Output]], list[float]]] = {
    fn.__name__: fn for fn in (unchanged_outside, scene_edit_follows, scene_edit_all, scene_edit_score)
}
"""Those that judge edits of scenes, by name."""


def _compare(
    prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str
) -> list[tuple[tuple[bool, bool], bool, float]]:
    """Of each output whether colour and shape of the edited object are right, whether there are as many objects as in
    the source, and the change outside of the mask."""
    rows = []
    for prompt, output in zip(prompts, outputs, strict=True):
        check_scene(prompt)
        change = change_outside(prompt, output, reward)
        if math.isnan(change):
            rows.append(((False, False), False, change))
            continue
        assert isinstance(output, Image)
        after, before = (
            see_once(image.pixels.detach().cpu().float().permute(1, 2, 0).numpy())
            for image in (output, source_image(prompt))
        )
        edited = _find_edited(prompt, after)
        fit = (
            edited is not None and edited.colour == prompt.answer["colour"],
            edited is not None and edited.shape == prompt.answer["shape"],
        )
        rows.append((fit, len(after) == len(before), change))
    return rows


def _find_edited(prompt: Prompt, detections: Sequence[Detection]) -> Detection | None:
    """The object at the place of the mask, None where there is none."""
    ((left, top, right, bottom),) = boxes_of(prompt.meta["mask"])
    x, y = (left + right) / 2, (top + bottom) / 2
    near = [detection for detection in detections if max(abs(detection.x - x), abs(detection.y - y)) <= NEAR]
    return min(near, key=lambda detection: abs(detection.x - x) + abs(detection.y - y), default=None)
