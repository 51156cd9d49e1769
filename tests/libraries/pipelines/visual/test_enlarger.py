"""Small models that draw through an enlarger: its formula, its files, and a model that has one."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch

from pipelines.visual import sd3
from pipelines.visual.enlarger import Enlarger
from tests.building import load
from tests.libraries.pipelines.visual.drawing import noise


def enlarger(scale: int = 2) -> Enlarger:
    torch.manual_seed(0)
    return Enlarger(scale, width=4).eval()


def test_without_convolutions_every_pixel_is_repeated():
    one = enlarger(3)
    last: Any = one.convolutions[-2]
    x = torch.randn(2, 3, 4, 5)
    with torch.no_grad():
        last.weight.zero_()
        last.bias.zero_()
        assert torch.equal(one(x), x.repeat_interleave(3, 2).repeat_interleave(3, 3))


def test_outputs_are_the_pixels_in_the_place_of_each():
    # With only a bias, channel 4 c + 2 i + j of the last convolution is pixel (i, j) of colour c in every square.
    one = enlarger()
    last: Any = one.convolutions[-2]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.copy_(torch.arange(12.0))
        y = one(torch.zeros(1, 3, 2, 3))
    assert y.shape == (1, 3, 4, 6)
    assert y[0, 1].tolist() == [[4, 5] * 3, [6, 7] * 3] * 2


def test_an_enlarger_reads_back(tmp_path):
    one = enlarger(4)
    for _ in range(2):  # into a folder that is not there, and into one that is
        one.save(tmp_path / "new" / "enlarger")
    again = Enlarger.load(tmp_path / "new" / "enlarger")
    x = torch.randn(1, 3, 4, 4)
    assert again.scale == 4 and not again.training and torch.equal(again(x), one(x))


@pytest.mark.parametrize("name", ["enlarger.json", "enlarger.safetensors"])
def test_half_an_enlarger_is_no_enlarger(name, tmp_path):
    enlarger().save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        Enlarger.load(tmp_path)


def test_a_model_with_an_enlarger_draws_and_saves_larger_pictures(words_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(words_folder, folder)
    enlarger().save(folder / "enlarger")
    small, large = load(sd3, words_folder, height=16, width=24), load(sd3, folder, height=32, width=48)
    assert not any(parameter.requires_grad for parameter in large.architecture.enlarger.parameters())
    assert large.latent_shape() == small.latent_shape() == (3, 16, 24)
    x = noise(small, 2)
    with torch.no_grad():
        expected = [((picture + 1) / 2).clamp(0, 1) for picture in enlarger()(x)]
    for shown, wanted in zip(large.decode(x), expected, strict=True):
        torch.testing.assert_close(shown.pixels, wanted)
    with pytest.raises(ValueError, match="height.*36.*8"):
        load(sd3, folder, height=36)
    large.save(tmp_path / "saved", large.network)
    again = load(sd3, tmp_path / "saved")
    assert again.decode(noise(again, 1))[0].pixels.shape == (3, 32, 32)  # the default of 16 positions
    torch.testing.assert_close(again.decode(x)[0].pixels, large.decode(x)[0].pixels)
