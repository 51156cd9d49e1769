"""Which of the entries of a shared decision is trained."""

from __future__ import annotations

import torch

from mmgrpo.types import Decisions

NODE = torch.tensor([[0, 1, 2], [0, 1, 2], [0, 1, 3]])


def decisions(mask: list[list[int]]) -> Decisions:
    known = torch.tensor(mask, dtype=torch.bool)
    return Decisions(torch.zeros(3, 3), known, known, NODE, torch.zeros(3, dtype=torch.long), {})


def test_the_first_row_of_a_shared_decision_owns_it():
    shared = decisions([[1, 1, 1], [1, 1, 1], [1, 1, 1]])
    assert shared.owner_index.tolist() == [[0, 1, 2], [0, 1, 2], [0, 1, 8]]
    assert shared.owned.tolist() == [[True] * 3, [False] * 3, [False, False, True]]


def test_padding_owns_nothing_whatever_its_numbers():
    """The first row has no decision, although its padding has the numbers of those of the second."""
    padded = decisions([[0, 0, 0], [1, 1, 1], [1, 1, 0]])
    assert padded.owner_index.tolist() == [[0, 1, 2], [3, 4, 5], [3, 4, 8]]
    assert padded.owned.tolist() == [[False] * 3, [True] * 3, [False] * 3]
