"""A detector of what the embedded scenes show, for the rules of GenEval: it needs no weights, and sees nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.toy.scenes import SIZE
from mmgrpo.types import Image
from reward_models.objects.geneval import Detected
from reward_models.rules.scenes import see


def detect(images: Sequence[Image]) -> list[list[Detected]]:
    """The objects of each image, whose size must be a multiple of 32; each is found twice, as "circle" and as "red
    circle". An object without a clear shape or colour is none."""
    return [_detect(image) for image in images]


def _detect(image: Image) -> list[Detected]:
    found = []
    height, width = image.pixels.shape[1:]
    if height != width or height % SIZE:
        raise ValueError(
            f"the detector of scenes: got an image of {width} x {height} pixels, expected a square one whose side is "
            f"a multiple of {SIZE}; for other images name another detector"
        )
    for one in see(image.pixels.float().permute(1, 2, 0).numpy()):
        if one.shape and one.colour:
            width, height = one.size
            box = one.x - width / 2, one.y - height / 2, one.x + width / 2, one.y + height / 2
            names = one.shape, f"{one.colour} {one.shape}"
            found += [Detected(name, box, min(1.0, one.agreement), one.colour) for name in names]
    return found
