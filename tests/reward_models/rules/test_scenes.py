"""Rewards of scenes by hand: prompts that state no scene, and the best of several things that could be meant."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.toy.scenes import parse
from mmgrpo.types import Image, Prompt
from reward_models.rules.scenes import Detection, _fit, scene_score


@pytest.mark.parametrize("answer", [None, 3, "a red circle", {"place": "top"}])
def test_a_prompt_without_a_scene_is_an_error(answer):
    with pytest.raises(ValueError, match="prompt 'a' has no scene as its answer; make such prompts"):
        scene_score([Prompt("a", "0", answer)], [Image(torch.ones(3, 32, 32))])


@pytest.mark.parametrize("first", [0, 1])
def test_of_several_things_the_one_of_the_wanted_shape_counts(first):
    """Two red things where one is wanted: nothing for the count, the agreement of the better one over two."""

    def thing(**agreements: float) -> Detection:
        return Detection("red", "", 16.0, 16.0, 0.9, agreements)

    scene = parse("a red circle")
    things = [thing(circle=0.5, square=0.75), thing(square=0.5)]
    found = _fit(scene, things if first else things[::-1])
    assert found - _fit(scene, [thing(square=0.5)] * 2) == pytest.approx(0.5 / 2 / 3)
