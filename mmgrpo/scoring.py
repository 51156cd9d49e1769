"""Scoring: every reward scores the outputs; a failure is a failure, never a plausible number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmgrpo.types import Output, Prompt


@dataclass(frozen=True)
class ErrorRate:
    """A figure of a whole set: all errors / all units, e.g. word errors / words of the references. Less is better.

    It is not the mean of the prompts' rates. Both functions take prompts and outputs, as rewards do.
    """

    name: str
    errors: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    units: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]


@dataclass(frozen=True)
class Scorer:
    """A reward with its name and weight; weight 0 is scored and logged but never trained on."""

    name: str
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    weight: float = 1.0
    rates: Sequence[ErrorRate] = ()
    """Figures of whole sets that belong to the reward."""
    annotate: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[Mapping[str, Any]]] | None = None
    """What the reward noted of each output, for people: ``aligned`` words, ``boxes``, ``heard`` text."""


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
    columns = [scored(scorer.name, scorer.fn, prompts, outputs) for scorer in scorers]
    values = torch.tensor(columns, dtype=torch.float32).reshape(len(scorers), len(outputs)).T
    valid = torch.isfinite(values)
    return RewardScores(torch.where(valid, values, torch.zeros_like(values)), valid)


def scored(
    name: str,
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
) -> list[float]:
    """What a function of prompts and outputs gives, one number per output, or an error with its name."""
    try:
        column = [float(value) for value in fn(prompts, outputs)]
    except Exception as error:
        raise RuntimeError(
            f"reward '{name}' failed on a batch of {len(outputs)} outputs "
            f"(first prompt: {prompts[0].text!r}): {type(error).__name__}: {error}"
        ) from error
    if len(column) != len(outputs):
        raise ValueError(
            f"reward '{name}' gave {len(column)} values for {len(outputs)} outputs; "
            "it must return one number per output, NaN where it cannot score one"
        )
    return column


def mean_of_valid(scores: RewardScores, column: int) -> tuple[float, float, int]:
    """Mean and population std over valid values of one reward, and how many failed; NaN if none is valid."""
    kept = scores.values[:, column][scores.valid[:, column]]
    failed = int((~scores.valid[:, column]).sum())
    if kept.numel() == 0:
        return math.nan, math.nan, failed
    return float(kept.mean()), float(kept.std(correction=0)), failed
