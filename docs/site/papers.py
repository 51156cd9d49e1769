"""The records of papers as the site shows them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping

from docs.site.markdown import grid
from mmgrpo.catalogue.papers import AREAS, STATUS, Paper, papers

SUMMARY = ("preset", "recipe", "reward", "task", "objective", "term", "family")
"""Kinds of which the first that a record has stands in its line."""


def statuses() -> str:
    """What the words of status mean."""
    return grid(("status", "meaning"), STATUS.items())


def areas() -> str:
    """The records, area by area."""
    return "\n".join(
        f"## {title}\n\n" + "".join(record(paper) for paper in papers().values() if paper.area == area)
        for area, title in AREAS.items()
    )


def record(paper: Paper) -> str:
    """A record that unfolds: name, status and what it is called here; then the rest, one fact after the other."""
    kind = next((use for use in SUMMARY if use in paper.uses), "")
    first = f" {kind} {code(paper.uses[kind][:3])}" if kind else ""
    link = f'<a href="https://arxiv.org/abs/{paper.arxiv}">arXiv:{paper.arxiv}</a>' if paper.arxiv else paper.venue
    facts = {
        "title": mark_code(paper.title) + (f" ({link})" if link else ""),
        **{use: code(names) for use, names in paper.uses.items()},
        "how": mark_code(paper.how),
        "settings": code([f"{key}: {value}" for key, value in paper.settings.items()]),
        "differs": mark_code(paper.differs),
        "missing": mark_code(paper.missing),
        "tests": code(paper.tests),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>\n" for name, text in facts.items() if text)
    head = f"<summary><b>{mark_code(paper.name)}</b> <small>{paper.status}{first}</small></summary>"
    return f'<details class="paper" id="{paper.id}">{head}<dl>\n{rows}</dl></details>\n'


def code(names: list[str]) -> str:
    """Names as code."""
    return ", ".join(f"<code>{html.escape(str(name), quote=False)}</code>" for name in names)


def mark_code(text: str) -> str:
    """A text whose code stands in backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


TABLES: Mapping[str, Callable[[], str]] = {"status of papers": statuses, "papers": areas}
