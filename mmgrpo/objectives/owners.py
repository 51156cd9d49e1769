"""Decisions that several rows share: each is scored once, at its owner."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmgrpo.types import Decisions


def owner_index(decisions: Decisions) -> Int[Tensor, "B T"]:
    """For every entry, the flat index of the first entry of the same decision (its own if unshared)."""
    rows, width = decisions.node.shape
    index = torch.arange(rows * width, device=decisions.node.device)
    # Entries without a decision have unique negative numbers, so that none is taken for a shared one.
    flat = torch.where(decisions.decision_mask, decisions.node, -1 - index.view(rows, width)).reshape(-1)
    _, inverse = torch.unique(flat, return_inverse=True)
    first = torch.full((int(inverse.max()) + 1,), rows * width, device=index.device)
    first = first.scatter_reduce(0, inverse, index, "amin")
    return first[inverse].view(rows, width)


def owned(decisions: Decisions) -> Bool[Tensor, "B T"]:
    """True for exactly one entry of every decision."""
    index = torch.arange(decisions.node.numel(), device=decisions.node.device).view_as(decisions.node)
    return decisions.decision_mask & (owner_index(decisions) == index)
