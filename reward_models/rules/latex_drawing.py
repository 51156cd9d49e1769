"""Pictures of LaTeX tables, drawn by matplotlib: no TeX is needed, and nothing that a model writes is executed.

Cells are set in DejaVu Sans, formulas between dollars by matplotlib's mathtext; a formula that it does not know is drawn
as it is written. Drawn are the alignment of the columns, their vertical lines, horizontal lines across the table, spans,
and bold and italic cells; colours, sizes, widths of columns and partial lines are not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from reward_models.rules.latex import LatexTable

DPI, SIZE = 72, 10
"""Pixels to the inch, and points of a letter."""
ROW, GAP, MARGIN = 16, 5, 4
"""Pixels: height of a row, space at each side of a cell, and around the table."""
MAX_SIDE = 4000
"""Largest picture, in pixels a side; a larger table is not drawn."""
MAX_TEXT = 200
"""Characters of a cell that are drawn."""

_FONT = re.compile(r"\\(textbf|mathbf|bfseries|textit|emph|itshape)(?![A-Za-z])")
_ESCAPED = re.compile(r"\\([%&_#$ {}])")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.)\s*")
_MATH = re.compile(r"(?<!\\)\$((?:\\.|[^$\\])*)(?<!\\)\$")


@dataclass(frozen=True)
class Label:
    """The text of a cell as it is drawn."""

    text: str
    math: bool
    bold: bool
    italic: bool


def label(text: str) -> Label:
    """A cell's code as text with formulas, without commands that only concern how it looks."""
    fonts = {match[1] for match in _FONT.finditer(text)}
    parts, at, formulas = [], 0, False
    text = text[:MAX_TEXT]
    for formula in _MATH.finditer(text):
        parts.append(_plain(text[at : formula.start()]))
        known = _is_formula(formula[1])
        parts.append(f"${formula[1]}$" if known else _escaped(formula[1]))
        formulas, at = formulas or known, formula.end()
    parts.append(_plain(text[at:]))
    written = "".join(parts).strip()
    if not formulas:
        written = written.replace(r"\$", "$")
    bold, italic = bool(fonts & {"textbf", "mathbf", "bfseries"}), bool(fonts & {"textit", "emph", "itshape"})
    return Label(written, formulas, bold, italic)


def draw(table: LatexTable) -> Float[np.ndarray, "height width"] | None:
    """The table in grey, 0 black and 1 white; None if it is larger than ``MAX_SIDE``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    labels = [[label(cell.text) for cell in row] for row in table.rows]
    edges = _edges(table, labels)
    width, height = edges[-1] + 2 * MARGIN, ROW * len(table.rows) + 2 * MARGIN
    if max(width, height) > MAX_SIDE:
        return None
    figure = Figure((width / DPI, height / DPI), DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    alignment, lines = _columns(table.columns)
    for number, row in enumerate(table.rows):
        for cell, words in zip(row, labels[number], strict=True):
            left, right = edges[cell.column], edges[min(cell.column + cell.width, len(edges) - 1)]
            side = alignment[cell.column] if cell.width == 1 and cell.column < len(alignment) else "center"
            x = {"left": left + GAP, "right": right - GAP, "center": (left + right) / 2}[side]
            y = height - MARGIN - ROW * (number + min(cell.height, len(table.rows) - number) / 2)
            figure.text(
                (MARGIN + x) / width, y / height, words.text, ha=side, va="center_baseline", parse_math=words.math,
                **_style(words),
            )  # fmt: skip
    strokes = [((0, edges[-1]), (ROW * row, ROW * row)) for row in table.rules]
    strokes += [((edges[at],) * 2, (0, ROW * len(table.rows))) for at in lines if at < len(edges)]
    for xs, ys in strokes:
        places = [(MARGIN + x) / width for x in xs], [1 - (MARGIN + y) / height for y in ys]
        figure.add_artist(Line2D(*places, color="black", linewidth=1))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].mean(-1) / 255


def _edges(table: LatexTable, labels: list[list[Label]]) -> list[float]:
    """The x of the left edge of each column, and of the right edge of the last."""
    widths = [2.0 * GAP] * table.width
    cells = [(cell, words) for row, texts in zip(table.rows, labels, strict=True) for cell, words in zip(row, texts)]
    for cell, words in sorted(cells, key=lambda pair: pair[0].width):
        inside = slice(cell.column, cell.column + cell.width)
        missing = _width(words) + 2 * GAP - sum(widths[inside])
        if missing > 0:
            widths[inside] = [width + missing / cell.width for width in widths[inside]]
    return [0.0, *np.cumsum(widths).tolist()]


def _columns(columns: str) -> tuple[list[str], list[int]]:
    """Alignment of each column, and the edges that have a vertical line."""
    while (repeated := re.search(r"\*\s*\{(\d{1,2})\}\s*\{([^{}]*)\}", columns)) and len(columns) < 1000:
        columns = columns[: repeated.start()] + repeated[2] * int(repeated[1]) + columns[repeated.end() :]
    columns = re.sub(r"[@!><]\s*\{[^{}]*\}|\{[^{}]*\}|\[[^\]]*\]", "", columns)
    alignment, lines = [], []
    for letter in columns:
        if letter == "|":
            lines.append(len(alignment))
        elif letter.isalpha():
            alignment.append({"l": "left", "r": "right", "c": "center", "C": "center", "R": "right"}.get(letter, "left"))
    return alignment, lines


def _style(words: Label) -> dict[str, Any]:
    weight, slant = "bold" if words.bold else "normal", "italic" if words.italic else "normal"
    return {"fontsize": SIZE, "fontfamily": "DejaVu Sans", "fontweight": weight, "fontstyle": slant}


@lru_cache(maxsize=4096)
def _width(words: Label) -> float:
    """Pixels."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    style = {name.removeprefix("font"): value for name, value in _style(words).items()}
    return RendererAgg(1, 1, DPI).get_text_width_height_descent(words.text, FontProperties(**style), words.math)[0]


@lru_cache(maxsize=4096)
def _is_formula(code: str) -> bool:
    """Whether mathtext can set it."""
    from matplotlib.mathtext import MathTextParser

    if not code.strip() or code.count("{") > 20:
        return False
    try:
        MathTextParser("agg").parse(f"${code}$", DPI)
    except (ValueError, RecursionError, RuntimeError):
        return False
    return True


def _plain(text: str) -> str:
    """Text outside of formulas: commands removed, their arguments kept, dollars escaped for mathtext."""
    text = text.replace("~", " ").replace("---", "\u2014").replace("--", "\u2013")
    text = _ESCAPED.sub(lambda match: {"{": "\0", "}": "\1"}.get(match[1], match[1]), text)
    return _escaped(_COMMAND.sub("", text).replace("{", "").replace("}", "").replace("\0", "{").replace("\1", "}"))


def _escaped(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("$", r"\$")
