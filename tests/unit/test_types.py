"""The types that all rooms share: what they hold where nothing is said, and what is taken of them."""

from __future__ import annotations

import torch

from mmgrpo.types import (
    CONTRAST,
    OWN,
    REFERENCE,
    REPLAYED,
    Decisions,
    Media,
    Prompt,
    Turn,
    select_rows,
    to_image,
)


def decisions(**fields) -> Decisions:
    return Decisions(
        log_probs=torch.tensor([[-1.0], [-2.0], [-3.0]]),
        loss_mask=torch.tensor([[True], [False], [True]]),
        decision_mask=torch.tensor([[True], [True], [False]]),
        node=torch.tensor([[5], [6], [7]]),
        origin=torch.tensor([OWN, 1, 2]),
        keys={"prompt": torch.tensor([8, 8, 9])},
        fields=fields,
    )


def test_origins_are_told_apart():
    assert len({OWN, REPLAYED, REFERENCE, CONTRAST}) == 4


def test_media_are_those_of_all_turns_in_their_order():
    one, two, three = (Media("image", name) for name in "abc")
    turns = (Turn("system", ("s",)), Turn("user", (one, "x", two)), Turn("assistant", ("y", three)))
    assert Prompt("x", turns=turns).media == (one, two, three) and Prompt("x").media == ()


def test_rows_are_selected_in_all_that_decisions_have():
    whole = decisions(std=torch.tensor([[0.1], [0.2], [0.3]]), truncated=torch.tensor([0.0, 1.0, 0.0]))
    made = select_rows(whole, torch.tensor([2, 0]))
    assert made.log_probs.tolist() == [[-3], [-1]] and made.node.tolist() == [[7], [5]]
    assert made.loss_mask.tolist() == [[True], [True]] and made.decision_mask.tolist() == [[False], [True]]
    assert made.origin.tolist() == [2, OWN] and made.keys["prompt"].tolist() == [9, 8]
    assert made.fields["truncated"].tolist() == [0, 0]
    torch.testing.assert_close(made.fields["std"], torch.tensor([[0.3], [0.1]]))
    assert select_rows(whole, slice(1, 2)).node.tolist() == [[6]]


def test_a_picture_has_numbers_from_nought_to_one_without_a_gradient():
    pixels = torch.tensor([-0.5, 0.25, 1.5], dtype=torch.float64, requires_grad=True)[:, None, None]
    made = to_image(pixels).pixels
    assert made.flatten().tolist() == [0, 0.25, 1] and made.dtype == torch.float32 and not made.requires_grad
