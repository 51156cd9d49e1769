"""How the rows of a round are divided among its optimizer steps."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def minibatches(key: Int[Tensor, "B"], updates: int, generator: torch.Generator) -> list[Bool[Tensor, "B"]]:
    """Divide whole groups (rows of one ``key``) among ``updates`` minibatches at random; the rows of each."""
    groups, inverse = torch.unique(key, return_inverse=True)
    if len(groups) < updates:
        raise ValueError(
            f"got a round of {len(groups)} groups, expected at least optim.updates={updates}; "
            "use more prompts per round or fewer updates"
        )
    shuffled = torch.randperm(len(groups), generator=generator)
    assignment = torch.empty_like(shuffled)
    assignment[shuffled] = torch.arange(len(groups)) % updates
    return [assignment.to(key.device)[inverse] == update for update in range(updates)]
