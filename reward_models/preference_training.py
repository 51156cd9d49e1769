"""Training of a preference head: Bradley-Terry with or without ties, or regression to ratings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from mmgrpo.runtime.progress import progress_bar
from reward_models.evaluation.comparison import Comparison
from reward_models.preference import SCENES, Description, PreferenceModel

Loss: TypeAlias = Callable[[Float[Tensor, "N"], Float[Tensor, "N"]], Float[Tensor, "N"]]
"""From differences of scores and human signs (+1, -1, 0 for a tie) to losses."""

TIES = 5.0
"""k of ``bradley_terry_ties`` in VideoAlign."""


def bradley_terry(difference: Float[Tensor, "N"], human: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """-log sigmoid(r_better - r_worse) (Bradley and Terry 1952); a tie is half a win for either side.

    At a difference of 0 it is log 2; a gap of 1 in the right direction costs 0.313.
    """
    win = (human + 1) / 2
    return -(win * functional.logsigmoid(difference) + (1 - win) * functional.logsigmoid(-difference))


def bradley_terry_ties(
    difference: Float[Tensor, "N"], human: Float[Tensor, "N"], k: float = TIES
) -> Float[Tensor, "N"]:
    """Bradley-Terry with ties (Rao and Kupper 1967; VideoAlign, arXiv:2501.13918, equation 3, k = 5).

    P(win) = sigmoid(d - log k), P(loss) = sigmoid(-d - log k), P(tie) = (k^2 - 1) P(win) P(loss); they sum to one.
    """
    win = functional.logsigmoid(difference - math.log(k))
    loss = functional.logsigmoid(-difference - math.log(k))
    tie = win + loss + math.log(k * k - 1)
    return -torch.where(human > 0, win, torch.where(human < 0, loss, tie))


LOSSES: Mapping[str, Loss] = {"bradley_terry": bradley_terry, "bradley_terry_ties": bradley_terry_ties}
REGRESSION = "regression"


@dataclass(frozen=True)
class Fitting:
    """How a head of random weights is trained: by AdamW, whose rate decays to 0 by a cosine."""

    loss: str = "bradley_terry_ties"
    epochs: int = 6
    lr: float = 2e-3
    batch: int = 64
    weight_decay: float = 1e-2
    hidden: int = 128
    """Width of the hidden layer."""
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Examples:
    """What a head is trained on: features of every output once, and which of them are compared."""

    features: tuple[Tensor, ...]
    """Each [outputs, ...]."""
    first: Tensor
    second: Tensor
    """Numbers of the outputs of each pair [N]."""
    human: Float[Tensor, "N"]
    ratings: Float[Tensor, "outputs"] | None
    """Human ratings of the outputs, where all have one."""


def pairs(comparison: Comparison) -> list[tuple[int, int, float]]:
    """Every two outputs of a comparison, and who won: +1 for the first, -1 for the second, 0 for a tie."""
    ranks = comparison.ranks
    numbers = itertools.combinations(range(len(ranks)), 2)
    return [(i, j, float((ranks[j] > ranks[i]) - (ranks[j] < ranks[i]))) for i, j in numbers]


def examples(model: PreferenceModel, comparisons: Sequence[Comparison], device: str, batch: int = 64) -> Examples:
    """Features and pairs of comparisons; frozen features are computed here once."""
    parts, first, second, human, count = [], [], [], [], 0
    for start in progress_bar(range(0, len(comparisons), batch), "features"):
        chunk = comparisons[start : start + batch]
        prompts = [prompt for c in chunk for prompt in [c.to_prompt()] * len(c.candidates)]
        parts.append(model.features(prompts, [output for c in chunk for output in c.outputs()], device))
        for comparison in chunk:
            for i, j, sign in pairs(comparison):
                first.append(count + i)
                second.append(count + j)
                human.append(sign)
            count += len(comparison.ranks)
    rated = all(comparison.ratings for comparison in comparisons)
    return Examples(
        tuple(torch.cat(column) for column in zip(*parts, strict=True)),
        torch.tensor(first, device=device),
        torch.tensor(second, device=device),
        torch.tensor(human, device=device),
        torch.tensor([mark for c in comparisons for mark in c.ratings], device=device) if rated else None,
    )


def train(
    comparisons: Sequence[Comparison],
    features: str = SCENES,
    parameters: Mapping[str, Any] = {},
    how: Fitting = Fitting(),
) -> PreferenceModel:
    """A model trained on comparisons, with the statistics of its scores on them.

    ``regression`` fits ratings by squared error and needs them. The generator of torch is left as it was.
    """
    if how.loss not in (*LOSSES, REGRESSION):
        raise ValueError(f"loss: got {how.loss!r}, expected one of {', '.join(LOSSES)}, {REGRESSION}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        model, data = initialize(comparisons, features, parameters, how)
        if how.loss == REGRESSION and data.ratings is None:
            raise ValueError("loss: got regression, but not every comparison has ratings; use bradley_terry")
        fit(model, data, how)
    return standardize(model, all_scores(model, data, how.batch))


def initialize(
    comparisons: Sequence[Comparison], features: str, parameters: Mapping[str, Any], how: Fitting
) -> tuple[PreferenceModel, Examples]:
    """A model of random weights that fits the features, on the device, and what it is trained on."""
    model = PreferenceModel(Description(features, dict(parameters), hidden=how.hidden))
    data = examples(model, comparisons, how.device)
    if features != SCENES:
        model = PreferenceModel(replace(model.description, width=data.features[0].shape[1]))
    return model.to(how.device), data


def standardize(model: PreferenceModel, scores: Float[Tensor, "outputs"]) -> PreferenceModel:
    """The trained model, ready to score, with the mean and std of its raw scores of all outputs."""
    model.description = replace(
        model.description, mean=float(scores.mean()), std=max(float(scores.std(correction=0)), 1e-6)
    )
    return model.eval().requires_grad_(False)


def fit(model: PreferenceModel, given: Examples, how: Fitting) -> None:
    """Train from the model's present weights (``descend``)."""

    def backward(chosen: Tensor) -> float:
        value = _loss(model, given, chosen.to(given.human.device), how.loss)
        value.backward()
        return value.item()

    ratings = given.ratings if how.loss == REGRESSION else None
    rows = given.human if ratings is None else ratings
    descend([*model.parameters()], len(rows), backward, how)


