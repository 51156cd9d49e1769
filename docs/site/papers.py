"""The page docs/papers.md, from the records of mmgrpo/papers: ``python -m docs.site.papers`` writes it."""

from __future__ import annotations

import html
import re
from pathlib import Path

from mmgrpo.papers import AREAS, STATUS, Paper, papers

PAGE = Path(__file__).resolve().parents[1] / "papers.md"
HEAD = """# Papers

For each paper: the blocks that implement it, the tests that compare them with its formulas, and the differences.
Click a record to unfold it. The same in a terminal:

    mmgrpo papers --status works --search video
    mmgrpo explain dance_grpo

`mmgrpo explain` also shows a preset block by block, with its numbers and formulas. Blocks are described
in [algorithms](algorithms.md) and [visual algorithms](visual_algorithms.md), tasks and rewards in the [reward
catalogue](reward_catalogue.md). This page is generated from the files in `mmgrpo/papers/` by
`python -m docs.site.papers`.

"works" refers to the algorithm: no published result was reproduced. Every preset is also trained for a few steps on
each kind of policy that it is made for, or refused if the policy lacks what it needs:
`unit/policies/test_presets_on_policies.py::test_a_preset_trains_the_policies_that_it_is_made_for`. Every objective,
term, aggregation and mismatch correction passes the common tests of `test_objectives_battery.py`.

Recipes have the papers' settings for GPUs; tests check that they parse and that their size can be computed
(`journeys/cli/test_recipes.py::test_a_recipe_is_read_and_its_run_has_an_arithmetic`), not their results.

| status | meaning |
| --- | --- |
"""
SUMMARY = ("preset", "recipe", "reward", "task", "objective", "term", "family")
"""Kinds of which the first that a record has stands in its line."""


def page() -> str:
    """The whole page."""
    statuses = "".join(f"| {word} | {meaning} |\n" for word, meaning in STATUS.items())
    sections = [
        f"\n## {title}\n\n" + "".join(record(paper) for paper in papers().values() if paper.area == area)
        for area, title in AREAS.items()
    ]
    return HEAD + statuses + "".join(sections)


def record(paper: Paper) -> str:
    """A record that unfolds: name, status and what it is called here; then the rest, one fact after the other."""
    kind = next((one for one in SUMMARY if one in paper.uses), "")
    first = f" {kind} {code(paper.uses[kind][:3])}" if kind else ""
    link = f'<a href="https://arxiv.org/abs/{paper.arxiv}">arXiv:{paper.arxiv}</a>' if paper.arxiv else paper.venue
    facts = {
        "title": marked(paper.title) + (f" ({link})" if link else ""),
        **{one: code(names) for one, names in paper.uses.items()},
        "how": marked(paper.how),
        "settings": code([f"{key}: {value}" for key, value in paper.settings.items()]),
        "differs": marked(paper.differs),
        "missing": marked(paper.missing),
        "tests": code(paper.tests),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>\n" for name, text in facts.items() if text)
    head = f"<summary><b>{marked(paper.name)}</b> <small>{paper.status}{first}</small></summary>"
    return f'<details class="paper" id="{paper.id}">{head}<dl>\n{rows}</dl></details>\n'


def code(names: list[str]) -> str:
    """Names as code."""
    return ", ".join(f"<code>{html.escape(str(name), quote=False)}</code>" for name in names)


def marked(text: str) -> str:
    """A text whose code stands in backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
