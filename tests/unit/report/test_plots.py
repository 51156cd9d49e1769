"""Curves of metrics and grids of samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image as Pil

from mmgrpo.report.plots import (
    ACCENT,
    INK,
    curve_figure,
    figure_file,
    fit,
    running_mean,
    sample_grid,
    series,
    thinned,
    title_of,
    to_pil,
)
from mmgrpo.types import Image, Text

GREY = to_rgb(INK)
ROWS = [{"step": 1, "a": 1.0}, {"step": 2, "a": None}, {"step": 4, "a": 3.0, "b": 1}]


def test_a_series_has_gaps_where_rows_have_no_value():
    steps, values = series(ROWS, "a")
    assert steps.tolist() == [1, 2, 4]
    np.testing.assert_array_equal(values, [1.0, math.nan, 3.0])


def test_a_figure_has_a_plot_for_each_metric_even_without_values():
    figure = curve_figure(ROWS, ["a", "b", "c", "d"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["a", "b", "c", "d"]
    assert [bool(axes.lines) for axes in figure.axes] == [True, True, False, False]
    assert figure.axes[2].texts[0].get_text() == "no values"
    with pytest.raises(ValueError, match="no metric names"):
        curve_figure(ROWS, [])


def test_a_plot_is_legible_on_any_background():
    """Grey axes on nothing, values as a thin line under the thick one of their mean."""
    one = curve_figure([{"step": step, "a": 1e6 + step} for step in range(3)], ["a"]).axes[0]
    few = curve_figure(ROWS[:2], ["a"]).axes[0]
    assert one.get_facecolor()[3] == 0 and {spine.get_edgecolor()[:3] for spine in one.spines.values()} == {GREY}
    assert [side for side, spine in one.spines.items() if spine.get_visible()] == ["left", "bottom"]
    assert to_rgb(one._left_title.get_color()) == GREY and one._left_title.get_fontsize() == 10
    label, line = one.xaxis.get_ticklabels()[0], one.xaxis.get_gridlines()[0]
    assert (to_rgb(label.get_color()), label.get_fontsize()) == (GREY, 8)
    assert one.xaxis.get_ticklines()[0].get_markersize() == 3
    assert (to_rgb(line.get_color()), line.get_alpha(), line.get_linewidth()) == (GREY, 0.18, 0.6)
    assert [(curve.get_linewidth(), curve.get_alpha()) for curve in one.lines] == [(0.8, 0.45), (1.8, None)]
    assert [curve.get_marker() for curve in (one.lines[0], few.lines[0])] == ["", "o"]
    assert {curve.get_color() for curve in one.lines} == {ACCENT}
    assert one.yaxis.get_major_formatter()(1234567.0) == "1.235e+06"
    steps = np.diff(curve_figure([{"step": step, "a": 0.0} for step in range(61)], ["a"]).axes[0].get_xticks())
    assert set(steps) == {15} and set(np.diff(few.get_xticks())) == {1}, "few ticks, and no half steps"


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


def test_levels_are_rounded_and_what_is_not_finite_is_black():
    pixels = torch.tensor([0.5, math.nan, 2.0]).view(3, 1, 1)
    # 0.5 * 255 = 127.5, rounded to the even 128.
    assert to_pil(Image(pixels)).getpixel((0, 0)) == (128, 0, 255)


def test_what_is_long_is_thinned_and_averaged_over_a_tenth():
    assert thinned(np.arange(20_000), np.arange(20_000))[0].size == 20_000
    assert thinned(np.arange(20_001), np.arange(20_001))[0].size == 10_001
    values = np.zeros(40)
    values[20] = 1.0
    np.testing.assert_allclose(running_mean(values)[17:24], [0, 0.2, 0.2, 0.2, 0.2, 0.2, 0])
    assert np.flatnonzero(running_mean(np.arange(200) == 100)).tolist() == list(range(90, 111))


def test_a_grid_of_nothing_or_of_words_is_an_error():
    with pytest.raises(ValueError, match="0 images.*0"):
        sample_grid([], [])
    with pytest.raises(ValueError, match="1 images.*0"):
        sample_grid([Image(torch.zeros(3, 2, 2))], [])
    with pytest.raises(TypeError, match="got Text"):
        sample_grid([Text("a")], ["a"])
    with pytest.raises(ValueError, match="got 0 columns"):
        sample_grid([Image(torch.zeros(3, 2, 2))], ["a"], columns=0)


def test_a_name_with_dollar_signs_is_no_formula():
    # As a formula, \\frac lacks its arguments.
    figure = curve_figure(ROWS, ["reward/$\\frac$/mean"])
    assert figure.axes[0].get_title(loc="left") == "reward/$\\frac$/mean"
    assert figure_file(figure).startswith(b"\x89PNG")


def test_long_lines_are_thinned_to_every_kth_row_and_names_are_drawable():
    steps, values = np.arange(7.0), np.arange(7.0) * 2
    assert [column.tolist() for column in thinned(steps, values, most=7)] == [steps.tolist(), values.tolist()]
    assert [column.tolist() for column in thinned(steps, values, most=6)] == [[0, 2, 4, 6], [0, 4, 8, 12]]
    assert thinned(np.array([]), np.array([]))[0].size == 0
    assert title_of("a\x00b\ud83d\n" + "x" * 100) == "a?b??" + "x" * 55
