"""What several rewards need of the same outputs is computed once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmgrpo.scoring import once, sharing
from mmgrpo.types import Image, Output, Text


def computed(*several: Sequence[Output]) -> int:
    """How often a value is computed that is asked for of these outputs in turn, twice of each."""
    calls: list[int] = []
    with sharing():
        for outputs in (*several, *several):
            once("name", outputs, lambda: calls.append(1))
    return len(calls)


def test_a_value_is_computed_once_for_equal_texts_and_again_for_others():
    assert computed([Text("4", 1)], [Text("4", 1)]) == 1
    assert computed([Text("4", 1)], [Text("5", 1)]) == 2
    assert computed([Text("4", 1)], [Text("4", 1, prefilled="<think>")]) == 2  # what the template has written counts
    assert computed([Text("4", 1)], [Text("4", 1)] * 2) == 2


def test_media_are_the_same_where_their_numbers_lie_with_their_shape():
    pixels = torch.zeros(3, 4, 4)
    assert computed([Image(pixels)], [Image(pixels)]) == 1
    assert computed([Image(pixels)], [Image(pixels.clone())]) == 2
    assert computed([Image(pixels)], [Image(pixels[:, :2])]) == 2  # begins at the same place


def test_nothing_is_kept_outside_of_a_call():
    calls: list[int] = []
    for _ in range(2):
        once("name", [Text("4", 1)], lambda: calls.append(1))
        with sharing():
            once("name", [Text("4", 1)], lambda: calls.append(1))
    assert len(calls) == 4
