"""Rewards of recordings for videos: what is heard in a video is scored by itself.

A reward of the frames with their sound takes the ``Video`` as it is and reads its ``sound``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf

from mmgrpo.scoring import Scorer, score_column
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Audio, Output, Prompt, Video
from reward_models.frames import lifted_reward


@reward(
    "Video",
    range=(-inf, inf),
    scale="that of the reward of recordings",
    reads=("reward",),
    delegates=True,
    check="reward_models.sound:check",
)
def sound(prompts: Sequence[Prompt], outputs: Sequence[Output], reward: str, device: str = "cpu") -> list[float]:
    """The reward of recordings ``reward``, written as in a recipe, of what is heard in a video."""
    inner = _of_recordings(reward, device)
    return list(score_column(inner.name, inner.fn, list(prompts), [_heard(o) for o in outputs], inner.trusted))


def check(reward: str) -> None:
    """ValueError for parameters with which ``sound`` cannot score."""
    _of_recordings(reward, "cpu")


def _heard(output: Output) -> Audio:
    if not isinstance(output, Video) or output.sound is None:
        kind = "a Video without sound" if isinstance(output, Video) else f"an output of kind {type(output).__name__}"
        raise TypeError(f"sound: got {kind}, expected a Video with sound; leave out the reward, or name it alone")
    return output.sound


@functools.lru_cache(None, typed=True)
def _of_recordings(reward: str, device: str) -> Scorer:
    """The reward, loaded once."""
    return lifted_reward("sound", reward, device)
