"""Tables in LaTeX: read, drawn and compared."""

from __future__ import annotations

import numpy as np
import pytest

from mmgrpo.types import Prompt, Text
from reward_models.rules.cw_ssim import cw_ssim
from reward_models.rules.latex import SIMILARITY
from reward_models.rules.latex_drawing import MARGIN, ROW, draw
from reward_models.rules.latex_tables import MAX_NODES, read_latex_table
from reward_models.rules.tasks import TASKS

pytest.importorskip("apted")

TABLE = r"""\begin{table}[t] \centering % a comment \begin{tabular}{c} x \end{tabular}
\begin{tabular}{l|cc}
\toprule
Method & \multicolumn{2}{c}{Accuracy in \%} \\ \cmidrule(lr){2-3}
 & dev & test \\[2pt] \midrule
\multirow{2}{*}{\textbf{Ours}} & 81.3 & $79.2\pm0.4$ \\
 & 85.1 & 82.0 \\
Base \& co & 71.3 & 68.1 \\ \bottomrule
\end{tabular} \caption{Results} \end{table}"""


def shape(code: str):
    """For each row the text and the spans (rows, columns) of its cells."""
    table = read_latex_table(code)
    assert table is not None
    return [[(cell.text, *map(int, cell.spans)) for cell in row.children] for row in table.tree().children]


def tabular(rows: str, columns: str = "cc") -> str:
    return rf"\begin{{tabular}}{{{columns}}}{rows}\end{{tabular}}"


def value(task: str, answer: str, gold: str = TABLE) -> float:
    return TASKS[task](answer, Prompt("copy it", "7", answer=gold), Text(answer))


def picture(code: str) -> np.ndarray:
    table = read_latex_table(code)
    drawn = draw(table) if table else None
    assert drawn is not None
    return drawn


def test_a_table_is_rows_of_cells_with_spans():
    assert shape(TABLE) == [
        [("Method", 1, 1), (r"Accuracy in \%", 1, 2)],
        [("", 1, 1), ("dev", 1, 1), ("test", 1, 1)],
        [(r"\textbf{Ours}", 2, 1), ("81.3", 1, 1), (r"$79.2\pm0.4$", 1, 1)],
        [("85.1", 1, 1), ("82.0", 1, 1)],  # the empty cell belongs to the one above
        [(r"Base \& co", 1, 1), ("71.3", 1, 1), ("68.1", 1, 1)],
    ]
    table = read_latex_table(TABLE)
    assert table is not None and table.rules == {0, 2, 5} and table.columns == "l|cc"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (r"a & b", [[("a", 1, 1), ("b", 1, 1)]]),
        (r"a & b \\ \hline", [[("a", 1, 1), ("b", 1, 1)]]),
        (r"a\&b & {c & d} \tabularnewline e", [[(r"a\&b", 1, 1), ("{c & d}", 1, 1)], [("e", 1, 1)]]),
        (r"\multirow[t]{3}{2cm}{a} & b \\ c & d", [[("a", 2, 1), ("b", 1, 1)], [("c", 1, 1), ("d", 1, 1)]]),
        (r"\multicolumn{2}{c|}{\multirow{2}{*}{a}} \\ & \\ b & c", [[("a", 2, 2)], [], [("b", 1, 1), ("c", 1, 1)]]),
        (r"\multicolumn{999}{c}{a}", [[("a", 1, 100)]]),
        (r"\multicolumn{n}{c}{a} & \multicolumn{}{c}{b}", [[("a", 1, 1), ("b", 1, 1)]]),
        (r"\multirow{2}{*}{\multirow{3}{*}{\multicolumn{4}{c}{a}}}", [[(r"\multicolumn{4}{c}{a}", 1, 1)]]),
        (r"\begin{tabular}{c}x\\y\end{tabular} & b", [[(r"\begin{tabular}{c}x\\y\end{tabular}", 1, 1), ("b", 1, 1)]]),
    ],
)
def test_cells_are_those_of_the_outer_table(rows, expected):
    assert shape(tabular(rows)) == expected


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "a table",
        r"\begin{tabular}{cc} a & b",
        r"\begin{tabular}",
        r"\begin{tabular}{" * 900,
        tabular("{" * 15_000),
        tabular("a&" * MAX_NODES),
        tabular(r"\multirow{99}{*}{\multicolumn{99}{c}{a}}" * 3 + r"\\" + r"\multicolumn{99}{c}{a}&" * 60),
        tabular(r"\\"),
    ],
)
def test_what_is_no_table_or_too_large_is_worth_nothing(answer):
    assert value("latex_structure", answer) == value("latex_picture", answer) == 0


