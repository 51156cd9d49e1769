"""A reward for some tasks of a mixed data set: rows of other tasks are worth 0, whatever their output.

    rewards: ["by_task(tasks=['math', 'box_iou'], reward='task', log_as='rules')",
              "by_task(tasks=['open'], reward=\\"preference(weights='runs/head')\\", log_as='open')"]

All samples of a prompt have its task, so that the 0 is cancelled by a baseline of the group, and a sum of such rewards
judges every row by the ones that are made for it. Means over a batch include the zeros.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer, score_column
from mmgrpo.types import Output, Prompt


def by_task(
    prompts: Sequence[Prompt], outputs: Sequence[Output], tasks: Sequence[str], reward: str, device: str = "cpu"
) -> list[float]:
    """The reward ``reward``, written as in a recipe, of the rows whose prompt has one of the ``tasks``; 0 of others."""
    one = _reward(reward, device)
    rows = [row for row, prompt in enumerate(prompts) if prompt.task in tasks]
    values = [0.0] * len(prompts)
    given = [prompts[row] for row in rows], [outputs[row] for row in rows]
    for row, value in zip(rows, score_column(one.name, one.fn, *given, one.trusted) if rows else [], strict=True):
        values[row] = value
    return values


def check(tasks: Sequence[str], reward: str, **_: object) -> None:
    """ValueError for parameters with which ``by_task`` cannot score."""
    if isinstance(tasks, str) or not tasks or not all(isinstance(name, str) and name for name in tasks):
        raise ValueError(f"by_task: tasks: got {tasks!r}, expected a list of names, e.g. ['open']")
    _reward(reward, "cpu")


@functools.cache
def _reward(reward: str, device: str) -> Scorer:
    """The reward, loaded once; ValueError for one that cannot be."""
    one = scorer(reward, device)
    if one.weight != 1 or one.reads_rollout:
        raise ValueError(
            f"by_task: reward: got {reward!r}, expected one without a weight that does not read the rollout; write "
            "by_task(weight=..., ...)"
        )
    return one
