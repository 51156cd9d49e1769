"""The judge: every reward scores the outputs; a failure is a failure, never a plausible number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.types import Output, Prompt


@dataclass(frozen=True)
class Scorer:
    """A reward with its name and weight; weight 0 is scored and logged but never trained on."""

    name: str
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    weight: float = 1.0


@dataclass(frozen=True)
class RewardScores:
    """Values of every reward for every row; where ``valid`` is False the value is 0 and means nothing."""

    values: Float[Tensor, "B R"]
    valid: Bool[Tensor, "B R"]


def score_outputs(scorers: Sequence[Scorer], prompts: Sequence[Prompt], outputs: Sequence[Output]) -> RewardScores:
    """Score all outputs with all rewards.

    A reward that raises, or that gives another number of values than there are outputs, stops the run
    with its name. A value that is NaN or infinite is marked invalid; the caller counts these.
    """
    columns = []
    for scorer in scorers:
        try:
            column = [float(value) for value in scorer.fn(prompts, outputs)]
        except Exception as error:
            raise RuntimeError(
                f"reward '{scorer.name}' failed on a batch of {len(outputs)} outputs "
                f"(first prompt: {prompts[0].text!r}): {type(error).__name__}: {error}"
            ) from error
        if len(column) != len(outputs):
            raise ValueError(
                f"reward '{scorer.name}' gave {len(column)} values for {len(outputs)} outputs; "
                "it must return one number per output, NaN where it cannot score one"
            )
        columns.append(column)
    values = torch.tensor(columns, dtype=torch.float32).reshape(len(scorers), len(outputs)).T
    valid = torch.isfinite(values)
    return RewardScores(torch.where(valid, values, torch.zeros_like(values)), valid)


def mean_of_valid(reward_scores: RewardScores, column: int) -> tuple[float, float, int]:
    """Mean and population std over valid values of one reward, and how many failed; NaN if none is valid."""
    kept = reward_scores.values[:, column][reward_scores.valid[:, column]]
    failed = int((~reward_scores.valid[:, column]).sum())
    if kept.numel() == 0:
        return math.nan, math.nan, failed
    return float(kept.mean()), float(kept.std(correction=0)), failed
