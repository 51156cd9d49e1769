"""Preference heads for groups of users who prefer different things, found by expectation maximization.

MaxMin-RLHF (arXiv:2402.08925, section 4, its algorithm of hard EM): each user h belongs to the head that makes his
comparisons most likely, and each head is trained on the comparisons of its users, in turn:

    E:  k_h = argmax_k  prod over the comparisons of h of  sigmoid(r_k(better) - r_k(worse))
    M:  r_k = argmax of the same product over the comparisons of all h with k_h = k

The policy is then trained on the head with the smallest mean reward: ``combine: worst_stream``. All heads are
standardized over the same outputs, those of all users, so their means can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from reward_models.evaluation.comparison import Comparison
from reward_models.preference import PreferenceModel
from reward_models.preference_training import LOSSES, Examples, Fitting, all_scores, fit, initialize, pairs, standardize


def assign(losses: Float[Tensor, "K N"], user: Int[Tensor, "N"]) -> Int[Tensor, "users"]:
    """The head of each user, from the negative log-likelihood of each comparison under each head: the E step.

    Losses [[.1, .1, 2.], [1., 1., .1]] of the comparisons of users 0, 0, 1 give the heads 0 and 1. Of equal heads the
    first is chosen.
    """
    totals = losses.new_zeros(len(losses), int(user.max()) + 1).index_add_(1, user, losses)
    return totals.argmin(0)


def train_groups(
    comparisons: Sequence[Comparison],
    groups: int,
    rounds: int,
    features: str,
    parameters: Mapping[str, Any],
    how: Fitting,
) -> tuple[list[PreferenceModel], dict[str, int]]:
    """A head per group of users, and the group of each user, after ``rounds`` of EM or when no user changes his head.

    Heads start from different random weights, and a head without users keeps its own.
    """
    if how.loss not in LOSSES:
        raise ValueError(f"loss: got {how.loss!r}, expected one of {', '.join(LOSSES)} for groups of users")
    for comparison in comparisons:
        if not comparison.user:
            raise ValueError(
                f"{comparison.place}: got no user, expected who ranked the outputs, to find groups of users"
            )
    names = sorted({comparison.user for comparison in comparisons})
    if len(names) < groups:
        raise ValueError(f"--user-groups: got {groups} groups and {len(names)} users, expected no more groups")
    numbers = [names.index(comparison.user) for comparison in comparisons for _ in pairs(comparison)]
    user, heads = torch.tensor(numbers, device=how.device), None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(how.seed)
        first, data = initialize(comparisons, features, parameters, how)
        models = [first, *(PreferenceModel(first.description).to(how.device) for _ in range(groups - 1))]
        for _ in range(rounds):
            now = assign(torch.stack([_losses(model, data, how.loss, how.batch) for model in models]), user)
            if heads is not None and torch.equal(now, heads):
                break
            heads = now
            for number, model in enumerate(models):
                rows = (heads[user] == number).nonzero()[:, 0]
                if len(rows):
                    fit(model, _of(data, rows), how)
    assert heads is not None
    trained = [standardize(model, all_scores(model, data, how.batch)) for model in models]
    return trained, dict(zip(names, heads.tolist(), strict=True))


def _losses(model: PreferenceModel, given: Examples, loss: str, batch: int) -> Float[Tensor, "N"]:
    scores = all_scores(model, given, batch)
    return LOSSES[loss](scores[given.first] - scores[given.second], given.human)


def _of(given: Examples, rows: Int[Tensor, "n"]) -> Examples:
    """The comparisons of some users, with the features of all outputs."""
    return replace(given, first=given.first[rows], second=given.second[rows], human=given.human[rows])
