"""What holds for every test: no network, one thread, so that numbers do not depend on the machine's load."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

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


CASES = 4
"""Cases of a slow test outside of nightly runs where its table has more than twice as many: a family or recipe."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no process of pytest-xdist is left alone with one at the end.

    Slow tests have so much time that only a hang runs out of it, also on a loaded machine. Those with a ``seed`` run at
    its first value, 0, and those of a long table for ``CASES`` cases spread over it; the others are nightly.
    """
    tables: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("slow"):
            if item.path.relative_to(Path(__file__).parent).parts[0] in ("unit", "journeys"):
                item.add_marker(pytest.mark.quick)
            continue
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))
        if callspec := getattr(item, "callspec", None):
            tables.setdefault(item.nodeid.partition("[")[0], []).append(item)
            if callspec.params.get("seed"):
                item.add_marker(pytest.mark.nightly)
    for table in tables.values():
        if len(table) > 2 * CASES:
            stay = {round(number * (len(table) - 1) / (CASES - 1)) for number in range(CASES)}
            for number in set(range(len(table))) - stay:
                table[number].add_marker(pytest.mark.nightly)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only slow tests are asked for, files without one are not imported."""
    only = config.getoption("markexpr") in ("slow", "nightly", "slow and not nightly")
    named = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if only and named and "mark.slow" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> Callable[[str], list[Any]]:
    """Values of a parameter among the tests of a module that are run: what runs that they share have to hold."""

    def values(name: str) -> list[Any]:
        own = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
        return [*dict.fromkeys(call.params[name] for call in own if call and name in call.params)]

    return values


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory) -> str:
    """A Whisper, tiny."""
    from pipelines.speech import whisper

    return whisper.tiny(tmp_path_factory.mktemp("whisper"))
