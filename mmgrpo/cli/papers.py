"""List papers with the state of their implementation; ``mmgrpo explain ID`` shows the record of one:

mmgrpo papers
mmgrpo papers preset length                  # whose record contains these words
mmgrpo papers --status part --area core
"""

from __future__ import annotations

import argparse
from collections import Counter

from mmgrpo.catalogue.papers import AREAS, STATUS, Paper, papers
from mmgrpo.cli.errors import enter
from mmgrpo.config.advice import usage_errors
from mmgrpo.terminal import sections


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="mmgrpo papers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--status", nargs="+", choices=STATUS, metavar="STATUS", help=f"of {', '.join(STATUS)}")
    parser.add_argument("--area", nargs="+", choices=AREAS, metavar="AREA", help=f"of {', '.join(AREAS)}")
    parser.add_argument("words", nargs="*", metavar="WORD", help="words that a record must contain")
    parser.add_argument("--search", nargs="+", default=[], metavar="WORD", help="further such words")
    return parser


def select(status: list[str] | None, area: list[str] | None, search: list[str]) -> list[Paper]:
    """The records of these kinds (None for all) that contain all of the words, in capitals or not."""
    words = [word.lower() for word in search]
    return [
        paper
        for paper in papers().values()
        if (status is None or paper.status in status)
        and (area is None or paper.area in area)
        and all(word in paper.words() for word in words)
    ]


def about(paper: Paper) -> str:
    """A record in a line: status, title, and what it is called here."""
    first = [f"{kind} {', '.join(names)}" for kind, names in paper.uses.items() if kind in ("preset", "recipe")]
    return f"{paper.status}: {paper.title}" + (f" [{'; '.join(first)}]" if first else "")


def main(arguments: list[str] | None = None) -> None:
    """Print the chosen records by area, and how many there are of each status."""
    with usage_errors():
        given = options().parse_args(arguments)
    selected = select(given.status, given.area, [*given.words, *given.search])
    if not selected:
        raise ValueError(f"mmgrpo papers: none of {len(papers())} records fits; leave out an option or a word")
    parts = {
        title: [(paper.id, about(paper)) for paper in selected if paper.area == area] for area, title in AREAS.items()
    }
    print("\n".join(sections(parts)))
    counts = Counter(paper.status for paper in selected)
    print(f"\n{len(selected)} of {len(papers())} papers: {', '.join(f'{counts[s]} {s}' for s in STATUS if counts[s])}")


if __name__ == "__main__":
    enter(main)
