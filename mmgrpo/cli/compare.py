"""Compare runs on their held-out prompts: means over seeds, gains with intervals that are paired by prompt.

    mmgrpo compare runs/a runs/b runs/c                      # a table, of the settings in which they differ
    mmgrpo compare 'runs/demo-*' --reward scene_all          # one reward; patterns are folders
    mmgrpo compare runs/* --plot curves.png                  # held-out means over training
    mmgrpo compare runs/* --json > compared.json             # or --markdown

Runs that differ in nothing but their seed are one row. The interval (95 %, bootstrap over prompts) is of the mean over
seeds; how far seeds differ is listed seed by seed. The difference to the first row is paired by prompt too. Runs of
which 'mmgrpo evaluate --run RUN --samples 8' has measured several samples per prompt have pass@k.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options, words
from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import ANY_TEXT

if TYPE_CHECKING:
    from mmgrpo.report.compare import Run


@dataclass
class Compare:
    """How runs are compared."""

    reward: Annotated[list[str], ANY_TEXT] = field(default_factory=list)
    """Rewards to compare; by default all that every run was evaluated with."""
    markdown: bool = False
    """Print the table in Markdown."""
    json: bool = False
    """Print JSON, with every number."""
    plot: Annotated[str, ANY_TEXT] = ""
    """Write held-out means over training into this file (.png, .svg or .pdf)."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    given = words(arguments)
    patterns, rest = split(given)
    args = options(Compare, rest, __doc__)
    if not patterns:
        raise ValueError("mmgrpo compare: names no run; give run folders, e.g. mmgrpo compare runs/a runs/b")
    runs, notes = read(folders(patterns))
    for note in notes:
        print(f"left out: {note}", file=sys.stderr, flush=True)
    show(runs, args)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first option, and the others."""
    first = next((n for n, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:first]), list(arguments[first:])


def folders(patterns: Sequence[str]) -> list[Path]:
    """The folders that the words name, or match as patterns."""
    paths: dict[Path, None] = {}
    for pattern in patterns:
        path = Path(pattern)
        matched = (
            [path] if path.is_dir() else sorted(folder for folder in path.parent.glob(path.name) if folder.is_dir())
        )
        if not matched:
            near = nearest(
                path.name, [folder.name for folder in path.parent.glob("*") if (folder / "config.yaml").is_file()]
            )
            raise FileNotFoundError(f"{pattern}: there is no such run folder.{near}")
        paths |= dict.fromkeys(matched)
    return [*paths]


def read(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """The runs that have ended, and why others are left out; ValueError where none has."""
    from mmgrpo.report.compare import Run, read_ended

    runs, notes = list[Run](), list[str]()
    for path in paths:
        try:
            runs.append(read_ended(path))
        except (ValueError, OSError) as error:
            notes.append(str(error))
    if not runs:
        raise ValueError(f"mmgrpo compare: no run can be compared: {'; '.join(notes)}")
    return runs, notes


def show(runs: Sequence[Run], args: Compare) -> None:
    """Print the table of some runs, and write the plot."""
    from mmgrpo.files import write_bytes
    from mmgrpo.report.compare import as_dict, compare, curves, table

    rows = compare(runs)
    known = [*dict.fromkeys(row.reward for row in rows)]
    for name in args.reward:
        if name not in known:
            raise ValueError(f"--reward: no reward '{name}' of which every run has values.{nearest(name, known)}")
    rows = [row for row in rows if not args.reward or row.reward in args.reward]
    if args.json:
        print(json.dumps([as_dict(row) for row in rows], indent=1, ensure_ascii=False))
    else:
        print(table(rows, args.markdown))
    if args.plot:
        from mmgrpo.report.plots import figure_file, heldout_figure

        suffix = Path(args.plot).suffix.removeprefix(".")
        if suffix not in ("png", "svg", "pdf"):
            raise ValueError(f"--plot: got {args.plot}, expected a file that ends with .png, .svg or .pdf")
        shown = [*dict.fromkeys(row.reward for row in rows)]
        write_bytes(Path(args.plot), figure_file(heldout_figure({n: curves(runs, n) for n in shown}), suffix))
        print(f"written: {args.plot}", file=sys.stderr)


if __name__ == "__main__":
    enter(main)
