"""The results of the fault campaign as a table."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmgrpo.runtime.files import write_text

KINDS = {
    "kill": "SIGKILL at an operation on files or at any time, up to three times, then --resume",
    "term": "SIGTERM, likewise",
    "overwrite": "--overwrite of a finished run, killed and repeated",
    "damage": "damaged checkpoints, then --resume",
    "disk": "full, read-only, failing and vanishing disk, then --resume",
    "two": "two starts in one folder",
}


def write_table(
    trials: Mapping[str, int],
    faults: Mapping[str, int],
    failures: Sequence[str],
    seconds: Mapping[str, float],
    output: Path | None,
) -> None:
    """Print the results by kind and run, and write them to ``output``."""
    names = list(dict.fromkeys(name.partition(": ")[2] for name in trials))
    failed = Counter(line.split(" ")[0].rstrip(":") for line in failures)
    lines = [
        "# Faults",
        "",
        f"`make faults`; {platform.machine()}, {platform.system()}, Python {platform.python_version()}. "
        "Cells are trials.",
        "",
        f"| fault | {' | '.join(names)} | met the fault | failures | minutes |",
        f"| --- |{' --- |' * (len(names) + 3)}",
    ]
    for kind, about in KINDS.items():
        cells = [str(trials.get(f"{kind}: {name}", "–")) for name in names]
        minutes = sum(value for name, value in seconds.items() if name.startswith(f"{kind}: ")) / 60
        lines.append(f"| {about} | {' | '.join(cells)} | {faults.get(kind, 0)} | {failed[kind]} | {minutes:.0f} |")
    lines += ["", *(f"- {line[:500]}" for line in failures)]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    if output is not None:
        write_text(output, text)
