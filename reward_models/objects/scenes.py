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
    detections = []
    height, width = image.pixels.shape[1:]
    if height != width or height % SIZE:
        raise ValueError(
            f"the detector of scenes: got an image of {width} x {height} pixels, expected a square one whose side is "
            f"a multiple of {SIZE}; for other images name another detector"
        )
    for detection in see(image.pixels.float().permute(1, 2, 0).numpy()):
        if detection.shape and detection.colour:
            width, height = detection.size
            box = detection.x - width / 2, detection.y - height / 2, detection.x + width / 2, detection.y + height / 2
            names = detection.shape, f"{detection.colour} {detection.shape}"
            detections += [Detected(name, box, min(1.0, detection.agreement), detection.colour) for name in names]
    return detections
