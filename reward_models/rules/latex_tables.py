"""Tables of LaTeX code, read as rows of cells. No TeX is run, and nothing that a model writes is executed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from reward_models.rules.parsing import MAX_CHARACTERS
from reward_models.rules.tables import Node

MAX_NODES, MAX_SPAN = 500, 100
"""Most rows and cells of a readable table, since the time of a comparison grows at least with their square; and most
rows or columns that a cell spans, where more are written."""

_TOKEN = re.compile(
    r"\\begin\{[^{}]*\}|\\end\{[^{}]*\}|\\\\\*?(?:\s*\[[^\]]*\])?|\\tabularnewline(?![A-Za-z])|\\[A-Za-z]+|\\.|[{}&]",
    re.DOTALL,
)
_TABULAR = re.compile(r"\\begin\{(tabular\*|tabularx|tabulary|tabular|array)\}")
_COMMENT = re.compile(r"(?<!\\)%[^\n]*")
_RULE = re.compile(
    r"\\(?:hline|toprule|midrule|bottomrule|hdashline)(?![A-Za-z])(?:\s*\[[^\]]*\])?"
    r"|\\(?:cline|cmidrule)(?![A-Za-z])(?:\s*\[[^\]]*\])?(?:\s*\([^)]*\))?\s*\{[^{}]*\}"
    r"|\\addlinespace(?![A-Za-z])(?:\s*\[[^\]]*\])?"
)
_FULL_RULE = re.compile(r"\\(?:hline|toprule|midrule|bottomrule|hdashline)(?![A-Za-z])")
_SPAN = re.compile(r"\\multi(column|row)(?![A-Za-z])\*?\s*(?:\[[^\]]*\])?\s*")


@dataclass
class LatexTable:
    """A table of LaTeX code."""

    columns: str
    """The column specification, e.g. ``l|cc``."""
    rows: list[list[Cell]] = field(default_factory=list)
    rules: set[int] = field(default_factory=set)
    """Rows above which a horizontal line is drawn; the number of rows stands for the lower edge."""

    @property
    def width(self) -> int:
        """Columns."""
        return max((cell.column + cell.width for row in self.rows for cell in row), default=0)

    def tree(self) -> Node:
        """The table as the tree of an HTML table: rows and cells, with their spans."""
        height = len(self.rows)
        return Node(
            "table",
            children=[
                Node(
                    "tr",
                    children=[
                        Node("td", (str(min(cell.height, height - number)), str(cell.width)), cell.text) for cell in row
                    ],
                )
                for number, row in enumerate(self.rows)
            ],
        )


@dataclass
class Cell:
    """A cell: its text, its first column, and how many columns and rows it spans."""

    text: str
    column: int
    width: int = 1
    height: int = 1


def read_latex_table(code: str) -> LatexTable | None:
    """The first tabular, tabularx, tabulary or array environment; None without one, or for one that is too large.

    An empty cell under one that spans several rows belongs to it. A table inside a cell is text.
    """
    if len(code) > MAX_CHARACTERS:
        return None
    code = _COMMENT.sub("", code)
    begin = _TABULAR.search(code)
    if begin is None:
        return None
    at = begin.end()
    if begin[1] in ("tabular*", "tabularx", "tabulary"):
        _, at = _argument(code, at)
    at = _optional(code, at)
    columns, at = _argument(code, at)
    rows = _cells(code, at)
    if rows is None:
        return None
    table, covered = LatexTable(columns), set[tuple[int, int]]()
    for texts in rows:
        _add_row(table, texts, covered)
        nodes = sum(map(len, table.rows)) + len(table.rows)
        if nodes >= MAX_NODES or max(len(covered), table.width) > 10 * MAX_NODES:
            return None
    return table if table.rows else None


def _cells(code: str, start: int) -> list[list[str]] | None:
    """The cells of each row, as they are written, up to the end of the environment; None if it does not end."""
    rows: list[list[str]] = [[""]]
    depth = at = 0
    for token in _TOKEN.finditer(code, start):
        rows[-1][-1] += code[max(at, start) : token.start()]
        text, at = token[0], token.end()
        if text.startswith("\\end{") and not depth:
            return rows
        depth += (text == "{" or text.startswith("\\begin{")) - (text == "}" or text.startswith("\\end{"))
        if depth == 0 and text == "&":
            rows[-1].append("")
        elif depth == 0 and text.startswith(("\\\\", "\\tabularnewline")):
            rows.append([""])
        else:
            rows[-1][-1] += text
    return None


def _add_row(table: LatexTable, texts: list[str], covered: set[tuple[int, int]]) -> None:
    number, column = len(table.rows), 0
    if _FULL_RULE.search(texts[0]):
        table.rules.add(number)
    texts = [_RULE.sub("", text).strip() for text in texts]
    if texts == [""]:
        return
    row = []
    for text in texts:
        cell = _cell(text, column)
        if cell.text or (number, column) not in covered:
            row.append(cell)
        below = range(number + 1, number + cell.height)
        covered.update((line, place) for line in below for place in range(column, column + cell.width))
        column += cell.width
    table.rows.append(row)


def _cell(text: str, column: int) -> Cell:
    """A cell without its ``multicolumn`` and ``multirow``, which may be inside one another."""
    cell = Cell(text, column)
    for _ in range(2):
        span = _SPAN.match(cell.text)
        if span is None:
            return cell
        count, at = _argument(cell.text, span.end())
        _, at = _argument(cell.text, _optional(cell.text, at))
        content, at = _argument(cell.text, _optional(cell.text, at))
        size = int(count) if re.fullmatch(r"\s*\d{1,3}\s*", count) else 1
        size = min(max(size, 1), MAX_SPAN)
        cell.text = (content + cell.text[at:]).strip()
        if span[1] == "column":
            cell.width = size
        else:
            cell.height = size
    return cell


def _argument(code: str, at: int) -> tuple[str, int]:
    """The argument in braces, or the single character, that follows, and where it ends; "" where there is none."""
    while at < len(code) and code[at].isspace():
        at += 1
    if at >= len(code) or code[at] != "{":
        return code[at : at + 1], min(at + 1, len(code))
    depth, place = 0, at
    while place < len(code):
        depth += (code[place] == "{") - (code[place] == "}")
        place += 1 + (code[place] == "\\")
        if depth == 0:
            return code[at + 1 : place - 1], place
    return code[at + 1 :], len(code)


def _optional(code: str, at: int) -> int:
    """Where an argument in brackets ends that may follow."""
    match = re.compile(r"\s*\[[^\]]*\]").match(code, at)
    return match.end() if match else at
