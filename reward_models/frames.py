"""Rewards of images for clips: a clip is scored frame by frame.

A reward of whole clips takes the ``Video`` as it is; one of images is lifted by ``frames(reward="...")``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from math import inf

import numpy as np

from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer, score_column
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Image, Output, Prompt, Video

REDUCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "min": lambda values: float(np.min(values)),
    "max": lambda values: float(np.max(values)),
    "first": lambda values: values[0],
}
"""From the values of the frames, in their order, to the value of the clip."""


@reward(
    "Video",
    range=(-inf, inf),
    scale="that of the image reward",
    reads=("reward",),
    delegates=True,
    check="reward_models.frames:check",
)
def frames(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    reward: str,
    reduce: str = "mean",
    every: int = 1,
    device: str = "cpu",
) -> list[float]:
    """The reward of images ``reward``, written as in a recipe, of frames 0, ``every``, 2 ``every``, ... as one.

    ``reduce`` is one of ``REDUCTIONS``; first scores the first frame and no other. A clip is NaN where a frame that is
    scored is. One clip is scored at a time.
    """
    inner = _of_images(reward, reduce, every, device)
    return [_value(inner, prompt, output, reduce, every) for prompt, output in zip(prompts, outputs, strict=True)]


def check(reward: str, reduce: str = "mean", every: int = 1) -> None:
    """ValueError for parameters with which ``frames`` cannot score."""
    _of_images(reward, reduce, every, "cpu")


def _value(inner: Scorer, prompt: Prompt, output: Output, reduce: str, every: int) -> float:
    if not isinstance(output, Video):
        raise TypeError(
            f"frames: got an output of kind {type(output).__name__}, expected a Video; name the reward alone"
        )
    images = [Image(frame) for frame in (output.frames[:1] if reduce == "first" else output.frames[::every])]
    return REDUCTIONS[reduce](score_column(inner.name, inner.fn, [prompt] * len(images), images, inner.trusted))


@functools.lru_cache(None, typed=True)  # True is no 1
def _of_images(reward: str, reduce: str, every: int, device: str) -> Scorer:
    """The reward, loaded once; ValueError for parameters that cannot be."""
    if reduce not in REDUCTIONS:
        raise ValueError(f"frames: reduce: got {reduce!r}, expected one of {', '.join(REDUCTIONS)}")
    if type(every) is not int or every < 1:
        raise ValueError(f"frames: every: got {every!r}, expected a whole number of at least 1")
    return lifted_reward("frames", reward, device)


def lifted_reward(by: str, reward: str, device: str) -> Scorer:
    """The reward that another, ``by``, lifts to its outputs; ValueError for a weight in it, which would be lost."""
    inner = scorer(reward, device)
    if inner.weight != 1:
        raise ValueError(
            f"{by}: reward: got {reward!r}, expected no weight in it; write {by}(weight={inner.weight}, ...)"
        )
    return inner
