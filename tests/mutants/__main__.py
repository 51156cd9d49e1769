"""Which one-line changes of the code no test sees: a seeded sample, each run against the fast tests that run its file.

    python -m tests.mutants --seed 0 --count 200 --report benchmarks/mutants.md
    python -m tests.mutants --count 5 --only mmgrpo/objectives --tests tests/unit/objectives

Works in a copy of the repository in a temporary folder. Which test runs which line is recorded once
(``build/mutants.json``), and again where tests or the code that they run have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

from tests import ROOT
from tests.mutants.lines import FOLDERS
from tests.mutants.operators import Mutant, mutants
from tests.mutants.report import Verdict, markdown

CACHE = ROOT / "build" / "mutants.json"
"""What was recorded; ignored by git."""

TABLES = {"tests/journeys/test_docs_tables.py", "tests/libraries/families/test_defaults_agree.py"}
"""They compare tables of all modules."""

LEAST_SECONDS = 10.0
"""Time-out of a test that takes a moment; others have ten times what they take."""

FIRST_SECONDS, MORE_SECONDS = 60.0, 600.0
"""Tests of one mutant, by the time that they took while their lines were recorded: those that are tried first, and
those that run its line and are tried on what survives them. What further tests might kill counts as a survivor."""


LEFT_OUT = re.compile(r"mmgrpo/cli/bench/|_tiny\.py$|tiny_(parts|text)\.py$")
"""What measures speed, which only slow tests run, and what makes random models for tests, where any size will do."""


def modules() -> list[str]:
    paths = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if not LEFT_OUT.search(path)]


def sample(seed: int, count: int, found: Sequence[Mutant]) -> list[Mutant]:
    """``count`` lines drawn without replacement, and one mutant of each."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for one in found:
        lines.setdefault((one.file, one.line), []).append(one)
    source = random.Random(seed)
    return [source.choice(lines[place]) for place in source.sample(sorted(lines), min(count, len(lines)))]


def digest(paths: Sequence[Path]) -> str:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sorted(paths))).hexdigest()


def environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the repository, so no mutant is ever in the checkout."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "repository"
        left_out = shutil.ignore_patterns(".git", ".venv", "runs", "build", "dist", ".*_cache")
        shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
        yield copy


def seen(copy: Path, under: str = "tests") -> dict[str, Any]:
    """Which test below the folder ``under`` runs which lines: from the cache, but for test files that changed or that
    run code that changed.
    """
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    shared = [path for path in (ROOT / "tests").rglob("*.py") if path not in tests and "mutants" not in path.parts]
    code = {module: digest([ROOT / module]) for module in modules()} | {"tests": digest(shared)}
    empty: dict[str, Any] = {"code": {}, "files": {}, "modules": []}
    known: dict[str, Any] = {**empty, **(json.loads(CACHE.read_text()) if CACHE.exists() else {})}
    stale = {file for file in code if known["code"].get(file) != code[file]}
    now = {path.relative_to(ROOT).as_posix(): digest([path]) for path in tests}
    known["files"] = {file: entry for file, entry in known["files"].items() if file in now}

    def changed(file: str) -> bool:
        entry = known["files"].get(file)
        if entry is None or entry["digest"] != now[file] or "tests" in stale:
            return True
        return any(not stale.isdisjoint(test["lines"]) for test in entry["tests"].values())

    if record := [file for file in now if file.startswith(under) and changed(file)]:
        print(f"recording which lines {len(record)} test files run", file=sys.stderr)
        written = copy / "lines.json"
        command = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.mutants.lines",
            "--lines-to",
            str(written),
            "-m",
            "not slow and not nightly",
        ]
        options = ["-p", "no:cacheprovider", "--timeout", "600", "--tb=short", "-n", "auto", "--dist", "loadfile"]
        subprocess.run(
            [sys.executable, *command, *options, *record], cwd=copy, env=environment(copy), stdout=sys.stderr
        )
        known["files"].update({file: {"digest": now[file], "tests": {}} for file in record})
        for part in copy.glob("linesgw*.json"):
            new = json.loads(part.read_text())
            for name, test in new["tests"].items():
                known["files"][name.split("::")[0]]["tests"][name] = test
            known["modules"] = sorted({*known["modules"], *new["modules"]})
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    CACHE.write_text(json.dumps({**known, "code": code}))
    return known