def descend(weights: Sequence[nn.Parameter], rows: int, backward: Callable[[Tensor], float], how: Fitting) -> None:
    """Train by the gradients that ``backward`` leaves for some of the rows, whose loss it returns, ``how.batch`` at a
    time in random order; gradient norms are at most 1."""
    optimizer = torch.optim.AdamW(weights, how.lr, weight_decay=how.weight_decay)
    steps = how.epochs * math.ceil(rows / how.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with progress_bar(title="training", total=steps) as bar:
        for _ in range(how.epochs):
            for chosen in torch.randperm(rows).split(how.batch):
                optimizer.zero_grad()
                value = backward(chosen)
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
                optimizer.step()
                schedule.step()
                bar.update()
                bar.set_postfix(loss=f"{value:.3f}", refresh=False)


def _loss(model: PreferenceModel, given: Examples, chosen: Tensor, loss: str) -> Tensor:
    if loss == REGRESSION:
        assert given.ratings is not None
        return functional.mse_loss(model(*(part[chosen] for part in given.features)), given.ratings[chosen])
    both = torch.cat([given.first[chosen], given.second[chosen]])
    first, second = model(*(part[both] for part in given.features)).chunk(2)
    return LOSSES[loss](first - second, given.human[chosen]).mean()


@torch.no_grad()
def all_scores(model: PreferenceModel, given: Examples, batch: int) -> Float[Tensor, "outputs"]:
    """Raw scores of all outputs, ``batch`` at a time."""
    parts = torch.arange(len(given.features[0]), device=given.human.device).split(batch)
    return torch.cat([model(*(part[rows] for part in given.features)) for rows in parts])
