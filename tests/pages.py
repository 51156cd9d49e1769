"""The pages of the documentation, and what stands in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests import ROOT

DOCS = {
    path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
"""The pages of ``docs/`` by their path there."""
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = {f"docs/{name}": text for name, text in DOCS.items()} | {
    name: (ROOT / name).read_text(encoding="utf-8") for name in OUTSIDE
}
"""All pages, by their path in the repository."""

BLOCK = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""Language, the rest of its line, and content of a listing."""


def blocks(page: str, language: str) -> Iterator[tuple[str, str]]:
    """The listings of a language on a page: the rest of their first line, and their content."""
    for kind, rest, content in BLOCK.findall(page):
        if kind == language:
            yield rest, content


def prose(page: str) -> str:
    """A page without its listings."""
    return BLOCK.sub("", page)


def rows_of(page: str, section: str) -> list[list[str]]:
    """The cells of the tables of a section whose first cell is code."""
    lines = re.split(r"\n#+ ", page.split(f"# {section}\n")[1])[0].splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0].startswith("`")]


def in_code(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def anchors(page: str) -> set[str]:
    """The headings of a page as links name them."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    }