def test_the_structure_is_right_above_nine_tenths():
    assert value("latex_structure", TABLE) == 1
    assert value("latex_structure", TABLE.replace("81.3", "0")) == 1  # texts do not count
    rows = [r"\\".join(["a & b & c"] * count) for count in (9, 10)]  # 37 and 41 nodes: 37 / 41 = 0.902
    assert value("latex_structure", tabular(rows[0]), tabular(rows[1])) == 1
    rows = [r"\\".join(["a & b & c"] * count) for count in (8, 9)]  # 33 / 37 = 0.892
    assert value("latex_structure", tabular(rows[0]), tabular(rows[1])) == 0
    assert value("latex_structure", TABLE.replace(r"\multicolumn{2}{c}{Accuracy in \%}", "a & b")) == 0  # 2 edits of 18


def test_the_picture_is_right_where_what_is_drawn_is_alike():
    assert value("latex_picture", TABLE) == value("latex_picture", TABLE.replace("81.3", "81.8")) == 1
    assert value("latex_picture", TABLE.replace("begin{table}", "begin{center}")) == 1
    for other in (tabular(r" & \\ & \\ & \\ & \\ & ", "lc"), TABLE.replace("Base \\& co & 71.3 & 68.1 \\\\", "")):
        assert value("latex_picture", other) == 0
    assert value("latex_picture", tabular("a")) == 0  # 3 of 20 nodes: nothing is drawn


def test_what_is_drawn_is_text_and_lines():
    blank, lines = picture(tabular("&")), picture(tabular(r"\hline & \\ \hline", "|c|c|"))
    assert blank.shape == lines.shape == (ROW + 2 * MARGIN, 4 * 5 + 2 * MARGIN)
    assert (blank == 1).all()
    across = [MARGIN, MARGIN + ROW]
    assert (lines[across, MARGIN:-MARGIN] == 0).all() and (lines[MARGIN : MARGIN + ROW, MARGIN] == 0).all()
    written = picture(tabular(r"word & $x^2$"))
    assert written.min() < 0.2 and written[:, 0].min() == 1
    left, right = (picture(tabular(r"longer \\ i", side)) for side in "lr")
    ink = [1 - half[MARGIN + ROW :] for half in (left, right)]
    assert ink[0][:, : left.shape[1] // 2].sum() > 0 == ink[0][:, left.shape[1] // 2 :].sum()
    assert ink[1][:, : left.shape[1] // 2].sum() == 0 < ink[1][:, left.shape[1] // 2 :].sum()


@pytest.mark.parametrize("cell", [r"$\foo{x}$", "$$", r"$\frac{1}$", "$x^$", "$" * 50, "\u4e2d\u6587 🐈"])
def test_what_cannot_be_set_is_drawn_as_it_is_written(cell):
    assert picture(tabular(f"{cell} & b")).shape[1] > picture(tabular(" & b")).shape[1]


def test_pictures_are_alike_by_the_phases_of_their_waves():
    generator = np.random.default_rng(0)
    one, other = generator.random((2, 64, 64))
    assert cw_ssim(one, one) == pytest.approx(1)
    assert cw_ssim(one, other) < 0.5
    assert cw_ssim(np.ones((40, 64)), np.ones((40, 64))) == 1
    edge = np.ones((64, 64))
    edge[:, 32:] = 0
    moved = np.roll(edge, 1, axis=1)
    moved[:, 0] = 1
    assert cw_ssim(edge, moved) > 0.95 > SIMILARITY > cw_ssim(edge, edge.T)
    assert cw_ssim(one[:3, :5], other[:3, :5]) <= 1
    with pytest.raises(ValueError, match="equal"):
        cw_ssim(one, other[:10])


@pytest.mark.parametrize("task", ["latex_structure", "latex_picture"])
def test_a_gold_answer_without_a_table_is_an_error(task):
    with pytest.raises(ValueError, match="'7'.*LaTeX"):
        value(task, TABLE, gold="no table")
