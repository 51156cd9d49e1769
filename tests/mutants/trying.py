"""Runs mutants in forks of one warm interpreter: the libraries are imported once, our own modules in every fork.

python -m tests.mutants.trying < jobs > verdicts        # one JSON object a line, inside of a copy of the repository
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

MEMORY = 12 * 2**30
"""Bytes that a mutant may allocate."""


class Chosen:
    """Runs only the tests asked for, in the order given, each within its own time; remembers those that fail."""

    def __init__(self, limits: dict[str, float]) -> None:
        self.limits = limits
        self.place = {name: i for i, name in enumerate(limits)}
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(self.limits[item.nodeid]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def run(limits: dict[str, float], keep_going: bool) -> list[str]:
    """The tests that fail in this process, of those given: the first, or all of them."""
    chosen = Chosen(limits)
    files = sorted({name.split("::")[0] for name in limits})
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", *([] if keep_going else ["-x"])]
    code = pytest.main([*options, *files], plugins=[chosen])
    return chosen.failed or ([] if code == 0 else [f"pytest ended with {int(code)}"])


def fork(job: dict[str, Any]) -> list[str]:
    """The verdict of one job, reached in a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(reader)
            silence = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            failed = run(job["tests"], job.get("keep_going", False))
            os.write(writer, json.dumps(failed).encode())
        finally:
            os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + job["limit"]
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            return ["time is up"]
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    return json.loads(answer) if answer else ["the process died"]


def main() -> None:
    sys.dont_write_bytecode = True
    for name in json.loads(sys.stdin.readline()):
        with suppress(BaseException):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        path, before = Path(job["file"]) if job.get("file") else None, b""
        if path is not None:
            before, stat = path.read_bytes(), path.stat()
            path.write_bytes(bytes.fromhex(job["text"]))
            # Compiled modules are recognized by size and time.
            os.utime(path, (stat.st_atime, stat.st_mtime + 10_000))
        start = time.perf_counter()
        try:
            failed = fork(job)
        finally:
            if path is not None:
                path.write_bytes(before)
                os.utime(path, (stat.st_atime, stat.st_mtime))
        print(json.dumps({"failed": failed, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
