"""Preprocessing to the pixel, against what Pillow and hand arithmetic give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.types import Image, Text
from reward_models.pixels import centre_crop, from_pil, image_outputs, normalize, padded_longest, stretch, to_pil


def ramp(height, width):
    """Red grows to the right, green downwards."""
    pixels = torch.zeros(3, height, width)
    pixels[0], pixels[1] = torch.linspace(0, 1, width), torch.linspace(0, 1, height)[:, None]
    return Image(pixels)


def test_a_picture_of_eight_bits_is_unchanged_by_pillow_and_back():
    pixels = torch.arange(3 * 4 * 5).reshape(3, 4, 5).float() * 4 / 255
    assert torch.equal(from_pil(to_pil(Image(pixels))), pixels)
    beyond = torch.tensor([-0.5, 0.5, 1.5])[:, None, None].expand(3, 1, 2)
    assert (from_pil(to_pil(Image(beyond))) * 255).flatten(1).tolist() == [[0, 0], [128, 128], [255, 255]]


def test_the_middle_of_a_wide_picture_is_cut_out():
    image = ramp(8, 16)
    assert torch.equal(centre_crop(image, 8), from_pil(to_pil(Image(image.pixels[:, :, 4:12]))))
    assert torch.equal(centre_crop(ramp(16, 8), 8), from_pil(to_pil(Image(ramp(16, 8).pixels[:, 4:12]))))


@pytest.mark.parametrize("size", [(1, 40), (40, 1), (15, 22), (9, 9)])
def test_the_crop_is_that_of_pillow_for_odd_sizes(size):
    height, width = size
    image, short = ramp(height, width), min(size)
    scaled = to_pil(image).resize((12 * width // short, 12 * height // short), Pil.Resampling.BICUBIC)
    left, top = round((scaled.width - 12) / 2), round((scaled.height - 12) / 2)
    expected = np.asarray(scaled)[top : top + 12, left : left + 12]
    assert np.array_equal((centre_crop(image, 12) * 255).round().permute(1, 2, 0).numpy(), expected)


def test_the_longest_side_is_resized_and_the_rest_is_black():
    white = Image(torch.ones(3, 4, 8))
    padded = padded_longest(white, 16, True)
    assert padded.shape == (3, 16, 16)
    assert (padded[:, 4:12] - 1).abs().max() < 1e-5 and padded[:, :4].abs().max() == padded[:, 12:].abs().max() == 0
    assert (padded_longest(Image(torch.ones(3, 8, 4)), 16, True)[:, :, 4:12] - 1).abs().max() < 1e-5
    wide, high = (
        padded_longest(Image(torch.ones(3, 4, 15)), 15, True),
        padded_longest(Image(torch.ones(3, 15, 4)), 15, True),
    )
    assert wide[0, :, 7].round().tolist() == high[0, 7].round().tolist() == [0] * 5 + [1] * 4 + [0] * 6
    assert wide.shape == high.shape == (3, 15, 15)


def test_a_stretched_picture_has_the_height_and_width_that_are_asked_for():
    image = ramp(4, 8)
    expected = from_pil(to_pil(image).resize((6, 2), Pil.Resampling.BILINEAR))
    assert torch.equal(stretch(image, (2, 6), Pil.Resampling.BILINEAR), expected) and expected.shape == (3, 2, 6)


def test_antialiasing_averages_what_a_smaller_picture_cannot_show():
    stripes = Image((torch.arange(60) % 3 == 0).float().expand(3, 60, 60).contiguous())
    smooth, sharp = (padded_longest(stripes, 15, antialias)[:, 4:11, 4:11] for antialias in (True, False))
    assert (smooth - 1 / 3).abs().max() < 0.05 and (sharp - 1 / 3).abs().max() > 0.2


def test_normalization_by_channel():
    pixels = torch.tensor([0.5, 0.25, 1.0])[:, None, None].expand(3, 2, 2)
    result = normalize(pixels, (0.5, 0.0, 0.5), (1.0, 0.5, 0.25))
    assert result[:, 0, 0].tolist() == [0.0, 0.5, 2.0]


def test_only_pictures_are_taken_and_broken_ones_have_no_value():
    whole, broken = ramp(2, 2), ramp(2, 2)
    broken.pixels[1, 1, 0] = float("nan")
    assert image_outputs([whole, broken, whole], "r") == [whole, None, whole]
    with pytest.raises(TypeError, match="r.*Text.*Image"):
        image_outputs([Text("a")], "r")


def conversions() -> dict[str, Any]:
    """Every place where pixels become integers, as a function of a picture of one value."""
    from mmgrpo.report import plots
    from mmgrpo.types import Media, Prompt, Turn
    from pipelines.visual.conditioning_image import conditioning_image
    from pipelines.vlm.media import eight_bits

    def given(image: Image) -> Any:
        return conditioning_image(Prompt("a", turns=(Turn("user", (Media("image", image), "a")),)), "the test")

    return {
        "rewards": to_pil,
        "reports": plots.to_pil,
        "given pictures": given,
        "models that see": lambda image: eight_bits(image.pixels).permute(1, 2, 0).numpy(),
    }


@pytest.mark.parametrize("name", ["rewards", "reports", "given pictures", "models that see"])
@pytest.mark.parametrize(
    ("value", "level"), [(127.6 / 255, 128), (127.4 / 255, 127), (0.9999, 255), (0.0, 0), (1.0, 255)]
)
def test_pixels_are_rounded_to_the_nearest_level_and_not_cut_off(name, value, level):
    made = np.asarray(conversions()[name](Image(torch.full((3, 4, 5), value))))
    assert made.shape == (4, 5, 3) and (made == level).all()


@pytest.mark.parametrize("name", ["rewards", "reports", "models that see"])
def test_pixels_outside_of_zero_to_one_are_the_nearest_level(name):
    for value, level in ((-0.2, 0), (1.2, 255)):
        assert (np.asarray(conversions()[name](Image(torch.full((3, 4, 5), value)))) == level).all()
