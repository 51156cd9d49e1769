"""Where the pictures of LaTeX tables have ink, with blocks in place of letters, and how letters are set."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules import latex_drawing
from reward_models.rules.cw_ssim import _windows, cw_ssim, resize_both
from reward_models.rules.latex_drawing import _columns, draw, label, labels_of
from reward_models.rules.latex_tables import _argument, _optional, read_latex_table
from reward_models.rules.tasks import TASKS

pytest.importorskip("apted")


def tabular(rows: str, columns: str = "cc") -> str:
    return rf"\begin{{tabular}}{{{columns}}}{rows}\end{{tabular}}"


def drawn(rows: str, columns: str) -> np.ndarray | None:
    table = read_latex_table(tabular(rows, columns))
    assert table is not None
    return draw(table)


def block(text: str) -> np.ndarray:
    """``12`` is a block 6 pixels high and 12 wide, ``12x40`` one 40 pixels high."""
    width, _, height = text.partition("x")
    return np.ones((int(height or 6), int(width or 0)))


def canvas(height: int, width: int, *boxes: tuple[int, int, int, int]) -> np.ndarray:
    """White with black boxes (top, bottom, left, right), inside a margin of 4 pixels."""
    ink = np.zeros((height + 8, width + 8))
    for top, bottom, left, right in boxes:
        ink[4 + top : 4 + bottom, 4 + left : 4 + right] = 1
    return 1 - ink


@pytest.mark.parametrize(
    ("columns", "rows", "expected"),
    [
        # columns of 10 + 2 * 5 and 20 + 2 * 5 pixels, rows of 16
        ("lr", r"10 & 3 \\ 4 & 20", canvas(32, 50, (5, 11, 5, 15), (5, 11, 42, 45), (21, 27, 5, 9), (21, 27, 25, 45))),
        ("cc", r"10 & 3 \\ 3 & 20", canvas(32, 50, (5, 11, 5, 15), (5, 11, 33, 36), (21, 27, 8, 11), (21, 27, 25, 45))),
        # a column without a letter is centred, as is a cell of several columns
        ("l", r"10 & 20 \\ 4 & 4", canvas(32, 50, (5, 11, 5, 15), (5, 11, 25, 45), (21, 27, 5, 9), (21, 27, 33, 37))),
        ("ll", r"10 & 20 \\ \multicolumn{2}{c}{6}", canvas(32, 50, (5, 11, 5, 15), (5, 11, 25, 45), (21, 27, 22, 28))),
        # one of 31 + 2 * 5 pixels over two columns of 10: 21 are missing, 11 to each; narrower cells go first
        ("ll", r"\multicolumn{2}{c}{31} \\ & ", canvas(32, 42, (5, 11, 5, 36))),
        ("ll", r"\multicolumn{2}{c}{31} \\ 20 & ", canvas(32, 42, (5, 11, 5, 36), (21, 27, 5, 25))),
        ("ll", r"\multicolumn{2}{c}{5} \\ 20 & ", canvas(32, 40, (5, 11, 17, 22), (21, 27, 5, 25))),
        ("lll", r"8 & \multicolumn{2}{c}{31}", canvas(16, 60, (5, 11, 5, 13), (5, 11, 23, 54))),
        # over two rows, the second of which may be missing
        ("ll", r"\multirow{2}{*}{10} & 4 \\ & 4", canvas(32, 34, (13, 19, 5, 15), (5, 11, 25, 29), (21, 27, 25, 29))),
        ("ll", r"4 & 4 \\ \multirow{9}{*}{10} & 4", canvas(32, 34, (5, 11, 5, 9), (5, 11, 25, 29))
         - canvas(32, 34) + canvas(32, 34, (21, 27, 5, 15), (21, 27, 25, 29))),
        # letters higher than the picture are cut at both ends; others stand out of their row
        ("l", "10x40", 1 - np.pad(np.ones((24, 10)), ((0, 0), (9, 9)))),
        ("l", r"10x20 \\ 4", canvas(32, 20, (-2, 18, 5, 15), (21, 27, 5, 9))),
        # lines on the edges of rows and columns, as far as the table goes
        ("|l|l|l|", r"\hline 10 & 4 \\ \hline 4 & 4 \\ \bottomrule",
         canvas(32, 34, (0, 33, 0, 1), (0, 33, 20, 21), (0, 33, 34, 35), (0, 1, 0, 35), (16, 17, 0, 35),
                (32, 33, 0, 35), (5, 11, 5, 15), (5, 11, 25, 29), (21, 27, 5, 9), (21, 27, 25, 29))),
    ],
)  # fmt: skip
def test_blocks_and_lines_are_where_they_should_be(columns, rows, expected, monkeypatch):
    monkeypatch.setattr(latex_drawing, "_ink", lambda words: block(words.text))
    np.testing.assert_array_equal(drawn(rows, columns), expected)


def test_pictures_have_sides_of_at_most_4000_pixels(monkeypatch):
    monkeypatch.setattr(latex_drawing, "_ink", lambda words: block(words.text))
    # 2 * 4 around 398 empty columns of 10, and one of 2 or 3 + 10; most rows are fewer than 4000 / 16
    assert drawn("2" + "&" * 398, "c").shape == (24, 4000) and drawn("3" + "&" * 398, "c") is None
    assert drawn(r"1 \\" * 249, "c").shape == (16 * 249 + 8, 19)


@pytest.mark.parametrize(
    ("columns", "alignment", "lines"),
    [
        ("l|cr", ["left", "center", "right"], [1]),
        ("||C|R|", ["center", "right"], [0, 0, 1, 2]),
        ("*{3}{c|}l", ["center"] * 3 + ["left"], [1, 2, 3]),
        ("* {2} {*{2}{r}}", ["right"] * 4, []),
        ("@{}lp{3cm}!{x}X>{c}m[c]{1}<{c}", ["left"] * 4, []),
        ("S", ["left"], []),
    ],
)
def test_columns_have_an_alignment_and_lines_beside_them(columns, alignment, lines):
    assert _columns(columns) == (alignment, lines)


@pytest.mark.parametrize(
    ("code", "at", "argument", "end"),
    [
        ("{ab}c", 0, "ab", 4),
        ("x {a{b}}c", 1, "a{b}", 8),
        (r"{a\}b}c", 0, r"a\}b", 6),
        ("{ab", 0, "ab", 3),
        ("  c", 0, "c", 3),
        ("cd", 0, "c", 1),
        ("a", 1, "", 1),
        ("a  ", 1, "", 3),
    ],
)
def test_an_argument_is_in_braces_or_a_character(code, at, argument, end):
    assert _argument(code, at) == (argument, end)


def test_an_optional_argument_is_left_out():
    assert _optional(" [t]{x}", 0) == 4 and _optional("{x}[t]", 0) == 0 and _optional("{x}[t]", 3) == 6


def test_a_table_has_fewer_than_500_rows_and_cells():
    assert read_latex_table(tabular("a&" * 497)) is not None and read_latex_table(tabular("a&" * 498)) is None
    assert read_latex_table(tabular(r"a \\ " * 249)) is not None and read_latex_table(tabular(r"a \\ " * 250)) is None
    # of 100 columns, 50 rows below are 5000 places
    tall = [tabular(rf"\multirow{{{rows}}}{{*}}{{\multicolumn{{100}}{{c}}{{a}}}}") for rows in (51, 52)]
    assert [read_latex_table(one) is not None for one in tall] == [True, False]
    code = tabular("a")
    long = [code + " " * (20_000 - len(code) + more) for more in (0, 1)]
    assert [read_latex_table(one) is not None for one in long] == [True, False]


@pytest.mark.parametrize(
    ("code", "text", "bold", "italic"),
    [
        ("a  b", "a b", False, False),
        (r"\textbf{a}", "a", True, False),
        (r"\mathbf a", "a", True, False),
        (r"\bfseries a", "a", True, False),
        (r"\textit{a}", "a", False, True),
        (r"\emph{a}", "a", False, True),
        (r"\itshape a", "a", False, True),
        (r"\textbfx{a}", "a", False, False),
        (r"a~b---c--d", "a b\u2014c\u2013d", False, False),
        (r"\% \& \_ \# \$ \{ \} {a}", "% & _ # $ { } a", False, False),
        ("x" * 300, "x" * 200, False, False),
    ],
)
def test_a_label_is_what_would_be_read(code, text, bold, italic):
    got = label(code)
    assert (got.text, got.math, got.bold, got.italic) == (text, False, bold, italic)


def test_formulas_stay_as_they_are_between_their_dollars():
    got = label(r"a $x_1$ -- $y^2$ \textbf{b}")
    assert (got.text, got.math, got.bold) == ("a $x_1$ \u2013 $y^2$ b", True, True)
    assert label("$x$").math and not label("$x$", math=False).math
    assert label(r"$x$ \$", math=False).text == "$x$ $" and label(r"$x$ \$").text == r"$x$ \$"


def test_formulas_are_set_up_to_4000_characters():
    def maths(*lengths: int) -> list[bool]:
        cells = ["$" + "x" * (length - 2) + "$" for length in lengths]
        table = read_latex_table(tabular(r" \\ ".join([*cells, "$ 5", "$z$"])))
        assert table is not None
        labels = [one for row in labels_of(table) for one in row]
        assert [one.text for one in labels] == [*cells, "$ 5", "$z$"]
        return [one.math for one in labels]

    assert maths(*[200] * 19, 197) == [True] * 20 + [False, True]  # 3997 and 3 of the last one
    assert maths(*[200] * 19, 198) == [True] * 20 + [False, False]


def picture_value(answer: str, gold: str) -> float:
    return TASKS["latex_picture"](answer, Prompt("copy it", "7", answer=gold), Text(answer))


def test_what_is_too_wide_to_draw_is_worth_nothing_or_an_error():
    wide, narrow = (tabular(" & ".join([letter * 200] * 3), "ccc") for letter in "Wi")
    assert drawn(" & ".join(["W" * 200] * 3), "ccc") is None
    assert picture_value(wide, narrow) == 0
    with pytest.raises(ValueError, match="'7'"):
        picture_value(narrow, wide)


def test_pictures_of_tables_with_another_structure_are_not_compared():
    """All are white. Of 1 + 4 * 2 nodes one row and cell leave 3 / 9, two rows 5 / 9; of 1 + 5 * 2, 3 / 11."""
    for rows, gold, expected in ((1, 4, 1), (2, 4, 1), (1, 5, 0)):
        assert picture_value(tabular(r"~ \\ " * rows, "c"), tabular(r"~ \\ " * gold, "c")) == expected


def naive(a: np.ndarray, b: np.ndarray) -> float:
    """CW-SSIM with a loop over frequencies and windows."""
    sides = [-(-(side + 14) // 16) * 16 for side in a.shape]
    margins = [(7, whole - side - 7) for whole, side in zip(sides, a.shape)]
    spectra = [np.fft.fft2(np.pad(one, margins, mode="edge")) for one in (a, b)]
    values = []
    for scale in range(3):
        for number in range(8):
            band = np.zeros(sides)
            for row, fy in enumerate(np.fft.fftfreq(sides[0])):
                for column, fx in enumerate(np.fft.fftfreq(sides[1])):
                    size = math.hypot(fx, fy)
                    away = math.log2(size * 4 * 2**scale) if size else 9.0
                    if abs(away) < 1:
                        toward = (fx * math.cos(math.pi * number / 8) + fy * math.sin(math.pi * number / 8)) / size
                        band[row, column] = math.cos(math.pi / 2 * away) * max(toward, 0) ** 7
            x, y = (np.fft.ifft2(one * band)[7 : 7 + a.shape[0], 7 : 7 + a.shape[1]] for one in spectra)
            height, width = (min(7 * 2**scale, side) for side in a.shape)
            parts = []
            for i in range(a.shape[0] - height + 1):
                for j in range(a.shape[1] - width + 1):
                    cx, cy = (one[i : i + height, j : j + width] for one in (x, y))
                    energy = (abs(cx) ** 2 + abs(cy) ** 2).sum()
                    parts.append((2 * abs((cx * cy.conj()).sum()) + 1e-3) / (energy + 1e-3))
            values.append(np.mean(parts))
    return float(np.mean(values))


@pytest.mark.parametrize("shape", [(20, 9), (33, 18)])
def test_cw_ssim_is_that_of_its_formula(shape):
    a, b = np.random.default_rng(0).random((2, *shape))
    assert cw_ssim(a, b) == pytest.approx(naive(a, b), rel=1e-9)


def test_windows_are_sums():
    values = np.arange(12.0).reshape(3, 4)
    assert _windows(values, 2).real.tolist() == [[10, 14, 18], [26, 30, 34]]
    assert _windows(values, 9).real.tolist() == [[66]]


def test_pictures_are_scaled_to_the_reference_and_to_512_pixels():
    ramp = np.linspace(0, 1, 40)[None].repeat(10, 0)
    same, other = resize_both(ramp, ramp)
    assert same is ramp and other is ramp
    assert resize_both(ramp, np.ones((512, 1)))[0].shape == (512, 1)
    assert [one.shape for one in resize_both(ramp, np.ones((1024, 700)))] == [(512, 350)] * 2
    assert resize_both(ramp, np.ones((2048, 1)))[1].shape == (512, 1)
    np.testing.assert_allclose(resize_both(ramp, np.ones((5, 20)))[0][0], np.linspace(0, 1, 20), atol=0.03)