def mirror(file: str) -> str:
    """The folder of the tests of a module: those of the core and of the commands, and those of the outer packages."""
    folder = Path(file).parent
    if folder.parts[0] != "mmgrpo":
        return (Path("tests/libraries") / folder).as_posix()
    inside = folder.relative_to("mmgrpo")
    return (Path("tests/journeys" if inside.parts[:1] == ("cli",) else "tests/unit") / inside).as_posix()


class Tests:
    """Which tests see a mutant."""

    def __init__(self, known: dict[str, Any]) -> None:
        self.seconds: dict[str, float] = {}
        self.by_line: dict[tuple[str, int], list[str]] = {}
        self.by_file: dict[str, list[str]] = {}
        paths = [path for folder in (*FOLDERS, "tests") for path in (ROOT / folder).rglob("*.py")]
        self.texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        for entry in known["files"].values():
            for name, test in entry["tests"].items():
                self.seconds[name] = test["seconds"]
                for file, lines in test["lines"].items():
                    self.by_file.setdefault(file, []).append(name)
                    for line in lines:
                        self.by_line.setdefault((file, line), []).append(name)

    def of(self, mutant: Mutant) -> tuple[dict[str, float], dict[str, float]]:
        """The tests that are tried first and those that are tried then, with their time-outs.

        First those that run the line, of the room that mirrors the module's before others, and if there is time the
        other tests of their files that run the module; then the rest of those that run the line.

        What is cached shows in the first test only. A line that no test is seen to run is run at import or in another
        process: it is seen by whoever names the module or runs code that does.
        """
        runs = {*self.at(mutant.file, mutant.line), *self.at(mutant.file, mutant.statement)}
        if mutant.called and runs:
            files = {name.split("::")[0] for name in runs}
            near = {name for name in self.by_file.get(mutant.file, []) if name.split("::")[0] in files}
        else:
            naming = self.naming(mutant.file)
            near = {name for file in naming for name in self.by_file.get(file, [])}
            runs |= {name for name in self.seconds if name.split("::")[0] in naming | TABLES}
        room = mirror(mutant.file)
        own = {name for name in runs if str(Path(name.split("::")[0]).parent) == room}
        turns = [*self.in_turn(own), *self.in_turn(runs - own), *self.in_turn(near - runs)]
        first = self.within_time(turns, FIRST_SECONDS)
        more = self.within_time([name for name in turns if name in runs - first], MORE_SECONDS)
        return self.timed(self.ordered(first, room)), self.timed(self.ordered(more, room))

    def timed(self, names: Sequence[str]) -> dict[str, float]:
        return {name: max(LEAST_SECONDS, 10 * self.seconds[name]) for name in names}

    def in_turn(self, names: set[str]) -> list[str]:
        """The fastest test of each file, then the second fastest of each, and so on."""
        place: dict[str, int] = {}
        turns: list[tuple[int, float, str]] = []
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            file = name.split("::")[0]
            place[file] = place.get(file, -1) + 1
            turns.append((place[file], self.seconds[name], name))
        return [name for _, _, name in sorted(turns)]

    def within_time(self, names: Sequence[str], seconds: float) -> set[str]:
        """The first of the tests that take so many seconds together, at least one."""
        spent = list(itertools.accumulate(self.seconds[name] for name in names))
        return {name for name, until in zip(names, spent) if until <= seconds} or set(names[:1])

    def at(self, file: str, line: int) -> list[str]:
        return self.by_line.get((file, line), [])

    def naming(self, file: str) -> set[str]:
        """The module itself and all files, of the tests too, that name it."""
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        package, _, last = name.rpartition(".")
        one = re.compile(
            rf"(from|import) {re.escape(name)}(?![\w.])|from {re.escape(package)} import .*\b{last}\b"
            rf"|{name}:|\"{name}\""  # of a table, of a command
        )
        return {file, *(other for other, text in self.texts.items() if one.search(text))}

    def ordered(self, names: set[str], room: str = "") -> list[str]:
        """File by file, first those of the room that mirrors the module's, then those that take less time."""
        total: dict[str, float] = {}
        for name in names:
            file = name.split("::")[0]
            total[file] = total.get(file, 0) + self.seconds[name]

        def place(name: str) -> tuple[bool, float, str, float]:
            file = name.split("::")[0]
            return str(Path(file).parent) != room, total[file], file, self.seconds[name]

        return sorted(names, key=place)


