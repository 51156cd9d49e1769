"""Cheap guards of clips by pixels alone: how smoothly they move, and whether they move at all.

They regularize a main reward and never stand alone: a still image is perfectly smooth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt, Video

motion_reward = functools.partial(reward, "Video", scale="by pixels alone; a guard")


@motion_reward()
def frame_smoothness(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 - the mean distance of every second frame from the mean of its neighbours, in [0, 1]; the prompt is not read.

    VBench's motion smoothness (arXiv:2311.17982) predicts that frame with a network; the mean of two frames stands in
    for it here, so fast but smooth motion counts as rough, and values cannot be compared with VBench's. NaN for
    fewer than three frames, and for ones that are not finite.
    """
    values = []
    for frames in _frames(outputs, "frame_smoothness"):
        if not bool(frames.isfinite().all()):
            values.append(math.nan)
            continue
        between = (frames[:-2] + frames[2:])[::2] / 2
        values.append(1 - float((frames[1:-1][::2] - between).abs().mean()))
    return values


@motion_reward()
def frame_change(
    prompts: Sequence[Prompt], outputs: Sequence[Output], least: float = 0.005, most: float = 0.15
) -> list[float]:
    """1 for a clip whose mean difference from frame to frame is in [least, most], falling to 0 for a still one and for
    one that changes at random (a difference of 1/3 or more); the prompt is not read.

    Pixels are in [0, 1]. NaN for fewer than two frames, and for ones that are not finite.
    """
    if not 0 < least < most < 1 / 3:
        raise ValueError(f"frame_change: got least={least} and most={most}, expected 0 < least < most < 1/3")
    values = []
    for frames in _frames(outputs, "frame_change"):
        if len(frames) < 2 or not bool(frames.isfinite().all()):
            values.append(math.nan)
            continue
        change = float(frames.diff(dim=0).abs().mean())
        values.append(min(1.0, change / least, max(0.0, (1 / 3 - change) / (1 / 3 - most))))
    return values


def _frames(outputs: Sequence[Output], reward: str) -> list[Float[Tensor, "frames 3 height width"]]:
    clips = []
    for output in outputs:
        if not isinstance(output, Video):
            raise TypeError(f"{reward}: got an output of kind {type(output).__name__}, expected a Video")
        clips.append(output.frames.float())
    return clips
