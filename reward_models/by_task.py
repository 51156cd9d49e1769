"""A reward for some tasks of a mixed data set: it abstains from rows of other tasks.

    rewards: ["by_task(tasks=['math', 'box_iou'], reward='task', log_as='rules')",
              "by_task(tasks=['open'], reward=\\"preference(weights='runs/head')\\", log_as='open')"]

A sum of such rewards judges every row by the ones that are made for it, and their means are over the rows that they
score (``reward/<name>/abstained`` counts the others).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import inf

from mmgrpo.rewards import scorer
from mmgrpo.scoring import Scorer, score_or_abstain
from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Output, Prompt


@reward(
    "Text",
    "Image",
    "Video",
    "Audio",
    range=(-inf, inf),
    scale="that of the reward of its tasks",
    reads=("task", "reward"),
    delegates=True,
    check="reward_models.by_task:check",
    row="reward_models.by_task:check_row",
    version=2,
)
def by_task(
    prompts: Sequence[Prompt], outputs: Sequence[Output], tasks: Sequence[str], reward: str, device: str = "cpu"
) -> list[float | None]:
    """The reward ``reward``, written as in a recipe, of the rows whose prompt has one of the ``tasks``; None of others,
    and where ``reward`` itself abstains."""
    inner = _reward(reward, device)
    rows = [row for row, prompt in enumerate(prompts) if prompt.task in tasks]
    values: list[float | None] = [None] * len(prompts)
    arguments = [prompts[row] for row in rows], [outputs[row] for row in rows]
    scored = score_or_abstain(inner.name, inner.fn, *arguments, inner.trusted) if rows else []
    for row, value in zip(rows, scored, strict=True):
        values[row] = value
    return values


def check(tasks: Sequence[str], reward: str, **_: object) -> None:
    """ValueError for parameters with which ``by_task`` cannot score."""
    if not tasks or not all(tasks):
        raise ValueError(f"by_task: tasks: got {tasks!r}, expected a list of names, e.g. ['open']")
    _reward(reward, "cpu")


def check_row(prompt: Prompt, **_: object) -> None:
    """ValueError for a row without a task."""
    if not prompt.task:
        raise ValueError(f"prompt '{prompt.id}' has no task")


@functools.cache
def _reward(reward: str, device: str) -> Scorer:
    """The reward, loaded once; ValueError for one that cannot be."""
    inner = scorer(reward, device)
    if inner.weight != 1 or inner.reads_rollout:
        raise ValueError(
            f"by_task: reward: got {reward!r}, expected one without a weight that does not read the rollout; write "
            "by_task(weight=..., ...)"
        )
    return inner
