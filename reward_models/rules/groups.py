"""Rewards of a completion that depend on the others of its prompt: the two bonuses of Video-R1 (arXiv:2503.21776).

Completions form a group if their prompts have the same id, or are the same object where the id is empty.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

from mmgrpo.types import Output, Prompt
from reward_models.rules.tags import texts
from reward_models.rules.tasks import task


def length_bonus(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    shortest: int = 320,
    longest: int = 512,
    bonus: float = 0.2,
    right: float = 0.1,
    tags: bool | str = True,
) -> list[float]:
    """``bonus`` for correct completions of shortest <= tokens <= longest, if more than one of the group is correct.

    A completion is correct where the value of its own task is above ``right``; all others get 0. Contrast rows (see
    ``temporal_bonus``) are not counted and get 0.
    """
    values = task(prompts, outputs, tags)
    tokens = [text.tokens for text in texts(outputs, "length_bonus")]
    rewards = [0.0] * len(values)
    for rows in groups(prompts):
        correct_rows = [row for row in rows if values[row] > right and not _contrast(prompts[row])]
        for row in correct_rows:
            if len(correct_rows) > 1 and shortest <= tokens[row] <= longest:
                rewards[row] = bonus
    return rewards


def temporal_bonus(
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
    bonus: float = 0.3,
    ratio: float = 0.8,
    right: float = 0.1,
    tags: bool | str = True,
) -> list[float]:
    """``bonus`` for correct completions of prompts whose order of frames matters (T-GRPO).

    Rows whose prompt has ``meta.contrast`` saw shuffled frames; they are scored in the same call, under the id of their
    prompt. Where mean value(ordered) >= ratio * mean value(shuffled), by the row's own task, every ordered row
    with a value above ``right`` gets the bonus. All other rows get 0, contrast rows and prompts without them included.
    Where a value of either side is NaN, the ordered rows of the prompt are NaN.
    """
    values = task(prompts, outputs, tags)
    rewards = [0.0] * len(values)
    for rows in groups(prompts):
        ordered = [row for row in rows if not _contrast(prompts[row])]
        shuffled = [row for row in rows if _contrast(prompts[row])]
        if not ordered or not shuffled:
            continue
        means = [sum(values[row] for row in side) / len(side) for side in (ordered, shuffled)]
        for row in ordered:
            if math.isnan(sum(means)):
                rewards[row] = math.nan
            elif means[0] >= ratio * means[1] - 1e-9 and values[row] > right:
                rewards[row] = bonus
    return rewards


def groups(prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    """The rows of each prompt."""
    members: dict[Hashable, list[int]] = {}
    for row, prompt in enumerate(prompts):
        members.setdefault(prompt.id or id(prompt), []).append(row)
    yield from members.values()


def _contrast(prompt: Prompt) -> bool:
    return bool(prompt.meta.get("contrast"))
