"""Pictures of a grid in their sizes, and the lines of their captions."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image as Pil
from PIL import ImageDraw, ImageFont

from mmgrpo.report.plots import curve_figure, figure_png, fit, sample_grid, to_pil, wrap


class Letters(ImageFont.FreeTypeFont):
    """Every letter is one wide."""

    def __init__(self) -> None:
        pass

    def getlength(self, text, *_, **__) -> float:
        return len(text)


@pytest.mark.parametrize(
    ("caption", "lines"),
    [("aa bb", ["aa", "bb"]), ("aa bb cc", ["aa", "b…"]), ("aa b cc", ["aa", "b…"]), ("aabbc", ["aa", "b…"])],
)
def test_a_caption_that_has_more_lines_than_allowed_ends_with_an_ellipsis(caption, lines):
    assert wrap(caption, Letters(), 2, max_lines=2) == [(line, False) for line in lines]


def test_a_caption_has_four_lines():
    assert len(wrap("a b c d", Letters(), 1)) == 4 and wrap("a b c d e", Letters(), 1)[-1] == ("…", False)


def test_a_picture_of_a_library_is_taken_as_it_is():
    picture = Pil.new("L", (2, 3))
    assert to_pil(picture) is picture


def test_a_side_has_at_least_a_pixel_and_only_larger_pictures_are_smoothed():
    columns = Pil.fromarray(np.tile(np.array([0, 255], np.uint8), (4, 2)))
    assert fit(Pil.new("L", (100, 1)), 10).size == (10, 1)
    assert set(np.unique(np.asarray(fit(columns, 6)))) == {0, 255}
    assert 100 < np.asarray(fit(columns, 2)).mean() < 155 and np.asarray(fit(columns, 1)).min() > 0


def test_a_caption_is_set_half_a_gap_below_its_picture():
    """Tiles of 132: gaps of 11, letters of 12."""
    sheet = sample_grid([Pil.new("RGB", (132, 132), "white")], ["Hxg"], tile=132)
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 12)
    wanted = Pil.new("RGB", sheet.size, "white")
    ImageDraw.Draw(wanted).text((11, 11 + 132 + 5), "Hxg", font=font, fill="#1c1c20")
    assert sheet.tobytes() == wanted.tobytes()


def test_a_figure_is_a_png_whatever_the_settings_of_matplotlib():
    with matplotlib.rc_context({"savefig.format": "svg"}):
        assert figure_png(curve_figure([{"step": 1, "a": 1.0}], ["a"])).startswith(b"\x89PNG")
