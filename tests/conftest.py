"""What holds for every test: no network, one thread, so numbers do not depend on the machine's load."""

from __future__ import annotations

import gc
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it in its processes, and what is printed would be wrapped

import pytest
import torch

# Modules and items live as long as their process: looking for garbage among them is a third of the time of collecting.
gc.disable()

# `make test-roundings` chooses another number, because sums over threads are rounded in another order.
torch.set_num_threads(int(os.environ.get("MMGRPO_TEST_THREADS", "1")))


def pytest_configure(config: pytest.Config) -> None:
    """With shape checks the package is compiled differently, which `runpy` would leave to all other processes."""
    if config.getoption("jaxtyping_packages"):
        sys.dont_write_bytecode = True


TABLE = 2
"""Cases of a slow test above which they are a table, of families or recipes, of which the first stays outside of
nightly runs; what each family does is held by those tests that are not slow."""
PRODUCT, PRODUCT_OF_LIBRARIES = 8, 2
"""Cases of another test above which those are nightly whose values all stand in others, too: of presets by policies,
each preset once and each policy once find what is wrong with either. Tests of the other rooms load a model a case."""


def spread(table: list[pytest.Item]) -> set[int]:
    """Cases in which each value of each parameter stands, about as often as the others; all where few values meet."""
    plain = str | int | float | bool | None
    cases = [
        [(name, value if isinstance(value, plain) else id(value)) for name, value in item.callspec.params.items()]  # type: ignore[attr-defined]
        for item in table
    ]
    if 2 * len(cases) < math.prod(Counter(name for name, _ in {one for case in cases for one in case}).values()):
        return set(range(len(cases)))
    times: Counter[tuple[str, Any]] = Counter()
    left, stay = dict(enumerate(cases)), set()
    while left:
        best = max(
            left,
            key=lambda number: (sum(not times[one] for one in left[number]), -sum(times[one] for one in left[number])),
        )
        if all(times[one] for one in left[best]):
            break
        times.update(left.pop(best))
        stay.add(best)
    return stay


def room(path: Path) -> str:
    """The folder of this one in which a file stands."""
    return path.relative_to(Path(__file__).parent).parts[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so no process of pytest-xdist is left alone with one at the end.

    Slow tests have so much time that only a hang runs out of it, also on a loaded machine. Those with a
    ``seed``, and others that learn, run at its first value, 0, those of a ``TABLE`` for its first case; the others are
    nightly. So are cases of other tests whose table is a product, and where every call is checked
    against its signature all but the first and the last case, unless they are ``rows``, each a way of its own.
    """
    checked = bool(config.getoption("jaxtyping_packages"))
    tables: dict[str, list[pytest.Item]] = {}
    products: dict[str, list[pytest.Item]] = {}
    for item in items:
        values = getattr(getattr(item, "callspec", None), "params", {})
        slow = bool(item.get_closest_marker("slow"))
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))
        if (slow or item.get_closest_marker("learning")) and values.get("seed"):
            item.add_marker(pytest.mark.nightly)
        rows, nightly = bool(item.get_closest_marker("rows")), bool(item.get_closest_marker("nightly"))
        if not nightly and ((slow and values and not rows) or len(values) > 1 or (checked and values and not rows)):
            (tables if slow else products).setdefault(item.nodeid.partition("[")[0], []).append(item)
    for table in tables.values():
        if len(table) > TABLE and not table[0].get_closest_marker("rows"):
            for item in table[1:]:
                item.add_marker(pytest.mark.nightly)
    for table in products.values():
        few = checked and not table[0].get_closest_marker("rows")
        most = PRODUCT if room(table[0].path) in ("unit", "journeys") else PRODUCT_OF_LIBRARIES
        stay = {0, len(table) - 1} if few else spread(table) if len(table) > most else set(range(len(table)))
        for number in set(range(len(table))) - stay:
            table[number].add_marker(pytest.mark.nightly)
    for item in items:
        outside = room(item.path) not in ("unit", "journeys")
        if not (outside or any(item.get_closest_marker(name) for name in ("slow", "learning", "nightly"))):
            item.add_marker(pytest.mark.quick)  # those of `make test`
    first = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in first)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only slow tests of a file are asked for, one without any is not imported; those that learn are slow.
    Nor is a file of slow tests alone where none is asked for.
    """
    asked, first = config.getoption("markexpr"), collection_path.relative_to(Path(__file__).parent).parts[:1]
    only = asked == "(slow or learning) and not nightly" or (
        asked == "not nightly and not quick" and first in (("unit",), ("journeys",))
    )
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    without = only and not re.search(r"mark\.(slow|learning)", text)
    alone = asked.startswith("not slow and") and re.search(r"^pytestmark = .*mark\.slow", text, re.MULTILINE)
    return True if without or alone else None


IMPORTED = 100
"""Modules after whose import garbage is not looked for in what is there, which took a seventh of the time of tests."""
modules = 0


def freeze() -> None:
    """What is there stays as long as the process, and is not looked through again, nor now: little of it is garbage."""
    global modules
    gc.freeze()
    modules = len(sys.modules)


def pytest_collection_finish() -> None:
    freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Also the modules of libraries that a test imports live as long as the process."""
    if len(sys.modules) - modules >= IMPORTED:
        freeze()


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> Callable[[str], list[Any]]:
    """Values of a parameter among the tests of a module that are run: what runs that they share have to hold."""

    def values(name: str) -> list[Any]:
        own = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
        return [*dict.fromkeys(call.params[name] for call in own if call and name in call.params)]

    return values


@pytest.fixture
def copied() -> Iterator[None]:
    """Workers of rewards and tools are copies of this process (``tests.processes.Copied``)."""
    from tests.processes import copies

    with copies():
        yield


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory) -> str:
    """A Whisper, tiny."""
    from pipelines.speech import whisper

    return whisper.tiny(tmp_path_factory.mktemp("whisper"))
