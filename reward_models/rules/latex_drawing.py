"""Images of LaTeX tables, drawn by matplotlib: no TeX is needed, and nothing that a model writes is executed.

Cells are set in DejaVu Sans, formulas between dollars by matplotlib's mathtext; a formula that it does not know is
drawn as it is written. Drawn are the alignment of the columns, their vertical lines, horizontal lines across the table,
spans, and bold and italic cells; colours, sizes, widths of columns and partial lines are not.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from reward_models.rules.latex_tables import LatexTable

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

DPI, SIZE = 72, 10
"""Pixels to the inch, and points of a letter."""
ROW, GAP, MARGIN = 16, 5, 4
"""Pixels: height of a row, space at each side of a cell, and around the table."""
MAX_SIDE = 4000
"""Largest image, in pixels a side; a larger table is not drawn."""
MAX_TEXT, MAX_FORMULAS = 200, 4000
"""Characters of a cell that are drawn, and of formulas in a table that are set as such."""

_FONT = re.compile(r"\\(textbf|mathbf|bfseries|textit|emph|itshape)(?![A-Za-z])")
_ESCAPED = re.compile(r"\\([%&_#$ {}])")
_COMMAND = re.compile(r"\\(?:[A-Za-z]+\*?|.)\s*")
_MATH = re.compile(r"(?<!\\)\$((?:\\.|[^$\\])+)\$")


@dataclass(frozen=True)
class Label:
    """The text of a cell as it is drawn."""

    text: str
    math: bool
    bold: bool
    italic: bool


def label(text: str, math: bool = True) -> Label:
    """A cell's code as text with formulas, without commands that only concern how it looks; ``math=False`` leaves
    formulas as they are written."""
    fonts = {match[1] for match in _FONT.finditer(text)}
    parts, at = [], 0
    text = text[:MAX_TEXT]
    for formula in _MATH.finditer(text):
        parts += [_plain(text[at : formula.start()]), f"${formula[1]}$"]
        at = formula.end()
    parts.append(_plain(text[at:]))
    formulas = math and _MATH.search(text) is not None
    bold, italic = bool(fonts & {"textbf", "mathbf", "bfseries"}), bool(fonts & {"textit", "emph", "itshape"})
    written = "".join(parts).strip()
    return Label(written if formulas else written.replace(r"\$", "$"), formulas, bold, italic)


def labels_of(table: LatexTable) -> list[list[Label]]:
    """The text of each cell; formulas are set up to ``MAX_FORMULAS`` characters of them."""
    labels, left = [], MAX_FORMULAS
    for row in table.rows:
        labels.append([])
        for cell in row:
            words = label(cell.text)
            left -= len(words.text) * words.math
            labels[-1].append(words if left >= 0 else label(cell.text, math=False))
    return labels


def draw(table: LatexTable) -> Float[np.ndarray, "height width"] | None:
    """The table in grey, 0 black and 1 white; None if it is larger than ``MAX_SIDE``."""
    labels = labels_of(table)
    edges = _edges(table, labels)
    bottom = ROW * len(table.rows)
    if max(edges[-1], bottom) + 2 * MARGIN > MAX_SIDE:
        return None
    ink = np.zeros((bottom + 2 * MARGIN, edges[-1] + 2 * MARGIN))
    alignment, lines = _columns(table.columns)
    for number, row in enumerate(table.rows):
        for cell, words in zip(row, labels[number], strict=True):
            letters = _ink(words)
            left, right = edges[cell.column] + GAP, edges[cell.column + cell.width] - GAP
            side = alignment[cell.column] if cell.width == 1 and cell.column < len(alignment) else "center"
            x = {"left": left, "right": right - letters.shape[1], "center": (left + right - letters.shape[1]) // 2}[
                side
            ]
            lower = min(number + cell.height, len(table.rows))
            y = ROW * (number + lower) // 2 - letters.shape[0] // 2
            top, start = max(0, MARGIN + y), MARGIN + x
            place = ink[top : top + letters.shape[0], start : start + letters.shape[1]]
            np.maximum(place, letters[: len(place)], out=place)
    for line in table.rules:
        ink[MARGIN + ROW * line, MARGIN : MARGIN + edges[-1] + 1] = 1
    for column in lines:
        if column < len(edges):
            ink[MARGIN : MARGIN + bottom + 1, MARGIN + edges[column]] = 1
    return 1 - ink


def _edges(table: LatexTable, labels: list[list[Label]]) -> list[int]:
    """The x of the left edge of each column, and of the right edge of the last, in pixels."""
    widths = [2 * GAP] * table.width
    cells = [(cell, words) for row, texts in zip(table.rows, labels, strict=True) for cell, words in zip(row, texts)]
    for cell, words in sorted(cells, key=lambda pair: pair[0].width):
        inside = slice(cell.column, cell.column + cell.width)
        missing = max(0, _ink(words).shape[1] + 2 * GAP - sum(widths[inside]))
        widths[inside] = [width + ceil(missing / cell.width) for width in widths[inside]]
    return [0, *np.cumsum(widths).tolist()]


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
            alignment.append(
                {"l": "left", "r": "right", "c": "center", "C": "center", "R": "right"}.get(letter, "left")
            )
    return alignment, lines


@lru_cache(maxsize=4096)
def _ink(words: Label) -> Float[np.ndarray, "height width"]:
    """The text of a cell, 1 where it is black; two pixels wider and higher than its letters on each side."""
    from matplotlib.font_manager import FontProperties

    if not words.text:
        return np.zeros((0, 0))
    weight, slant = "bold" if words.bold else "normal", "italic" if words.italic else "normal"
    font = FontProperties(family="DejaVu Sans", size=SIZE, weight=weight, style=slant)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a letter that the font has not is drawn as a box
        try:
            return _set(words.text, font, words.math)
        except (ValueError, RecursionError, RuntimeError):  # mathtext's, for a formula that it does not know
            return _set(words.text.replace(r"\$", "$"), font, False)


def _set(text: str, font: FontProperties, math: bool) -> Float[np.ndarray, "height width"]:
    from matplotlib.backends.backend_agg import RendererAgg

    width, height, descent = RendererAgg(1, 1, DPI).get_text_width_height_descent(text, font, math)
    if max(width, height) > MAX_SIDE:
        return np.zeros((1, MAX_SIDE))
    renderer = RendererAgg(ceil(width) + 4, ceil(height) + 4, DPI)
    renderer.draw_text(renderer.new_gc(), 2, 2 + ceil(height - descent), text, font, 0, math)
    return np.asarray(renderer.buffer_rgba())[..., 3] / 255


def _plain(text: str) -> str:
    """Text outside of formulas: commands removed, their arguments kept, dollars escaped for mathtext."""
    text = text.replace("~", " ").replace("---", "\u2014").replace("--", "\u2013")
    text = _ESCAPED.sub(lambda match: {"{": "\0", "}": "\1"}.get(match[1], match[1]), text)
    return _escape(_COMMAND.sub("", text).replace("{", "").replace("}", "").replace("\0", "{").replace("\1", "}"))


def _escape(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("$", r"\$")
