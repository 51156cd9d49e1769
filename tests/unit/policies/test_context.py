"""Prompts as a language model reads them, and some of them."""

from __future__ import annotations

import dataclasses

import torch

from mmgrpo.policies.token_model import Context


def test_some_prompts_keep_what_is_theirs_without_the_padding_that_none_of_them_needs():
    ids = torch.tensor([[0, 0, 1, 2], [3, 4, 5, 6], [0, 7, 8, 9]])
    whole = Context(ids, ids > 0, ids[:, None] + 10, ["a", "b", "c"], [((1, 2),), (), ((3, 4), (5, 6))])
    part = whole.take([2, 0])
    assert part.ids.tolist() == [[7, 8, 9], [0, 1, 2]]
    assert part.real.tolist() == [[True, True, True], [False, True, True]]
    assert part.positions.tolist() == [[[17, 18, 19]], [[10, 11, 12]]]
    assert part.media == ["c", "a"] and part.seen == [((3, 4), (5, 6)), ((1, 2),)]
    assert dataclasses.replace(whole, seen=()).take([1, 1]).seen == ()
