"""Options of media: the smallest and largest value of each, and what lies beyond."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo.data.limits import MAX_PIXELS
from mmgrpo.data.media import LONGEST, OPTIONS, medium_of, options_of

RIGHT = {
    ("image", "min_pixels"): [1, MAX_PIXELS],
    ("image", "max_pixels"): [1, (1 << 63) - 1],
    ("video", "min_pixels"): [1, MAX_PIXELS],
    ("video", "max_pixels"): [1, (1 << 63) - 1],
    ("video", "fps"): [1e-6, 2, LONGEST],
    ("video", "frames"): [2, (1 << 63) - 2],
    ("video", "start"): [0, 1.5, LONGEST],
    ("video", "end"): [0.5, LONGEST],
    ("video", "times"): [[0], [0, 0.5, 0.5, LONGEST]],
    ("audio", "start"): [0, 1.5, LONGEST],
    ("audio", "end"): [0.5, LONGEST],
    ("video", "shuffle"): [0, -7, (1 << 63) - 1],
}
WRONG = {
    ("image", "min_pixels"): [0, MAX_PIXELS + 1],
    ("image", "max_pixels"): [0, -1, 1 << 63],
    ("video", "min_pixels"): [0, MAX_PIXELS + 1],
    ("video", "max_pixels"): [0, -1, 1 << 63],
    ("video", "fps"): [0, 9e-7, LONGEST + 1],
    ("video", "frames"): [0, 3, -2, 1 << 63],
    ("video", "start"): [-0.1, LONGEST + 1],
    ("video", "end"): [0, LONGEST + 1],
    ("video", "times"): [[], [-0.1], [LONGEST + 1], [1, 0.5], [True], ["0"], 2, (0, 1)],
    ("audio", "start"): [-0.1, LONGEST + 1],
    ("audio", "end"): [0, LONGEST + 1],
    ("video", "shuffle"): [1 << 63, -(1 << 63)],
}
INTEGERS = {"min_pixels", "max_pixels", "frames", "shuffle"}


def cases(table):
    return [(*place, value) for place, values in table.items() for value in values]


def test_every_option_is_tried():
    every = {(kind, name) for kind, options in OPTIONS.items() for name in options}
    assert RIGHT.keys() == WRONG.keys() == every


@pytest.mark.parametrize(("kind", "name", "value"), cases(RIGHT))
def test_the_limits_themselves_are_allowed(kind, name, value):
    source = tuple("file" for _ in value) if isinstance(value, list) else "file"
    assert options_of({name: value}, kind, source) == {name: value}


@pytest.mark.parametrize(("kind", "name", "value"), cases(WRONG))
def test_what_lies_beyond_is_refused_by_name(kind, name, value):
    with pytest.raises(ValueError, match=f"'{name}'"):
        options_of({name: value}, kind, "file")


@pytest.mark.parametrize("name", ["fps", "start", "end"])
def test_a_number_is_finite(name):
    for value in (float("inf"), float("-inf"), float("nan")):
        with pytest.raises(ValueError, match=f"'{name}'"):
            options_of({name: value}, "video", "file")


@pytest.mark.parametrize(
    ("kind", "path", "words"),
    [
        ("video", [], r"\[\]"),
        ("video", ["a.png", ""], "frame files"),
        ("video", ["a.png", 3], "frame files"),
        ("video", "", "frame files"),
        ("image", ["a.png"], r'\["a.png"\]'),
    ],
)
def test_a_path_is_a_text_and_of_a_clip_also_a_list_of_them(kind, path, words):
    with pytest.raises(ValueError, match=f"^path.*{words}"):
        medium_of({"path": path}, kind, Path())


@pytest.mark.parametrize(("kind", "name"), RIGHT)
def test_what_is_no_number_is_refused(kind, name):
    for value in (
        "2",
        True,
        float("nan"),
        *([2] for _ in range(name != "times")),
        *([2.0] if name in INTEGERS else []),
    ):
        with pytest.raises(ValueError, match=f"'{name}'"):
            options_of({name: value}, kind, "file")


def test_a_range_may_be_a_point_and_not_be_turned_round():
    for kind, low, high in (("video", "start", "end"), ("image", "min_pixels", "max_pixels")):
        assert options_of({low: 2, high: 2}, kind, "file") == {low: 2, high: 2}
        with pytest.raises(ValueError, match=f"'{low}'.*'{high}'.*3.*2"):
            options_of({low: 3, high: 2}, kind, "file")


def test_frames_in_files_have_a_rate_at_which_they_were_taken():
    both = {"fps": 2, "frames": 4}
    assert options_of(both, "video", ("1.png", "2.png")) == both
    with pytest.raises(ValueError, match="'fps'.*'frames'"):
        options_of(both, "video", "a.mp4")