class Process:
    """A process that tries mutants in a copy."""

    def __init__(self, copy: Path, loads: dict[str, list[str]]) -> None:
        command = [sys.executable, "-m", "tests.mutants.trying"]
        self.process = subprocess.Popen(
            command, cwd=copy, env=environment(copy), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.send(loads)

    def send(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdout is not None
        self.send(job)
        return json.loads(self.process.stdout.readline())


class Worker:
    """A copy with its two processes."""

    def __init__(self, copy: Path, files: list[str], libraries: list[str]) -> None:
        self.copy = copy
        self.warm = Process(copy, {"tests": files})
        self.cold = Process(copy, {"libraries": libraries})

    def killer(self, job: dict[str, Any], twice: bool) -> tuple[str, float]:
        """The test that fails first and the seconds that it took: in the warm process, and in the cold one where that
        cannot tell, or where all pass there and are to be tried ``twice``."""
        seconds = 0.0
        for process in (self.warm, self.cold):
            answer = process.ask(job)
            seconds += answer["seconds"]
            if answer["failed"]:
                return answer["failed"][0], seconds
            if answer["failed"] is not None and not twice:
                break
        return "", seconds

    def broken(self, job: dict[str, Any]) -> set[str]:
        """The tests that fail in one of the processes."""
        return {name for process in (self.warm, self.cold) for name in process.ask(job)["failed"]}


def judge(workers: Sequence[Worker], chosen: Sequence[Mutant], tests: Tests) -> list[Verdict]:
    """Every mutant's verdict; a test that also fails without a mutant kills nothing."""
    verdicts = {one: Verdict(one) for one in chosen}
    waiting, broken = list(chosen), set[str]()
    idle: Queue[Worker] = Queue()
    for worker in workers:
        idle.put(worker)

    def verdict(one: Mutant) -> Verdict:
        worker, spent = idle.get(), 0.0
        try:
            text = one.text((worker.copy / one.file).read_bytes()).hex()
            for number, chosen in enumerate(tests.of(one)):
                limits = {name: limit for name, limit in chosen.items() if name not in broken}
                if limits:
                    limit = 60 + 10 * sum(tests.seconds[name] for name in limits)
                    job = {"file": one.file, "text": text, "tests": limits, "limit": limit}
                    killer, seconds = worker.killer(job, twice=number == 0)
                    spent += seconds
                    if killer:
                        return Verdict(one, killer, spent)
            return Verdict(one, seconds=spent)
        finally:
            idle.put(worker)

    while waiting:
        with ThreadPoolExecutor(len(workers)) as pool:
            for number, one in enumerate(pool.map(verdict, waiting), 1):
                verdicts[one.mutant] = one
                print(f"{number}/{len(waiting)} {one}", file=sys.stderr, flush=True)
        killers = {v.killer for v in verdicts.values() if v.killer in tests.seconds}
        job = {"tests": {name: 600.0 for name in tests.ordered(killers)}, "limit": 3600, "keep_going": True}
        fresh = workers[0].broken(job) - broken if killers else set()
        broken |= fresh
        waiting = [one for one, verdict in verdicts.items() if verdict.killer in fresh]
    return list(verdicts.values())


def run(options: argparse.Namespace) -> list[Verdict]:
    """Draw the mutants and judge them."""
    files = [file for file in modules() if re.search(options.only, file)]
    with ExitStack() as stack:
        copies = [stack.enter_context(copied()) for _ in range(options.workers)]
        found = [one for file in files for one in mutants(file, (copies[0] / file).read_text(encoding="utf-8"))]
        chosen = found if options.every else sample(options.seed, options.count, found)
        if options.line:
            chosen = [one for one in found if f"{one.file}:{one.line}" == options.line]
        known = seen(copies[0], options.tests)
        tests = Tests(known)
        files = sorted({name.split("::")[0] for one in chosen for part in tests.of(one) for name in part})
        return judge([Worker(copy, files, known["modules"]) for copy in copies], chosen, tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="mutants that are tried at once")
    parser.add_argument("--only", default="", help="regular expression of the files that are changed")
    parser.add_argument("--tests", default="tests", help="folder of the tests that are run")
    parser.add_argument("--every", action="store_true", help="try every mutant instead of a sample")
    parser.add_argument("--line", default="", help="try every mutant of a line: path:number")
    parser.add_argument("--report", type=Path, default=None, help="write the table here")
    options = parser.parse_args()
    text = markdown(run(options), f"SEED={options.seed} COUNT={options.count}")
    print(text)
    if options.report:
        options.report.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
