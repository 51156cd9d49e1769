"""Tries mutants in forks of one warm interpreter, inside of a copy of the repository.

    python -m tests.mutants.trying < jobs > verdicts        # one JSON object a line; the first names what to load

A ``warm`` process has loaded all modules and collected all tests once: a fork of it puts the changed functions in their
places and starts at once. What runs when a module is imported cannot be changed so, and what was cached while tests
were collected would not be seen: for these, a ``cold`` process has only imported libraries, and its forks the rest.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, TextIO

import pytest

from tests.mutants.graft import Graft, found_functions, grafts

MEMORY = 12 * 2**30
"""Bytes that a mutant may allocate."""

OPTIONS = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]

Job = dict[str, Any]


class Chosen:
    """Runs only the tests asked for, in the order given, each within its own time; remembers those that fail.

    A name without parameters means the test with all of its parameters.
    """

    def __init__(self, limits: dict[str, float]) -> None:
        self.limits = limits
        self.failed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        there: dict[str, list[pytest.Item]] = {}
        for item in items:
            for name in {item.nodeid, item.nodeid.partition("[")[0]}:
                there.setdefault(name, []).append(item)
        items[:] = [item for name in self.limits for item in there.get(name, ())]
        for name, limit in self.limits.items():
            for item in there.get(name, ()):
                item.add_marker(pytest.mark.timeout(limit))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def run_cold(job: Job, folder: str) -> list[str]:
    """The tests that fail in this process, of those given: the first, or all of them."""
    chosen = Chosen(job["tests"])
    files = sorted({name.split("::")[0] for name in job["tests"]})
    first = [] if job.get("keep_going") else ["-x"]
    code = pytest.main([*OPTIONS, *first, "--basetemp", folder, *files], plugins=[chosen])
    return chosen.failed or ([] if code == 0 else [f"pytest ended with {int(code)}"])


class Collected:
    """A session of pytest that has collected its tests, and tries jobs instead of running them."""

    def __init__(self, loop: Callable[[Collected], None]) -> None:
        self.loop = loop
        self.items: list[pytest.Item] = []
        self.functions: dict[tuple[str, str, int], list[FunctionType]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = session.items
        gc.unfreeze()  # what tests/conftest.py has frozen is not found
        self.functions = found_functions(Path.cwd())
        gc.freeze()
        self.loop(self)
        return True

    def grafts(self, job: Job) -> list[Graft] | None:
        """What puts the job's mutant in its place; none where that cannot be done."""
        path = Path.cwd() / job["file"]
        if not any(file == str(path) for file, _, _ in self.functions):
            return None
        return grafts(str(path), path.read_bytes(), bytes.fromhex(job["text"]), self.functions)

    def run(self, job: Job, folder: str) -> list[str]:
        chosen, items = Chosen(job["tests"]), list(self.items)
        chosen.pytest_collection_modifyitems(items)
        config = self.items[0].config
        config._tmp_path_factory._basetemp = Path(folder)  # type: ignore[attr-defined]
        config.pluginmanager.register(chosen)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if chosen.failed and not job.get("keep_going"):
                break
        return chosen.failed


def silence() -> None:
    """Send what this process prints to a log, if there is one."""
    log = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def fork(job: Job, run: Callable[[Job, str], list[str]]) -> list[str]:
    """The verdict of one job, reached in a child process."""
    reader, writer = os.pipe()
    folder = tempfile.mkdtemp(prefix="mutant-")
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            os.close(reader)
            silence()
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            failed = run(job, folder)
            os.write(writer, json.dumps(failed).encode())
        finally:
            os._exit(0)
    os.close(writer)
    try:
        return ended(child, reader, job["limit"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ended(child: int, reader: int, seconds: float) -> list[str]:
    """What a child has written when it has ended, or why it has not."""
    with os.fdopen(reader, "rb") as pipe:
        deadline = time.monotonic() + seconds
        late = False
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                late = True
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        answer = b"" if late else pipe.read()
    return json.loads(answer) if answer else ["time is up" if late else "the process died"]


def tried(job: Job, warm: Collected | None) -> list[str] | None:
    """The tests that fail with a job's mutant; none where a warm process cannot tell."""
    if not job.get("file"):
        return fork(job, warm.run if warm else run_cold)
    placed = warm.grafts(job) if warm else []
    if placed is None:
        return None

    def run(job: Job, folder: str) -> list[str]:
        for graft in placed:
            graft()
        return (warm.run if warm else run_cold)(job, folder)

    path = Path(job["file"])
    before, stat = path.read_bytes(), path.stat()
    path.write_bytes(bytes.fromhex(job["text"]))
    # Compiled modules are recognized by size and time.
    os.utime(path, (stat.st_atime, stat.st_mtime + 10_000))
    try:
        return fork(job, run)
    finally:
        path.write_bytes(before)
        os.utime(path, (stat.st_atime, stat.st_mtime))


def answer(jobs: TextIO, verdicts: TextIO, warm: Collected | None = None) -> None:
    """Answer every job with the tests that fail and the seconds that it took."""
    for line in jobs:
        start = time.perf_counter()
        failed = tried(json.loads(line), warm)
        print(json.dumps({"failed": failed, "seconds": time.perf_counter() - start}), file=verdicts, flush=True)


def main() -> None:
    sys.dont_write_bytecode = True
    jobs, verdicts = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")  # pytest takes the standard ones
    first = json.loads(jobs.readline())
    if "tests" in first:
        silence()
        plugin = Collected(lambda warm: answer(jobs, verdicts, warm))
        pytest.main([*OPTIONS, "-m", "not slow and not nightly", *first["tests"]], plugins=[plugin])
        return
    for name in first["libraries"]:
        with suppress(BaseException):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    answer(jobs, verdicts)


if __name__ == "__main__":
    main()
