"""The tower of scenes against its formula in plain convolutions, and what it is given."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from mmgrpo.toy.scenes import vocabulary
from mmgrpo.types import Image, Prompt
from reward_models.scene_tower import SceneTower


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(0)
    return SceneTower()


def test_weights_have_the_shapes_of_heads_that_were_trained_before(tower):
    shapes = {name: tuple(value.shape) for name, value in tower.state_dict().items() if "weight" in name}
    assert shapes == {
        "embedding.weight": (len(vocabulary()) + 1, 24),
        "sentence.0.weight": (256, 12 * 24),
        "sentence.2.weight": (3 * 2 * 64, 256),
        "convolutions.0.weight": (64, 5, 3, 3),
        "convolutions.1.weight": (64, 66, 3, 3),
        "convolutions.2.weight": (64, 64, 3, 3),
        "out.weight": (128, 128),
    }
    assert tower.embedding.weight[0].tolist() == [0.0] * 24, "padding says nothing"


def test_the_features_are_those_of_the_formula(tower):
    """Convolutions of stride 2, 2, 1 with a border of zeros; each is normalized in 8 groups, scaled and shifted."""
    words, pixels = torch.randint(0, 5, (2, 12)), torch.rand(2, 3, 32, 32)
    said = functional.linear(tower.embedding.weight[words].reshape(2, 288), *tower.sentence[0].parameters())
    said = functional.linear(said * said.sigmoid(), *tower.sentence[2].parameters()).reshape(2, 3, 2, 64)
    x = pixels * 2 - 1
    for layer, (size, stride) in enumerate(((32, 2), (16, 2), (8, 1))):
        if size > 8:
            line = torch.tensor([2 * place / (size - 1) - 1 for place in range(size)])
            rows, columns = line[:, None].repeat(1, size), line[None].repeat(size, 1)
            x = torch.cat([x, rows.repeat(2, 1, 1, 1), columns.repeat(2, 1, 1, 1)], 1)
        x = functional.conv2d(x, *tower.convolutions[layer].parameters(), stride=stride, padding=1)
        groups = x.reshape(2, 8, -1)
        spread = (groups.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
        x = ((groups - groups.mean(2, keepdim=True)) / spread).reshape(x.shape)
        scale, shift = said[:, layer, 0, :, None, None], said[:, layer, 1, :, None, None]
        x = x * (1 + scale) + shift
        x = x * x.sigmoid()
    seen = torch.cat([x.flatten(2).mean(2), x.flatten(2).max(2).values], 1)
    torch.testing.assert_close(tower(words, pixels), functional.linear(seen, *tower.out.parameters()))


def test_words_are_numbers_and_pictures_are_averaged_to_32_pixels(tower):
    first, second = vocabulary()[:2]
    board = (torch.arange(64)[:, None] + torch.arange(64)).remainder(2).float().expand(3, 64, 64)
    small = torch.rand(3, 32, 32)
    prompts = [Prompt(f"{second} Zebra {first.upper()}"), Prompt(" ".join([first] * 13))]
    words, pixels = tower.inputs(prompts, [Image(board), Image(small)])
    assert words.tolist() == [[2, 0, 1] + [0] * 9, [1] * 12] and torch.equal(pixels[1], small)
    assert pixels.shape == (2, 3, 32, 32) and (pixels[0, :, 1:-1, 1:-1] - 0.5).abs().max() < 1e-6
    alone, _ = tower.inputs(prompts[:1], [Image(small)])
    assert torch.equal(alone, words[:1])
