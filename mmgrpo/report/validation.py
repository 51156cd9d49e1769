"""What ``mmgrpo validate`` has shown of checkpoints: a JSON file each, and the table of all of them.

A result is bound to the commit, the versions of the libraries and the device. What has no file was not run, and is
listed as that.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mmgrpo.files import write_text

__all__ = ["CHECKS", "STATUSES", "Outcome", "Validation", "read_results", "table", "versions", "write"]

CHECKS: Mapping[str, str] = {
    "loads": "the model is read, and draws the same sample twice",
    "ratio": "the samples of a rollout, scored again: largest |ratio - 1|",
    "trains": "three steps change weights that train and no others",
    "memory": "peak memory of the steps, as a share of the estimate of --dry-run",
    "saves": "the saved model, loaded again, has the same weights",
    "sample": "the sample without randomness is the library's",
    "exports": "the exported model, in the library, draws the policy's sample",
}
"""What is checked, in this order."""
STATUSES = ("passed", "failed", "skipped", "not run")
LIBRARIES = ("mmgrpo", "torch", "diffusers", "transformers", "peft")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a check."""

    check: str
    status: str
    reason: str = ""
    """Why it was skipped, not run or failed; of one that passed a note."""
    measured: float | None = None
    """What was measured, at most ``tolerance`` in a check that passed."""
    tolerance: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Validation:
    """The outcomes of a checkpoint."""

    checkpoint: str
    family: str
    device: str = ""
    dtype: str = ""
    commit: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options that differ from the family's defaults."""
    outcomes: Sequence[Outcome] = ()

    @property
    def status(self) -> str:
        """``failed`` where a check has failed, ``not run`` where one was not run, ``skipped`` where all were skipped,
        else ``passed``."""
        statuses = {outcome.status for outcome in self.outcomes} or {"not run"}
        return next((status for status in ("failed", "not run", "passed") if status in statuses), "skipped")


def file_of(folder: Path, checkpoint: str) -> Path:
    """The file of a checkpoint's result."""
    return folder / (re.sub(r"[^\w.-]+", "--", checkpoint) + ".json")


def write(folder: Path, result: Validation) -> Path:
    """Write a result, beside the file first; its file. One that was not run replaces none that was."""
    file = file_of(folder, result.checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    if not (file.is_file() and all(outcome.status == "not run" for outcome in result.outcomes)):
        write_text(file, json.dumps(asdict(result), indent=1, ensure_ascii=False) + "\n")
    return file


def read_results(folder: Path) -> dict[str, Validation]:
    """The results in a folder by checkpoint; ValueError for a file that is none."""
    from mmgrpo.report.untrusted import MAX_JSON, mapping, parse_json, read_text

    results: dict[str, Validation] = {}
    for file in sorted(folder.glob("*.json")):
        content = dict(mapping(parse_json(read_text(folder, file.name, MAX_JSON), file), file))
        try:
            outcomes = [Outcome(**record) for record in content.pop("outcomes")]
            result = Validation(**content, outcomes=outcomes)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{file}: is no result of mmgrpo validate ({error}); remove it") from error
        for outcome in outcomes:
            if outcome.check not in CHECKS or outcome.status not in STATUSES:
                raise ValueError(f"{file}: got check '{outcome.check}' with status '{outcome.status}'; remove the file")
            if outcome.status == "passed" and not within(outcome.measured, outcome.tolerance):
                raise ValueError(
                    f"{file}: check '{outcome.check}' is passed with {outcome.measured} above {outcome.tolerance}"
                )
        results[result.checkpoint] = result
    return results


def within(measured: float | None, tolerance: float | None) -> bool:
    """Whether a number is within its tolerance; NaN never is, and what has no number is."""
    if measured is None or tolerance is None:
        return True
    return not math.isnan(measured) and measured <= tolerance


HEAD = ("checkpoint", "family", "status", *CHECKS, "device", "commit", "versions")


def table(results: Mapping[str, Validation], known: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Rows of ``HEAD``: the checkpoints ``known`` (by id, with their families), whether they have a result or not, and
    behind them the other results."""
    others = {name: result.family for name, result in results.items() if name not in known}
    return [_row(results.get(name) or Validation(name, owner)) for name, owner in {**known, **others}.items()]


def _row(result: Validation) -> tuple[str, ...]:
    outcomes = {outcome.check: outcome for outcome in result.outcomes}
    cells = [_cell(outcomes.get(name)) for name in CHECKS]
    device = ", ".join(filter(None, (result.device, result.dtype)))
    packages = ", ".join(f"{name} {number}" for name, number in result.versions.items())
    return (result.checkpoint, result.family, result.status, *cells, device, result.commit, packages)


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not run"
    number = "" if outcome.measured is None else f" ({outcome.measured:.2g})"
    return f"{outcome.status}{number if outcome.status in ('passed', 'failed') else ''}"


def lines(result: Validation) -> Iterable[str]:
    """A result for a terminal, a line for each check."""
    yield f"{result.checkpoint} ({result.family}): {result.status}"
    reasons = {outcome.reason for outcome in result.outcomes}
    if result.status == "not run" and len(reasons) == 1:
        yield f"  {reasons.pop()}"
        return
    for outcome in result.outcomes:
        number = "" if outcome.measured is None else f"{outcome.measured:.3g}"
        limit = "" if outcome.tolerance is None else f" (at most {outcome.tolerance:g})"
        words = "; ".join(filter(None, (number + limit, outcome.reason)))
        yield f"  {outcome.check:8} {outcome.status:8} {words}".rstrip()


def versions() -> dict[str, str]:
    """The versions of the libraries, of those that are installed."""
    installed = {}
    for name in LIBRARIES:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed
