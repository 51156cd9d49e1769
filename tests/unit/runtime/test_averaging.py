"""Averages of weights, by numbers in the head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mmgrpo.rounds.interpolation import WeightInterpolation
from mmgrpo.rounds.moving_average import Ema


def weight(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor([value]))


def move(parameter: nn.Parameter, value: float) -> None:
    with torch.no_grad():
        parameter.fill_(value)


def test_an_average_follows_closely_at_first_and_slowly_later():
    """Weights that jump from 0 to 1 before step s leave 1 - decay in the average."""
    for step, decay in ((1, 2 / 11), (2, 3 / 12), (8, 0.5), (100, 0.5)):
        one = weight(0.0)
        ema = Ema([one], decay=0.5, every=1)
        move(one, 1.0)
        ema.update(step)
        assert ema.shadow[0].item() == pytest.approx(1 - decay), step


def test_an_average_is_updated_at_every_so_many_steps():
    one = weight(0.0)
    ema = Ema([one], decay=0.1, every=3)
    move(one, 1.0)
    for step, average in ((1, 0.0), (2, 0.0), (3, 0.9), (4, 0.9), (5, 0.9), (6, 0.99)):
        ema.update(step)
        assert ema.shadow[0].item() == pytest.approx(average), step


def test_weights_are_replaced_within_a_block_and_return_after_an_error():
    one, two = weight(0.0), weight(4.0)
    ema, blend = Ema([one], decay=0.5, every=1), WeightInterpolation({"w": two}, 0.25)
    move(one, 1.0), move(two, 8.0)
    with pytest.raises(KeyError), ema.apply(), blend.apply():
        assert (one.item(), two.item()) == (0.0, 5.0)
        raise KeyError
    assert (one.item(), two.item()) == (1.0, 8.0)
