"""List the prompts of a run by difficulty, and write some of them as a data set.

    mmgrpo prompts runs/demo                                     # the hardest first
    mmgrpo prompts runs/demo --which never                       # never solved
    mmgrpo prompts runs/demo --which solved --least 0.9          # solved 90 % at the last visit, as retire(at=0.9) does
    mmgrpo prompts runs/demo --which hard --count 500 --write hard.jsonl
    mmgrpo prompts runs/demo --which varied --write varied.jsonl # rewards differed: variance-aware data selection
    mmgrpo prompts runs/demo --which weak --budget 1000          # failures that grow, and problems to write per task

The numbers are those of prompts.jsonl in the run folder, which a run writes with every checkpoint. A file that --write
makes holds the rows of the training set as they are, so a run can train on it (data.train).

"weak" is SwS (arXiv:2506.08989): the mean reward of no visit reached .5, and it falls over the visits; it needs the
tracker history. --budget divides a number of new problems among tasks in proportion to their share of weak prompts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from mmgrpo.cli.errors import enter
from mmgrpo.cli.options import options, run_first
from mmgrpo.config.ranges import ANY_NUMBER, ANY_TEXT, COUNT_OR_ZERO, one_of

if TYPE_CHECKING:
    from mmgrpo.types import Prompt

SHOWN = 20
"""Number of prompts to print unless --count says otherwise."""

KINDS = ("hard", "never", "solved", "varied", "weak")


@dataclass
class Args:
    """Which prompts of which run."""

    run: Annotated[tyro.conf.Positional[str], ANY_TEXT]
    """Run folder, e.g. runs/demo."""
    which: Annotated[str, one_of(*KINDS)] = "hard"
    """hard: all, the smallest mean reward first; never: no sample reached --success; solved: mean reward of the last
    visit at least --least, the largest first; varied: rewards of the last visit differed, those that did most first;
    weak: see above."""
    count: Annotated[int, COUNT_OR_ZERO] = 0
    """Number of prompts; 0: 20 to print, all to write."""
    success: Annotated[float, ANY_NUMBER] = 1.0
    """Smallest reward at which a sample counts as solved."""
    least: Annotated[float, ANY_NUMBER] = 0.9
    """Smallest mean reward for --which solved."""
    write: Annotated[str, ANY_TEXT, tyro.conf.arg(help_behavior_hint="(default: none)")] = ""
    """Output file (.jsonl) with the rows of these prompts."""
    budget: Annotated[int, COUNT_OR_ZERO] = 0
    """Number of new problems to divide among tasks, for --which weak."""


def main(arguments: Sequence[str] | None = None) -> None:
    """List, and write if asked to."""
    args = options(Args, run_first(arguments), __doc__)
    from mmgrpo.prompts.ledger import FILE, read_ledger

    head, lines = read_ledger(Path(args.run) / FILE)
    selected = select(lines, args)
    unsolved = sum(line["best"] < args.success for line in lines)
    visited = f"{head['visited']} of {head['prompts']} prompts visited"
    print(f"{args.run}, step {head['step']}: {visited}, {unsolved} never solved")
    shown = selected[: args.count or SHOWN]
    print(f"\n{'mean':>6} {'last':>6} {'best':>6} {'visits':>6} {'samples':>7}  prompt")
    for line in shown:
        numbers = (
            f"{line['mean']:6.3f} {line['last_mean']:6.3f} {line['best']:6.3g} {line['visits']:6} {line['draws']:7}"
        )
        print(f"{numbers}  {line['id']}: {line['text'][:60]}")
    if len(selected) > len(shown):
        print(f"{'':37}  ... and {len(selected) - len(shown)} more")
    if args.budget:
        for task, number in budgets(lines, selected, args.budget).items():
            print(f"{number:6} new problems of the task {task}")
    if args.write:
        ids = {line["id"] for line in selected[: args.count or None]}
        write(Path(args.write), rows_of_run(args.run), lambda prompt: prompt.id in ids)


def select(lines: Sequence[Mapping[str, Any]], args: Args) -> list[Mapping[str, Any]]:
    """The prompts that were asked for, in order."""
    if args.which == "never":
        return [line for line in lines if line["best"] < args.success]
    if args.which == "solved":
        return sorted((line for line in lines if line["last_mean"] >= args.least), key=lambda line: -line["last_mean"])
    if args.which == "varied":
        return sorted((line for line in lines if line["last_variance"] > 0), key=lambda line: -line["last_variance"])
    if args.which == "weak":
        if lines and "history" not in lines[0]:
            raise ValueError(
                f"{args.run}: --which weak needs the tracker history; train with --algorithm.trackers history"
            )
        return [line for line in lines if is_weak(line["history"])]
    return list(lines)


def is_weak(history: Sequence[float]) -> bool:
    """Whether no mean reached .5 and the least-squares slope of the means is negative (SwS, arXiv:2506.08989).

    .4, .3, .2 is weak; .1, .2, .3 rises, .6, .3, .1 was solved, and 0, 0, 0 has the slope 0.
    """
    middle = (len(history) - 1) / 2
    slope = sum((place - middle) * mean for place, mean in enumerate(history))
    return bool(history) and max(history) < 0.5 and slope < 0


def budgets(lines: Sequence[Mapping[str, Any]], weak: Sequence[Mapping[str, Any]], total: int) -> dict[str, int]:
    """``total`` divided among tasks in proportion to the share of their prompts that is weak: shares of .3, .1 and .1
    of 1000 are 600, 200, 200."""
    everything, failed = Counter(line["task"] for line in lines), Counter(line["task"] for line in weak)
    shares = {task: failed[task] / count for task, count in everything.items()}
    whole = sum(shares.values())
    return {task or "(none)": round(total * share / whole) for task, share in shares.items() if share}


def rows_of_run(run: str) -> Iterator[tuple[Mapping[str, Any], Prompt]]:
    """The rows of the training set of a run, as they are and as prompts."""
    from mmgrpo.cli.source import run_section

    data = run_section(run).get("data", {})
    if not data.get("train"):
        raise ValueError(f"{run}: --write: its prompts were given from Python; write them from there")
    for path in [data["train"], *data.get("extra_train", ())]:
        yield from rows_of(path, data.get("media_root", ""), data.get("columns", ""))


def rows_of(path: str, media_root: str, columns: str) -> Iterator[tuple[Mapping[str, Any], Prompt]]:
    """The rows of a file that can be read, as they are and as prompts."""
    from mmgrpo.config.plugins import locate
    from mmgrpo.data.columns import columns_for
    from mmgrpo.data.files import read_row
    from pipelines.hub import files_of

    for file in files_of(locate(path), media_root):
        for number in range(len(file)):
            try:
                prompt = read_row(file, number, media_root, columns_for(path, columns))
            except ValueError:  # left out by a run too
                continue
            yield file.row(number), prompt


def write(path: Path, rows: Iterator[tuple[Mapping[str, Any], Prompt]], keep: Callable[[Prompt], bool]) -> None:
    """Write the rows to keep as JSON lines."""
    from mmgrpo.files import write_text

    lines = []
    for row, prompt in rows:
        if keep(prompt):
            try:
                lines.append(json.dumps(dict(row), ensure_ascii=False))
            except TypeError as error:
                raise ValueError(f"{path}: the row '{prompt.id}' holds media, which JSON lines cannot hold") from error
    write_text(path, "".join(f"{line}\n" for line in lines))
    print(f"written: {path}, {len(lines)} rows; paths of media in them are relative as before (data.media_root)")


if __name__ == "__main__":
    enter(main)
