"""Curves as mark-up: where their points stand, and what they say under the pointer."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmgrpo.report.chart import POINTS, STOPS, Scale, interval_chart, metric_chart, quantile_chart
from mmgrpo.report.render import render
from mmgrpo.report.results import Point

NAN = math.nan


def test_lines_end_at_gaps_and_lone_values_have_dots():
    chart = metric_chart("a", np.arange(5), np.array([0.0, 1.0, NAN, 1.0, 0.0]))
    # Of five steps each is a quarter of the width apart; 6 % of the range is free above and below: .06 / 1.12 = 5.4 %.
    assert chart.thin == ["0,946.4 250,53.6", "750,53.6 1000,946.4"] and not chart.dots
    assert [stop.text for stop in chart.stops] == ["step 0: 0", "step 1: 1", "step 3: 1", "step 4: 0"]
    assert [(stop.left, stop.width) for stop in chart.stops] == [(0, 12.5), (12.5, 37.5), (50, 37.5), (87.5, 12.5)]
    assert "a over steps 0 to 4, from 0 to 0" in render("chart.html", {"chart": chart})
    assert metric_chart("a", np.arange(2), np.array([0.0, NAN])).dots


def test_a_metric_without_values_says_so():
    chart = metric_chart("a", np.arange(2), np.array([NAN, NAN]))
    assert not chart.stops and "no values" in render("chart.html", {"chart": chart})


def test_long_curves_are_thinned():
    chart = metric_chart("a", np.arange(10_000), np.arange(10_000.0))
    assert len(chart.thin[0].split()) <= POINTS and len(chart.stops) <= STOPS


def test_a_held_out_curve_has_an_interval_at_every_evaluation_but_the_first_and_the_level_before():
    chart = interval_chart("r", [Point(0, 0.5, 0.0, 1.0), Point(4, 0.75, 0.5, 1.0)])
    assert [stop.text for stop in chart.stops] == ["step 0: 0.500", "step 4: 0.750 [0.500, 1.000]"]
    (x, low, high), (_, below, above) = chart.bars
    assert x == 0 and low == high == chart.base == below > above
    alone = interval_chart("r", [Point(0, 0.5, 0.0, 1.0)])
    assert alone.base is None and alone.stops[0].text == "step 0: 0.500 [0.000, 1.000]"
    assert interval_chart("r", []).stops == []


def test_a_distribution_has_two_bands_and_a_middle():
    chart = quantile_chart("q", np.array([1.0, 2.0]), np.array([[0.0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]))
    assert len(chart.bands) == 2 and chart.thick == ["0,500 1000,500"]


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [], [NAN], [-1e300, 1e300], [0.0, 5e-324]])
def test_any_values_have_places_within_the_square(values):
    scale = Scale(values, 0.06)
    assert all(0 <= scale(value) <= 1000 for value in values if math.isfinite(value))
    assert all(0 <= at <= 100 for at, _ in scale.ticks())
