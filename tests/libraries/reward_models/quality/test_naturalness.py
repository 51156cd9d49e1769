"""The numbers of which BRISQUE and NIQE are made, on samples whose distribution is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reward_models.quality.naturalness import asymmetric_gaussian, contrast_normalized


def test_the_shape_of_a_gaussian_is_2_and_of_a_laplacian_1():
    draw = np.random.default_rng(0)
    for values, shape in ((draw.normal(size=400_000), 2), (draw.laplace(size=400_000), 1)):
        found, mean, left, right = asymmetric_gaussian(values)
        assert found == pytest.approx(shape, rel=0.02)
        assert abs(mean) < 0.02 and left == pytest.approx(right, rel=0.02)


def test_sides_of_different_width_have_their_deviations_and_a_mean():
    """The left half of a Gaussian of deviation 3, the right of deviation 1: in an asymmetric generalized Gaussian the
    mean is (right - left) Gamma(2/2) / sqrt(Gamma(1/2) Gamma(3/2)) = -2 / sqrt(pi / 2)."""
    draw = np.random.default_rng(0)
    side = draw.random(400_000) < 3 / 4  # the wider side has three times as much of the mass
    values = np.where(side, -3.0, 1.0) * np.abs(draw.normal(size=400_000))
    shape, mean, left, right = asymmetric_gaussian(values)
    assert (shape, left, right) == pytest.approx((2, 3, 1), rel=0.02)
    assert mean == pytest.approx(-2 / math.sqrt(math.pi / 2), rel=0.02)


def test_zeros_are_counted_at_the_right():
    _, _, left, right = asymmetric_gaussian(np.array([-1.0, 0, 0, 2]))
    assert (left, right) == pytest.approx((1, math.sqrt(4 / 3)))


@pytest.mark.parametrize("values", [np.ones(8), -np.ones(8), np.zeros(8), np.zeros(0)])
def test_values_of_one_sign_have_no_such_distribution(values):
    assert all(math.isnan(number) for number in asymmetric_gaussian(values))


def test_contrast_is_normalized_by_the_window_around_each_pixel():
    picture = np.random.default_rng(0).uniform(0, 255, (9, 12))
    window = np.exp(-0.5 * (np.arange(-3, 4) / (7 / 6)) ** 2)
    window = np.outer(window, window) / window.sum() ** 2
    padded = np.pad(picture, 3)
    for y, x in ((0, 0), (4, 5), (8, 11), (2, 11)):
        around = padded[y : y + 7, x : x + 7]
        mean = (window * around).sum()
        deviation = math.sqrt(abs((window * around**2).sum() - mean**2))
        expected = (picture[y, x] - mean) / (deviation + 2)
        assert contrast_normalized(picture, 2.0)[y, x] == pytest.approx(expected, abs=1e-12)


def test_flat_parts_are_exactly_0_and_not_rounding_errors():
    for value in (0.1, 0.3, 0.7, 77 / 255, 0.9):
        assert (contrast_normalized(np.full((20, 20), value), 1 / 255)[4:-4, 4:-4] == 0).all()


def test_the_flattest_shape_is_a_fifth_and_the_most_peaked_ten():
    """Nearly all of 2,000 values are 0, or all are of one size: no shape fits, and the nearest is taken."""
    rare = np.zeros(2_000)
    rare[:2] = 1, -1
    assert asymmetric_gaussian(rare - 1e-6 * (np.arange(2_000) % 2))[0] == pytest.approx(0.2)
    assert asymmetric_gaussian(np.array([1.0, -1.0]))[0] == pytest.approx(10.0)
