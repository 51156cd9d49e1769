"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from mmgrpo.cli.settings_help import sentence as first

__all__ = ["code", "escape_cell", "grid", "sentence"]


def grid(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown, whose cells go through ``escape_cell``."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(map(escape_cell, line)) + " |\n" for line in lines)


def escape_cell(cell: str) -> str:
    """A cell in which bars, and angle brackets and stars outside of code, are text."""
    parts = " ".join(cell.split()).replace("|", "\\|").split("`")
    marked = (part.replace("<", "&lt;").replace("*", r"\*") for part in parts[::2])
    parts[::2] = marked
    return "`".join(parts)


def code(names: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)


def sentence(docstring: str) -> str:
    """The first sentence of a docstring."""
    return first(docstring.replace("``", "`"))
