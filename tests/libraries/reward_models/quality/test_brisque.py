"""BRISQUE: its regression by hand, and its real support vectors on a photograph that is spoiled step by step."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from mmgrpo.types import Image, Prompt, Text
from reward_models.pixels import to_pil
from reward_models.quality import brisque as module
from reward_models.quality.brisque import brisque, distortion, features
from reward_models.quality.naturalness import asymmetric_gaussian, contrast_normalized
from tests.libraries.reward_models.photographs import SPOILED, fetched, image, portrait, spoiled, texture

PROMPT = Prompt("anything", "0")

TWO_VECTORS = """svm_type epsilon_svr
kernel_type rbf
gamma 0.05
nr_class 2
total_sv 2
rho -10
SV
-3 1:1 36:-1
5 2:0.5
"""


def test_the_regression_is_a_sum_of_gaussians_around_the_support_vectors(tmp_path, monkeypatch):
    (tmp_path / "svm.txt").write_text(TWO_VECTORS)
    monkeypatch.setattr(module, "weights_folder", lambda *_: tmp_path)
    values = (module._LOW + module._HIGH) / 2  # the middle of the range is 0
    monkeypatch.setattr(module, "features", lambda _: values)
    expected = -3 * math.exp(-0.05 * 2) + 5 * math.exp(-0.05 * 0.25) + 10
    assert distortion(image(texture(32)), "two vectors") == pytest.approx(expected)


def test_the_ranges_are_the_published_ones():
    assert module._LOW.shape == module._HIGH.shape == (36,) and (module._LOW < module._HIGH).all()
    # sums over the columns of the table of the package
    assert float(module._LOW.sum()) == pytest.approx(1.556751, abs=5e-7)
    assert float(module._HIGH.sum()) == pytest.approx(36.440165, abs=5e-7)


def test_the_constant_of_the_contrast_is_one_level_of_255_and_grey_is_the_mean_of_the_channels_as_eyes_weigh_them():
    red, green, blue = np.moveaxis(np.asarray(to_pil(image(portrait().resize((40, 32)))), np.float64), 2, 0)
    luminance = 0.2125 * red + 0.7154 * green + 0.0721 * blue  # ITU-R BT.709
    shape, _, left, right = asymmetric_gaussian(contrast_normalized(luminance, 1.0))
    found = features(image(portrait().resize((40, 32))))[:2]
    assert found == pytest.approx([shape, (left**2 + right**2) / 2], rel=1e-9)


def test_half_of_the_features_are_those_of_half_the_size():
    pixels = features(image(texture(64)))
    assert pixels.shape == (36,) and np.isfinite(pixels).all()
    shape, variance = pixels[[0, 18]], pixels[[1, 19]]
    assert (shape > 1).all() and (variance > 0.1).all() and pixels[0] != pixels[18]


@pytest.mark.parametrize("damage", SPOILED)
def test_every_damage_makes_a_photograph_less_natural(damage):
    fetched("brisque")
    values = brisque([PROMPT] * 4, spoiled(damage))
    assert values[0] > 0.85
    for better, worse in itertools.pairwise(values):
        assert worse < better - 0.04


def test_the_value_is_1_less_a_hundredth_of_the_published_score_within_0_and_1(monkeypatch):
    fetched("brisque")
    photo = image(portrait())
    # the package's own code gives the scores of other photographs to 0.1; this one's depends on the JPEG decoder
    assert distortion(photo) == pytest.approx(10.6, abs=0.5)
    assert brisque([PROMPT], [photo]) == [1 - distortion(photo) / 100]
    for score, value in ((-3.0, 1.0), (130.0, 0.0)):
        monkeypatch.setattr(module, "distortion", lambda *_, score=score: score)
        assert brisque([PROMPT], [photo]) == [value]


def test_what_cannot_be_scored_is_nan_and_what_is_no_picture_an_error():
    fetched("brisque")
    flat = [Image(torch.full((3, 64, 64), value)) for value in (0.0, 0.5, 1.0)]
    tiny = [Image(torch.rand(3, *size)) for size in ((1, 1), (15, 400), (400, 1))]
    broken = image(texture(64))
    broken.pixels[0, 3, 3] = math.nan
    assert all(math.isnan(value) for value in brisque([PROMPT] * 7, [*flat, *tiny, broken]))
    assert math.isfinite(brisque([PROMPT], [image(texture(16))])[0]), "the smallest picture"
    with pytest.raises(TypeError, match=r'brisque.*Text.*frames\(reward="brisque'):
        brisque([PROMPT], [Text("hello")])


def test_pictures_are_scored_one_by_one_whatever_their_sizes():
    fetched("brisque")
    shapes = [image(texture(32)), image(portrait()), image(portrait().resize((2500, 31)))]
    together = brisque([PROMPT] * 3, shapes)
    assert together == [brisque([PROMPT], [one])[0] for one in shapes]
    assert all(0 <= value <= 1 for value in together)


def test_a_grey_picture_is_scored_like_any_other():
    fetched("brisque")
    grey = image(portrait().convert("L").convert("RGB"))
    assert brisque([PROMPT], [grey])[0] == pytest.approx(brisque([PROMPT], [image(portrait())])[0], abs=0.05)
