"""What samples are compared with beyond their group: their prompt's greedy output, or a value of the data set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmgrpo.advantages.groups import Rows, Values
from mmgrpo.scoring import RewardScores
from mmgrpo.types import Prompt

COMPARISON_FIELDS = frozenset({"greedy_value", "reference_value", "reference_rewards"})
"""Fields of decisions that a round adds to those of the policy, for recipes that need them."""


def reference_values(prompts: Sequence[Prompt]) -> list[float]:
    """``meta.reference_value`` of each prompt, in units of the weighted sum of rewards; an error names one without.

    It is the mean reward of a frozen policy's samples, computed once before the run (PVPO, arXiv:2508.21104), or the
    reward of the data set's own answer (AAPO, arXiv:2505.14264).
    """
    values = []
    for prompt in prompts:
        value = prompt.meta.get("reference_value")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(
                f"prompt '{prompt.id}': got reference_value {value!r}, expected a number, the reward that samples of "
                "this prompt are compared with; add the column reference_value to the data set (e.g. the mean reward "
                "of a frozen policy's samples, see docs/data.md), or choose another baseline or shape"
            )
        values.append(float(value))
    return values


def reference_rewards(prompts: Sequence[Prompt], names: Sequence[str], needed: Set[str]) -> Float[Tensor, "P R M"]:
    """``meta.reference_rewards`` of each prompt: by reward the M rewards of other samples of the same prompt, from a
    policy before training (M = 10 in PAR, arXiv:2502.18770) or of a reference answer (M = 1). NaN for rewards that are
    not needed; an error names a prompt that lacks a needed one, or has not as many as the first prompt.
    """
    rows, count = [], 0
    for prompt in prompts:
        given = prompt.meta.get("reference_rewards")
        columns = []
        for name in names:
            column = given.get(name) if isinstance(given, Mapping) else None
            numbers = column if isinstance(column, list | tuple) and all(map(_is_finite, column)) else []
            count = count or (len(numbers) if name in needed else 0)
            if name in needed and (not numbers or len(numbers) != count):
                raise ValueError(
                    f"prompt '{prompt.id}': got reference_rewards {column!r:.80} for '{name}', expected a list of "
                    f"{count or 'finite'} numbers, the rewards of other samples of this prompt; add the column "
                    f'reference_rewards, {{"{name}": [...]}}, to the data set (see docs/data.md), or choose a '
                    "transform with one reference for all prompts"
                )
            columns.append(numbers if name in needed else [])
        rows.append([column or [math.nan] * count for column in columns])
    return torch.tensor(rows, dtype=torch.float64)


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def greedy_values(greedy: RewardScores, group: Int[Tensor, "B"], weights: Float[Tensor, "R"]) -> tuple[Values, Rows]:
    """For each row the weighted reward of its prompt's greedy output, and whether that could be scored: no reward that
    has a weight failed, and one at least did not abstain.

    ``greedy`` has one row per prompt, ``group`` is the index of each row's prompt. ``weights`` may have several times
    the columns of ``greedy``: those of previews, which have no greedy output of their own and share that of the output.
    """
    columns = len(weights) // greedy.values.shape[1]
    counted = weights.cpu() != 0
    valid = ~(greedy.failed.repeat(1, columns) & counted).any(1) & (greedy.valid.repeat(1, columns) & counted).any(1)
    total = greedy.values.repeat(1, columns) @ weights.cpu()
    return total[group].to(weights.device), valid[group]
