"""Verdicts on mutants, counted by folder and by class with 95 % Wilson intervals."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.operators import Mutant


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed (by a test), or it survived."""

    mutant: Mutant
    killer: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        word = "killed" if self.killer else "SURVIVED"
        one = self.mutant
        return f"{word} {self.seconds:.1f}s {one.file}:{one.line} [{one.kind}] {one.change}   {self.killer}"


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share, by Wilson's score."""
    if not trials:
        return 0.0, 1.0
    z, share = 1.959964, successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return (centre - spread) / (1 + z * z / trials), (centre + spread) / (1 + z * z / trials)


def folder(verdict: Verdict) -> str:
    return str(Path(verdict.mutant.file).parent)


def table(verdicts: Sequence[Verdict], what: str, of: Callable[[Verdict], str]) -> list[str]:
    rows = [f"| {what} | mutants | killed | survived | share that is killed |", "|---" * 5 + "|"]
    for name in [*sorted({of(verdict) for verdict in verdicts}), "all"]:
        members = [verdict for verdict in verdicts if name in (of(verdict), "all")]
        killed, trials = sum(bool(verdict.killer) for verdict in members), len(members)
        low, high = wilson(killed, trials)
        share = f"{killed / trials:.1%} ({low:.0%} to {high:.0%})" if trials else "-"
        rows.append(f"| {name} | {trials} | {killed} | {trials - killed} | {share} |")
    return rows


def machine() -> str:
    """The processor's name and the number of its cores that are ours."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return f"{names[0]}, {len(names)} cores"
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def markdown(verdicts: Sequence[Verdict], drawn: str) -> str:
    """The page ``benchmarks/mutants.md``; ``drawn``: how `make mutants` is told which lines to draw."""
    survivors = [verdict.mutant for verdict in verdicts if not verdict.killer]
    seconds = [verdict.seconds for verdict in verdicts]
    mean = sum(seconds) / max(1, len(seconds))
    parts = [
        "# One-line mutants",
        "",
        "What the fast tests notice: lines of `mmgrpo/`, `pipelines/` and `reward_models/` are drawn with a seed, and",
        "one small change is made in each (a comparison, a boundary, a constant, a default, a dropped operand, ...). A",
        "mutant is killed when a test fails that passes without it. Texts, annotations, error messages, logging and",
        "`mmgrpo/cli/bench/` (which measures speed) are left out, and so are the makers of random models for tests.",
        "Some survivors change nothing that a test could see, such as a tolerance of rounding errors.",
        "",
        f"    make mutants {drawn}",
        "",
        f"{machine()}; {mean:.1f} s per mutant on one of them. Intervals are Wilson's, 95 %.",
        "",
        *table(verdicts, "folder", folder),
        "",
        *table(verdicts, "class", lambda verdict: verdict.mutant.kind),
        "",
        "## Survivors",
        "",
        *[f"- `{one.file}:{one.line}` ({one.kind}): `{one.change}`" for one in survivors],
    ]
    return "\n".join(parts) + "\n"
