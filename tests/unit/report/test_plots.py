"""Series of metrics and grids of samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image as Pil

from mmgrpo.report.plots import (
    fit,
    running_mean,
    sample_grid,
    series,
    to_pil,
)
from mmgrpo.types import Image, Text

ROWS = [{"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 4, "a": 3.0, "b": 1}]


def test_a_series_has_gaps_where_rows_have_no_value():
    steps, values = series(ROWS, "a")
    assert steps.tolist() == [1, 2, 4]
    np.testing.assert_array_equal(values, [1.0, math.nan, 3.0])


def test_the_running_mean_takes_neighbours_and_skips_gaps():
    # Five values: a window of one neighbour on each side.
    values = np.array([1.0, 3.0, math.nan, math.nan, math.nan])
    np.testing.assert_array_equal(running_mean(values), [2.0, 2.0, 3.0, math.nan, math.nan])


def test_a_grid_holds_the_pictures_in_reading_order():
    colours = torch.eye(3)
    images = [Image(colour[:, None, None].expand(3, 4, 4)) for colour in colours]
    sheet = sample_grid(images, ["red", "green", "blue"], columns=2, tile=48)
    # gap 48 // 12 = 4, so two tiles and three gaps are 2 * 48 + 3 * 4 = 108 px wide.
    assert sheet.width == 108
    first_row, second_row = 4 + 24, sheet.height // 2 + 4 + 20
    assert sheet.getpixel((4 + 24, first_row)) == (255, 0, 0)
    assert sheet.getpixel((4 + 48 + 4 + 24, first_row)) == (0, 255, 0)
    assert sheet.getpixel((4 + 24, second_row)) == (0, 0, 255)


def test_small_pictures_are_enlarged_pixel_by_pixel_and_sides_keep_their_proportion():
    picture = to_pil(Image(torch.tensor([[[0.0, 1.0]]]).expand(3, 1, 2)))
    enlarged = fit(picture, 8)
    assert enlarged.size == (8, 4)
    assert {enlarged.getpixel((x, 0)) for x in range(8)} == {(0, 0, 0), (255, 255, 255)}
    assert fit(Pil.new("RGB", (100, 400)), 40).size == (10, 40)


def test_a_grid_of_nothing_or_of_words_is_an_error():
    with pytest.raises(ValueError, match="0 images.*0"):
        sample_grid([], [])
    with pytest.raises(ValueError, match="1 images.*0"):
        sample_grid([Image(torch.zeros(3, 2, 2))], [])
    with pytest.raises(TypeError, match="got Text"):
        sample_grid([Text("a")], ["a"])
    with pytest.raises(ValueError, match="got 0 columns"):
        sample_grid([Image(torch.zeros(3, 2, 2))], ["a"], columns=0)
