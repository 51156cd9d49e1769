"""Scoring: all rewards of all outputs; a failure is marked invalid and never replaced by a plausible number."""

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
    """A rate over a whole set: all errors / all units, e.g. word errors / words of the references; lower is better.

    It is not the mean of the rates per prompt. Both functions take prompts and outputs, as rewards do.
    """

    name: str
    errors: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    units: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]


@dataclass(frozen=True)
class Scorer:
    """A reward with its name and weight; with weight 0 it is scored and logged but not trained on."""

    name: str
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]]
    weight: float = 1.0
    rates: Sequence[ErrorRate] = ()
    """Error rates over whole sets that are reported with the reward."""
    annotate: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[Mapping[str, Any]]] | None = None
    """Annotations of each output for people: ``aligned`` words, ``boxes``, ``heard`` text."""


@dataclass(frozen=True)
class RewardScores:
    """Values of every reward for every row; where ``valid`` is False the value is 0 and has no meaning."""

    values: Float[Tensor, "B R"]
    valid: Bool[Tensor, "B R"]


def score_outputs(scorers: Sequence[Scorer], prompts: Sequence[Prompt], outputs: Sequence[Output]) -> RewardScores:
    """Score all outputs with all rewards.

    A reward that raises, or whose number of values is not that of the outputs, stops the run with an
    error that names it. A value that is NaN or infinite is marked invalid; the caller counts these.
    """
    columns = [score_column(scorer.name, scorer.fn, prompts, outputs) for scorer in scorers]
    values = torch.tensor(columns, dtype=torch.float32).reshape(len(scorers), len(outputs)).T
    valid = torch.isfinite(values)
    return RewardScores(torch.where(valid, values, torch.zeros_like(values)), valid)


def score_column(
    name: str,
    fn: Callable[[Sequence[Prompt], Sequence[Output]], Sequence[float]],
    prompts: Sequence[Prompt],
    outputs: Sequence[Output],
) -> list[float]:
    """The values of one function of prompts and outputs, one per output; an error names the function."""
    try:
        column = [float(value) for value in fn(prompts, outputs)]
    except Exception as error:
        raise RuntimeError(
            f"reward '{name}' failed on a batch of {len(outputs)} outputs "
            f"(first prompt: {prompts[0].text!r}): {type(error).__name__}: {error}"
        ) from error
    if len(column) != len(outputs):
        raise ValueError(
            f"reward '{name}': got {len(column)} values, expected one for each of the {len(outputs)} outputs; "
            "return NaN for an output that cannot be scored"
        )
    return column


def mean_of_valid(scores: RewardScores, column: int) -> tuple[float, float, int]:
    """Mean and population std of one reward's valid values, NaN if there are none, and the number of failures."""
    valid = scores.valid[:, column]
    values, failed = scores.values[valid, column], int((~valid).sum())
    if values.numel() == 0:
        return math.nan, math.nan, failed
    return float(values.mean()), float(values.std(correction=0)), failed
