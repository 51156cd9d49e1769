"""Weights of places by the scores of regions (SRUM)."""

from __future__ import annotations

import pytest

from mmgrpo.diffusion.regions import Region, region_weights, regions_of
from mmgrpo.types import Prompt

LEFT, RIGHT = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("regions", "layout", "left", "right"),
    [
        ([], 0.2, 0.3, 0.3),  # 1.2 / 2 x .5
        ([Region(LEFT, 0.6)], 0.2, 0.48, 0.3),  # .6 x (.6 + 1) / 2
        ([Region(LEFT, -0.8)], 0.2, 0.3, 0.3),  # (-.8 + 1) / 2 = .1 is below the background's .5
        ([Region(LEFT, 0.6), Region(LEFT, 1.0), Region(RIGHT, 0.2)], 1.0, 1.0, 0.6),  # the largest
        ([Region(LEFT, 1.0)], -1.0, 0.0, 0.0),
    ],
)
def test_places_have_the_weights_of_their_regions(regions, layout, left, right):
    weights = region_weights(regions, layout, 2, 4)
    assert weights.shape == (2, 4)
    assert weights[:, :2].flatten().tolist() == pytest.approx([left] * 4, abs=1e-6)
    assert weights[:, 2:].flatten().tolist() == pytest.approx([right] * 4, abs=1e-6)


def test_an_edge_between_two_places_is_drawn_eight_times_as_fine():
    """An eighth of the image is 4 of 32 pixels, so the middle of the first place is half in the region."""
    (weights,) = region_weights([Region((0.0, 0.0, 1 / 8, 1.0), 0.6)], 0.2, 1, 4).tolist()
    assert weights == pytest.approx([(0.48 + 0.3) / 2, 0.3, 0.3, 0.3])


def test_regions_are_those_of_the_row():
    row = {"layout": 0.2, "regions": [{"box": [0, 0, 0.5, 1], "score": 0.6}]}
    assert regions_of(Prompt("a", "0", meta=row)) == ([Region(LEFT, 0.6)], 0.2)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({}, "'layout'.*'regions'"),
        ({"layout": 2, "regions": []}, r"layout.*2.*\[-1, 1\]"),
        ({"layout": 0, "regions": [{"box": [0, 0, 1], "score": 0}]}, r"regions\[0\].*box"),
        ({"layout": 0, "regions": [{"box": [0, 0, 9, 1], "score": 0}]}, r"regions\[0\].box.*9.*\[0, 1\]"),
        ({"layout": 0, "regions": [{"box": [0.5, 0, 0.5, 1], "score": 0}]}, r"regions\[0\].box.*0.5"),
        ({"layout": 0, "regions": [{"box": [0, 0, 1, 1]}]}, r"regions\[0\].score.*None"),
    ],
)
def test_a_row_without_usable_regions_is_named(meta, message):
    with pytest.raises(ValueError, match=f"'bad'.*{message}"):
        regions_of(Prompt("a", "bad", meta=meta))
