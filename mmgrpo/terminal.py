"""What a terminal shows: its width, its colours, and lists and tables that fit into it.

Where the output is no terminal (a pipe, a file) lists and tables are not wrapped, so grep and others read whole
lines; COLUMNS sets a width there too. There are no colours where NO_COLOR is set (no-color.org), where TERM is dumb, or
where there is no terminal, and progress is then a line per interval (``mmgrpo.runtime.progress``).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

USUAL = 80
"""Columns of a terminal that does not tell its size."""
NARROWEST = 20
"""Columns below which nothing is wrapped further."""
UNLIMITED = 1 << 20
"""Columns of a pipe or a file."""
PROSE = 116
"""Columns of paragraphs in a wider terminal."""

STYLES = {"bold": "1", "red": "31", "green": "32"}
_STYLED = re.compile(r"\x1b\[[\d;]+m")
_NUMERIC = re.compile(r"[-+–\d.,%\[\] ]*")


def is_interactive(stream: TextIO) -> bool:
    """Whether a stream is a terminal that moves its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the output."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS"):
        return UNLIMITED
    return max(NARROWEST, shutil.get_terminal_size((USUAL, 24)).columns)


def style_text(text: str, *styles: str) -> str:
    """Text in some of ``STYLES`` where the output has colours."""
    if not styles or os.environ.get("NO_COLOR") or not is_interactive(sys.stdout):
        return text
    return f"\x1b[{';'.join(STYLES[style] for style in styles)}m{text}\x1b[0m"


def columns_of(text: str) -> int:
    """Columns that a line takes: two for wide letters, none for accents and styles."""
    letters = (letter for letter in _STYLED.sub("", text) if not unicodedata.combining(letter))
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in letters)


def pad_text(text: str, columns: int, right: bool = False) -> str:
    """Text with spaces behind it, or before it."""
    spaces = " " * (columns - columns_of(text))
    return spaces + text if right else text + spaces


def paragraph(text: str, indent: str = "", columns: int = PROSE) -> list[str]:
    """The lines of a text, at most ``columns`` wide and no wider than the output; only a terminal breaks long names."""
    limit = width()
    wrapper = textwrap.TextWrapper(min(limit, columns), indent, indent, break_on_hyphens=False)
    wrapper.break_long_words = limit < UNLIMITED
    return wrapper.wrap(text) or [""]


def definitions(rows: Sequence[tuple[str, str]], indent: str = "", columns: int = UNLIMITED) -> list[str]:
    """Names, and beside them their texts in a column of their own; below them where the names take half the width."""
    return [*_definition_lines(rows, indent, columns, max((columns_of(name) for name, _ in rows), default=0))]


def _definition_lines(rows: Iterable[tuple[str, str]], indent: str, columns: int, names: int) -> Iterator[str]:
    left, limit = len(indent) + names + 2, min(width(), columns)
    for name, text in rows:
        if 2 * left > limit:
            yield indent + name
            yield from paragraph(text, f"{indent}    ", columns) if text else ()
            continue
        for number, line in enumerate(paragraph(text, "", limit - left)):
            yield f"{pad_text('' if number else indent + name, left)}{line}".rstrip()


def sections(parts: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """Headings with the ``definitions`` below each, all texts in one column; a heading without any is left out."""
    names = max((columns_of(name) for rows in parts.values() for name, _ in rows), default=0)
    lines = list[str]()
    for title, rows in parts.items():
        if rows:
            lines += [
                *([""] if lines else []),
                style_text(title, "bold"),
                *_definition_lines(rows, "  ", UNLIMITED, names),
            ]
    return lines


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table: texts on the left of their columns, numbers on the right. Where it is wider than the output its rows
    stand below each other, a cell per line."""
    body = [[*row] for row in rows]
    lines, columns = [[*heads], *body], [*zip(*body, strict=True)]
    widths = [max(map(columns_of, cells)) for cells in zip(*lines, strict=True)]
    numeric = [all(_NUMERIC.fullmatch(_STYLED.sub("", cell)) for cell in cells) for cells in columns]
    if body and sum(widths) + 2 * (len(widths) - 1) > width():
        return [*_stack_rows(heads, body)]
    how = [*zip(widths, numeric or [False] * len(widths), strict=True)]
    return [
        "  ".join(pad_text(cell, *layout) for cell, layout in zip(line, how, strict=True)).rstrip() for line in lines
    ]


def _stack_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield f"{heads[0]}: {row[0]}" if heads[0] else row[0]
        yield from definitions([(head, cell) for head, cell in zip(heads[1:], row[1:], strict=False) if cell], "  ")
