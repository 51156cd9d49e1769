"""A plugin of pytest that writes which test runs which line, how long it takes, and which modules are imported.

    python -m pytest -p tests.mutants.lines --lines-to lines.json -m "not slow and not nightly"

Every process of pytest-xdist writes a file of its own (``linesgw0.json``). The lines of a fixture that several tests
share count for each of them.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests import ROOT

FOLDERS = ("mmgrpo", "pipelines", "reward_models")


class Lines:
    """Lines as they are run, added to the set that is current."""

    def __init__(self) -> None:
        self.current: set[tuple[str, int]] = set()
        self.files: dict[str, str] = {}
        """Every file seen, and its path inside of the repository, empty for those of others."""

    def call(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self.files:
            path = Path(name)
            ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in FOLDERS
            self.files[name] = path.relative_to(ROOT).as_posix() if ours else ""
        if not self.files[name]:
            return None
        self.current.add((self.files[name], frame.f_lineno))
        return self.line

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        self.current.add((self.files[frame.f_code.co_filename], frame.f_lineno))
        return self.line


class Plugin:
    """Follows every test of a run."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.lines = Lines()
        self.of_fixture: dict[int, set[tuple[str, int]]] = {}
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        self.path: Path | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        if item.path != self.path:
            self.path = item.path
            forget()
        self.lines.current = set()
        threading.settrace(self.lines.call)
        sys.settrace(self.lines.call)
        start = time.process_time()  # as much on a busy machine
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.keep(item, time.process_time() - start)

    def keep(self, item: pytest.Item, seconds: float) -> None:
        seen = set(self.lines.current)
        for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
            for definition in definitions:
                seen |= self.of_fixture.get(id(definition), set())
        self.tests[item.nodeid] = {"seconds": round(seconds, 3), "lines": by_file(seen)}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        outer, self.lines.current = self.lines.current, set()
        try:
            return (yield)
        finally:
            self.of_fixture.setdefault(id(fixturedef), set()).update(self.lines.current)
            self.lines.current = outer | self.lines.current

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = {name: test for name, test in self.tests.items() if name not in self.failed}
        ours = {*FOLDERS, "tests", "scripts", "docs", "conftest", "pytest", "_pytest"}
        modules = [name for name in sys.modules if name.split(".")[0] not in ours and "<" not in name]
        self.target.write_text(json.dumps({"tests": passed, "modules": modules}))


def forget() -> None:
    """Empty the caches of functions, so the first test of every file runs what is cached."""
    ours = [module for name, module in list(sys.modules.items()) if name.split(".")[0] in FOLDERS]
    for one in [value for module in ours for value in list(vars(module).values())]:
        if callable(getattr(type(one), "cache_clear", None)):
            one.cache_clear()


def by_file(lines: set[tuple[str, int]]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for file, line in sorted(lines):
        found[file].append(line)
    return dict(found)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines-to", type=Path, default=None)


def pytest_configure(config: pytest.Config) -> None:
    target, worker = config.getoption("--lines-to"), os.environ.get("PYTEST_XDIST_WORKER", "")
    if target and (worker or not config.getoption("numprocesses", None)):
        config.pluginmanager.register(Plugin(target.with_stem(f"{target.stem}{worker}")))
