"""Programs and queries of a model in processes that can do nothing but compute; see ``sandboxed``.

A machine needs Linux on x86-64 or ARM64, whose kernel filters system calls (seccomp), and no right beyond those of an
ordinary user. Elsewhere nothing is run, and the reward is refused before the run begins.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from reward_models.rules import sandboxed

MEBIBYTE = 1 << 20


def outcomes(job: Mapping[str, Any], seconds: int = 2, memory: int = 256) -> list[dict[str, Any]]:
    """The outcomes of a job, {"status": "done", "error", "syntax" or "limit", ...} for each of its parts.

    ``seconds`` of CPU time and ``memory`` in MiB are those of each part. RuntimeError where the process could not be
    confined, so nothing was run, and where it ends without outcomes, which no program can make it do.
    """
    parts = len(job.get("tests", (0,)))
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(sandboxed.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONHASHSEED": "0"},
        cwd="/",
        start_new_session=True,
    )
    text = json.dumps({**job, "seconds": seconds, "memory": memory * MEBIBYTE})
    wait = 60 + parts * 2 * sandboxed.patience(seconds)
    try:
        answer, _ = process.communicate(text.encode(), timeout=wait)
        results = json.loads(answer)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"the sandbox: no outcome of {parts} parts in {wait} s") from error
    except ValueError as error:
        raise RuntimeError(f"the sandbox: it ended without outcomes (status {process.returncode})") from error
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for result in results:
        if result["status"] == "unconfined":
            raise RuntimeError(f"the sandbox: {result['what']}; nothing was run")
    return results


@cache
def obstacle() -> str:
    """Why this machine confines no process; empty where it does."""
    if sys.platform != "linux" or platform.machine() not in sandboxed.ALLOWED:
        return f"a sandbox needs Linux on {' or '.join(sandboxed.ALLOWED)}, this is {sys.platform} {platform.machine()}"
    try:
        [outcome] = outcomes({"kind": "python", "code": "open('/')", "tests": [{"input": ""}]})
    except (RuntimeError, OSError) as error:
        return str(error)
    return "" if "PermissionError" in outcome.get("what", "") else f"a confined process could open a folder ({outcome})"


def check(tags: bool | str = True) -> None:
    """Before a run starts: ValueError where this machine has no sandbox."""
    if reason := obstacle():
        raise ValueError(f"rewards: {reason}")
