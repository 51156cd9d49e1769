"""Commands as tests run them: in this process where only their results count, else in one of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.state import AcceleratorState

import benchmarks
from mmgrpo.cli import main
from tests import ROOT
from tests.processes import Forked

TIMES = ("seconds", "memory", "run")
"""What differs between two equal runs besides the columns ``time/...``."""


def call(*arguments: object) -> None:
    """``mmgrpo <arguments>`` in this process, which spares the seconds of the imports."""
    AcceleratorState._reset_state(reset_partial_state=True)
    main.run([str(argument) for argument in arguments])


def program(*arguments: object) -> None:
    """``python -m benchmarks <arguments>`` in this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    benchmarks.main([str(argument) for argument in arguments])


def script(name: str) -> list[str]:
    """How a script of the checkout is started."""
    return [sys.executable, str(ROOT / "scripts" / name)]


COMMAND = [sys.executable, "-m", "mmgrpo.cli.main"]


def environment(**more: str) -> dict[str, str]:
    """That of a process which runs the code under test, offline, on one thread."""
    inherited = {name: value for name, value in os.environ.items() if name != "MMGRPO_DEBUG"}
    return {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}


def run(
    start: list[str], *arguments: object, ok: bool = True, limit: int = 0, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a process of its own, ``COMMAND`` in a fork of one that has imported the libraries;
    ``limit`` is the largest file in bytes that it may write."""
    if start == COMMAND:
        forked = Forked(COMMAND[-1], arguments, environment(**more), cwd or "", limit)
        try:
            printed, _ = forked.communicate(600)
            process = subprocess.CompletedProcess(start, forked.returncode or 0, printed, printed)
        finally:
            forked.kill()
    else:
        words = [*start, *map(str, arguments)]
        process = subprocess.run(words, capture_output=True, text=True, env=environment(**more), cwd=cwd)
    assert not ok or process.returncode == 0, process.stderr[-3000:]
    return process


def refused(start: list[str], *arguments: object, **more: Any) -> str:
    """The only line of a refusal, without its ``error: ``."""
    process = run(start, *arguments, ok=False, **more)
    assert process.returncode == 2, process.stderr[-2000:]
    last = process.stderr.strip().splitlines()[-1]
    assert "Traceback" not in process.stderr and last.startswith("error: ")
    return last.removeprefix("error: ")


def kill_at(line: int, folder: Path, *arguments: object) -> None:
    """Start a training that is killed, without a chance to tidy up, when it writes that line of its metrics.

    Where an earlier run has written as many, it is killed while it starts.
    """
    process = Forked("tests.journeys.cli.killed", [line, "train", *arguments], environment())
    path = folder / "metrics.jsonl"
    if not path.is_file() or path.read_bytes().count(b"\n") < line:
        process.communicate(600)
    process.kill()
    assert process.returncode == -signal.SIGKILL


def is_running(process: int) -> bool:
    """Whether there is a process with this number; one that has ended is none, whether or not its parent knows."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second where it ends while its file is open
        return False


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without times and memory."""
    rows = read_lines(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/") and k not in TIMES} for row in rows]


def summary(folder: Path) -> dict[str, Any]:
    """The summary of a run."""
    return json.loads((folder / "summary.json").read_text())


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write a JSONL file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def once(make: Callable[[str], Path]) -> Callable[[str], Path]:
    """A function that makes each of its results once."""
    results: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in results:
            results[name] = make(name)
        return results[name]

    return get
