"""Judges of naturalness on flat, noisy or small images, in which a policy may end: no number, or no high one."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.scoring import Scorer, score_outputs
from mmgrpo.types import Image, Prompt
from reward_models.quality.brisque import brisque
from reward_models.quality.niqe import niqe

LEVELS = {"black": 0.0, "grey": 0.5, "white": 1.0}


def noise(side: int) -> Image:
    return Image(torch.rand(3, side, side, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("reward", [brisque, niqe])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("side", [64, 128, 256])
def test_a_flat_image_has_no_score_and_is_counted_as_not_scored(reward, level, side):
    flat = Image(torch.full((3, side, side), LEVELS[level]))
    scores = score_outputs([Scorer(reward.__name__, reward)], [Prompt("a")], [flat])
    assert not scores.valid.any() and scores.values.tolist() == [[0.0]]


@pytest.mark.parametrize("side", [8, 128, 193])
def test_niqe_has_no_score_of_an_image_below_194_pixels(side):
    """Two patches of 96 pixels and a pixel at each side: no image of 128 has one, whatever is on it."""
    assert torch.tensor(niqe([Prompt("a")] * 2, [noise(side), Image(noise(side).pixels.round())])).isnan().all()


def test_brisque_has_no_score_of_an_image_below_16_pixels():
    assert torch.tensor(brisque([Prompt("a")], [noise(15)])).isnan().all()
