"""One-line changes put into functions that are already defined."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.mutants.graft import found_functions, grafts

SOURCE = """
import functools

LIMIT = 3

def twice(f):
    @functools.wraps(f)
    def run(*values):
        return 2 * f(*values)
    return run

@twice
def sum_of(a, b=1):
    return a + b

def counter():
    many = 0
    def count():
        nonlocal many
        many += 1
        return many
    return count

class Box:
    size: int = 4
    @property
    def area(self):
        return self.size * self.size
    def sizes(self):
        return [size + 1 for size in range(self.size)]

one = counter()
"""


@pytest.fixture
def grafted(tmp_path) -> Callable[[str, str], dict[str, Any] | None]:
    """The names of a module in which a text is replaced after it was loaded; none where that is refused."""

    def change(before: str, after: str) -> dict[str, Any] | None:
        path = tmp_path / "module.py"
        path.write_text(SOURCE)
        names = runpy.run_path(str(path))
        assert SOURCE.count(before) == 1
        changed = SOURCE.replace(before, after)
        found = grafts(str(path), SOURCE.encode(), changed.encode(), found_functions(tmp_path))
        if found is None:
            return None
        for graft in found:
            graft()
        return names

    return change


@pytest.mark.parametrize(
    ("before", "after", "use", "value"),
    [
        ("return a + b", "return a + b", lambda m: m.sum_of(3), 8),
        ("return a + b", "return a - b", lambda m: m.sum_of(3), 4),
        ("return 2 * f", "return 3 * f", lambda m: m.sum_of(3), 12),
        ("many += 1", "many += 5", lambda m: [m.one(), m.one()], [5, 10]),  # of a function that was made before
        ("many = 0", "many = 7", lambda m: [m.counter()(), m.one()], [8, 1]),
        ("self.size * self.size", "self.size + self.size", lambda m: m.Box().area, 8),
        ("size + 1 for", "size - 1 for", lambda m: m.Box().sizes(), [-1, 0, 1, 2]),
        ("many += 1", "return -1", lambda m: m.counter()(), -1),
    ],
)
def test_what_functions_do_is_changed_where_they_are_used(grafted, before, after, use, value):
    names = grafted(before, after)
    assert use(SimpleNamespace(**names)) == value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("b=1", "b=2"),
        ("size: int = 4", "size: int = 5"),
        ("@property", ""),
        ("@twice\n", ""),
        ("one = counter()", ""),
        ("        nonlocal many\n", ""),  # another function would have no cell for it
    ],
)
def test_what_runs_at_import_is_left_to_a_new_process(grafted, before, after):
    assert grafted(before, after) is None
