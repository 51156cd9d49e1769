"""NIQE: its distance by hand, and its real statistics on a photograph that is spoiled."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mmgrpo.types import Image, Prompt, Text
from reward_models.quality import niqe as module
from reward_models.quality.niqe import distance, features, niqe
from tests.libraries.reward_models.photographs import fetched, image, portrait, spoiled, texture

PROMPT = Prompt("anything", "0")


def test_the_distance_is_that_of_two_gaussians(monkeypatch):
    rows = np.array([[1.0, 2.0], [3.0, 2.0], [np.nan, 0.0]])  # mean (2, 2), covariance diag(2, 0); NaN does not count
    monkeypatch.setattr(module, "features", lambda _: rows)
    monkeypatch.setattr(module, "_photographs", lambda _: (np.array([0.0, 1.0]), np.diag([2.0, 1.0])))
    # C = diag(2, 1/2): 2^2 / 2 + 1^2 / (1/2) = 4
    assert distance(image(texture(32))) == pytest.approx(2.0)
    monkeypatch.setattr(module, "features", lambda _: rows[1:])
    assert math.isnan(distance(image(texture(32))))


def test_the_statistics_of_photographs_are_read_from_two_places_of_their_file(tmp_path, monkeypatch):
    content = bytearray(12_000)
    content[192 : 192 + 8 * 36 * 36] = np.arange(36 * 36, dtype="<f8").tobytes()
    content[10_624 : 10_624 + 8 * 36] = (-np.arange(36, dtype="<f8")).tobytes()
    (tmp_path / "niqe_image_params.mat").write_bytes(content)
    monkeypatch.setattr(module, "weights_folder", lambda *asked: {("niqe", "x", "niqe"): tmp_path}[asked])
    mean, covariance = module._photographs.__wrapped__("x")
    assert mean.tolist() == [-n for n in range(36)] and covariance.shape == (36, 36)
    assert covariance[0, :3].tolist() == [0, 1, 2] and covariance[35, 35] == 36 * 36 - 1


def test_a_picture_is_cut_into_patches_of_96_pixels_and_flat_ones_are_nan():
    photo = image(portrait())  # 512 x 600
    assert features(photo).shape == (6 * 5, 36)
    photo.pixels[:, 96:192, 192:288] = 0.5
    flat = ~np.isfinite(features(photo)).all(1)
    assert flat.tolist() == [patch == 1 * 5 + 2 for patch in range(30)]


def test_the_distance_is_that_of_scikit_video():
    """Its own code gives 12.7536 and 29.0533; half of a percent for the JPEG decoder, the finer search of the shape and
    double precision."""
    fetched("niqe")
    assert distance(image(portrait())) == pytest.approx(12.7536, rel=5e-3)
    assert distance(image(texture())) == pytest.approx(29.0533, rel=5e-3)


def test_blur_and_strong_noise_make_a_photograph_less_natural():
    """Little noise does not: NIQE takes grain for detail, where BRISQUE does not."""
    fetched("niqe")
    clean, *blurred = niqe([PROMPT] * 4, spoiled("blur"))
    assert clean > -14 and max(blurred) < clean - 2
    _, little, some, much = niqe([PROMPT] * 4, spoiled("noise"))
    assert little > clean > some + 2 > much + 6


def test_what_cannot_be_scored_is_nan_and_what_is_no_picture_an_error():
    fetched("niqe")
    small = [Image(torch.rand(3, *size)) for size in ((1, 1), (193, 400), (400, 193))]
    flat, broken = Image(torch.ones(3, 256, 256)), image(texture(256))
    broken.pixels[2, 9, 9] = math.inf
    assert all(math.isnan(value) for value in niqe([PROMPT] * 5, [*small, flat, broken]))
    with pytest.raises(TypeError, match="niqe.*Text"):
        niqe([PROMPT], [Text("hello")])


def test_pictures_are_scored_one_by_one_whatever_their_sizes():
    fetched("niqe")
    shapes = [image(texture(194)), image(portrait()), image(portrait().convert("L").convert("RGB").resize((1500, 200)))]
    assert niqe([PROMPT] * 3, shapes) == [niqe([PROMPT], [one])[0] for one in shapes]
