"""Every task as a reward of its own: ``exact``, ``box_iou``, ... for all rows, whatever tasks their prompts name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmgrpo.types import Output, Prompt
from reward_models.rules.tasks import TASKS, one_task


def reward(name: str) -> Callable[..., list[float]]:
    """The task of that name as a function of prompts and outputs."""

    def alone(prompts: Sequence[Prompt], outputs: Sequence[Output], tags: bool | str = True) -> list[float]:
        return one_task(name, prompts, outputs, tags)

    alone.__name__ = alone.__qualname__ = name
    alone.__doc__ = TASKS[name].__doc__
    return alone


def __getattr__(name: str) -> Callable[..., list[float]]:
    if name not in TASKS:
        raise AttributeError(f"unknown task '{name}'")
    return reward(name)
