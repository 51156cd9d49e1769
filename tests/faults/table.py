"""The results of the fault campaign, and their table.

python -m tests.faults.table RESULTS.json ... --output benchmarks/faults.md
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.files import write_text

KINDS = {
    "kill": "SIGKILL at an operation on files or at any time, up to three times, then --resume",
    "term": "SIGTERM, likewise",
    "overwrite": "--overwrite of a finished run, killed and repeated",
    "damage": "damaged checkpoints, then --resume",
    "disk": "full, read-only, failing and vanishing disk, then --resume",
    "two": "two starts in one folder",
}


def write_results(
    trials: Mapping[str, int],
    faults: Mapping[str, int],
    failures: Sequence[str],
    seconds: Mapping[str, float],
    output: Path | None,
) -> None:
    """Write what is known so far, by kind and run."""
    content = {"trials": trials, "faults": faults, "failures": failures, "seconds": seconds}
    if output is not None:
        write_text(output, json.dumps(content, indent=1))


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """The table of several results."""
    trials, faults, seconds = (
        {k: v for one in results for k, v in one[n].items()} for n in ("trials", "faults", "seconds")
    )
    failures = [line for one in results for line in one["failures"]]
    names = list(dict.fromkeys(name.partition(": ")[2] for name in trials))

    def total(of: Mapping[str, float], kind: str) -> float:
        return sum(value for name, value in of.items() if name.startswith(f"{kind}: "))

    lines = [
        "# Faults",
        "",
        f"`make faults`; {platform.machine()}, {platform.system()}, Python {platform.python_version()}.",
        "Cells are trials; a trial may meet its fault up to three times, or never, where its run ends before.",
        "",
        f"| fault | {' | '.join(names)} | trials | faults met | failures | minutes |",
        f"| --- |{' --- |' * (len(names) + 4)}",
    ]
    for kind, about in KINDS.items():
        cells = [str(trials.get(f"{kind}: {name}", "–")) for name in names]
        failed = sum(line.startswith(f"{kind}: ") for line in failures)
        sums = [total(trials, kind), total(faults, kind), failed, total(seconds, kind) / 60]
        lines.append(f"| {' | '.join([about, *cells, *(f'{one:.0f}' for one in sums)])} |")
    lines += ["", *(f"- {line[:500]}" for line in failures)]
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    write_text(arguments.output, table([json.loads(path.read_text()) for path in arguments.results]))


if __name__ == "__main__":
    main()
