"""Numbers as a page writes them."""

from __future__ import annotations

import math

import pytest

from mmgrpo.report.figures import Cell, decimals, difference_cell, duration, mean_cell, number


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.25, ".3f", "0.250"),
        (-0.25, ".3f", "−0.250"),
        (0.25, "+.3f", "+0.250"),
        # What rounds to zero has no sign.
        (-0.0004, ".3f", "0.000"),
        (0.0004, "+.3f", "0.000"),
        (-0.001, "+.1%", "−0.1%"),
        (-1.5e-08, ".1e", "−1.5e-08"),
        (7, ".0f", "7"),
        (None, ".3f", "–"),
        # JSON holds these, and none is a number to be written with three digits.
        ("seven", ".3f", "seven"),
        (True, ".3f", "True"),
        (math.nan, ".3f", "nan"),
        (10**400, ".3f", str(10**400)),
        (1e300, ".3f", "1e+300"),
    ],
)
def test_a_number_is_written_with_a_minus_sign_and_anything_else_as_it_is(value, form, text):
    assert number(value, form) == text


@pytest.mark.parametrize(
    ("low", "high", "kind", "kind_of_less"),
    [(0.1, 0.3, "good", "bad"), (-0.3, -0.1, "bad", "good"), (-0.1, 0.3, "", ""), (0.0, 0.2, "", ""), (0, 0, "", "")],
)
def test_a_difference_is_good_or_bad_where_its_interval_excludes_zero(low, high, kind, kind_of_less):
    estimate = {"mean": (low + high) / 2, "low": low, "high": high, "n": 9}
    assert difference_cell(estimate).kind == kind
    assert difference_cell(estimate, less_is_better=True).kind == kind_of_less


def test_a_cell_has_a_mean_and_its_interval_or_what_is_there_instead():
    assert mean_cell({"mean": 0.5, "low": -0.25, "high": 1.0}) == Cell("0.500", "−0.250 to 1.000")
    assert difference_cell({"mean": 0.5, "low": 0.25, "high": 1}) == Cell("+0.500", "+0.250 to +1.000", "good")
    assert mean_cell(None) == difference_cell(None) == Cell("–")
    assert mean_cell({"mean": 0.5}) == Cell("{'mean': 0.5}")


def test_a_duration_has_its_two_largest_units():
    # 3725 s = 1 h 2 min 5 s
    assert [duration(s) for s in (3725, 125, 59.6, None, "3")] == ["1 h 2 min", "2 min 5 s", "1 min 0 s", "", ""]


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [
        (0.1, 0.2, 3),
        (-0.4, 0.5, 3),
        (0.0012, 0.0019, 5),
        (120.0, 190.0, 0),
        (12.1, 12.9, 2),
        (1e-9, 2e-9, 6),
        (0.5, 0.5, 3),
    ],
)
def test_decimals_show_two_digits_of_the_interval(low, high, places):
    assert decimals(None, {"mean": low, "low": low, "high": high}) == places


def test_a_small_difference_is_not_shown_as_zero():
    cell = difference_cell(tiny := {"mean": 0.0004, "low": 0.0003, "high": 0.0005}, places=decimals(tiny))
    assert cell == Cell("+0.00040", "+0.00030 to +0.00050", "good")
