"""Verdicts on mutants, counted by folder and by class with 95 % Wilson intervals."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.mutants.operators import Mutant

EQUIVALENT = Path(__file__).parent / "equivalent"
"""One file of each folder of the code, named by its path with dots."""


@cache
def listed() -> dict[tuple[str, str, str], str]:
    """Mutants that change nothing that a test could see, with the reasons: by file, line text and change."""
    rows = [row for file in sorted(EQUIVALENT.glob("*.yaml")) for row in yaml.safe_load(file.read_text("utf-8"))]
    return {(row["file"], row["line"].strip(), row["change"]): row["reason"] for row in rows}


def key(mutant: Mutant) -> tuple[str, str, str]:
    """What stays when lines are moved: file, text of the line, and change."""
    return mutant.file, mutant.context, mutant.change


def equivalent(mutant: Mutant) -> str:
    """Why the mutant changes nothing, or nothing."""
    return listed().get(key(mutant), "")


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: equivalent (by the list), killed (by a test), or it survived."""

    mutant: Mutant
    reason: str = ""
    killer: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        word = "equivalent" if self.reason else "killed" if self.killer else "SURVIVED"
        one = self.mutant
        return f"{word} {self.seconds:.1f}s {one.file}:{one.line} [{one.kind}] {one.change}   {self.killer}"

    def row(self) -> dict[str, Any]:
        return {**asdict(self.mutant), "killer": self.killer, "seconds": round(self.seconds, 2)}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Verdict:
        """The verdict of a row, with what is listed as equivalent by now."""
        mutant = Mutant(**{field.name: row[field.name] for field in fields(Mutant)})
        return Verdict(mutant, equivalent(mutant), row["killer"], row["seconds"])


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
    rows = [f"| {what} | mutants | equivalent | killed | survived | killed of those that differ |", "|---" * 6 + "|"]
    for name in [*sorted({of(verdict) for verdict in verdicts}), "all"]:
        members = [verdict for verdict in verdicts if name in (of(verdict), "all")]
        same = sum(bool(verdict.reason) for verdict in members)
        killed, trials = sum(bool(v.killer and not v.reason) for v in members), len(members) - same
        low, high = wilson(killed, trials)
        share = f"{killed / trials:.1%} ({low:.0%} to {high:.0%})" if trials else "-"
        rows.append(f"| {name} | {len(members)} | {same} | {killed} | {trials - killed} | {share} |")
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
    survivors = [verdict.mutant for verdict in verdicts if not verdict.killer and not verdict.reason]
    seconds = [verdict.seconds for verdict in verdicts if not verdict.reason]
    mean = sum(seconds) / max(1, len(seconds))
    parts = [
        "# One-line mutants",
        "",
        "What the fast tests notice: lines of `mmgrpo/`, `pipelines/` and `reward_models/` are drawn with a seed, and",
        "one small change is made in each (a comparison, a boundary, a constant, a default, a dropped operand, ...). A",
        "mutant is killed when a test fails that passes without it. Texts, annotations, error messages, logging and",
        "`mmgrpo/cli/bench/` (which measures speed) are left out, and so are the makers of random models for tests.",
        "Mutants that change nothing that a test could see are listed with reasons in `tests/mutants/equivalent/`.",
        "",
        f"    make mutants {drawn}",
        "",
        "Beyond COUNT, lines are drawn until every folder has EACH.",
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
