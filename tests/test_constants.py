"""Numbers that are no settings, limits above all, are those that the documentation states."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests import ROOT

ROOMS = ("mmgrpo", "pipelines", "reward_models")
PAGE = ROOT / "docs" / "constants.md"

HEAD = """# Numbers that are no settings

Limits, sizes and thresholds that no option changes, with what they are for; `python -m tests.test_constants` writes
this page, and a test compares it with the code. Defaults of settings are in [settings.md](settings.md).

| where | number | what it is |
| --- | --- | --- |"""


def page() -> str:
    """``docs/constants.md``."""
    rows = [f"| `{where}` | {number} | {words} |" for where, number, words in sorted(constants())]
    return "\n".join([HEAD, *rows, ""])


def constants() -> Iterator[tuple[str, str, str]]:
    """Documented constants of modules that are numbers or hold some: place, value, and the words below them."""
    for file in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        if file.stem.endswith(("_tiny", "_parts")):  # models for tests
            continue
        statements = ast.parse(file.read_text(encoding="utf-8")).body
        for statement, below in pairwise(statements):
            names = [name for name in targets(statement) if name.isupper() and not name.startswith("_")]
            if not names or not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
                continue
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            values = [getattr(importlib.import_module(module), name) for name in names]
            if all(map(is_number, values)):
                words = " ".join(str(below.value.value).split()).replace("|", "\\|").replace("``", "`")
                yield f"{module}: {', '.join(names)}", ", ".join(map(written, values)), words


def targets(statement: ast.stmt) -> list[str]:
    """The names that a statement sets."""
    if not isinstance(statement, ast.Assign):
        return []
    parts = [part for target in statement.targets for part in getattr(target, "elts", [target])]
    return [part.id for part in parts if isinstance(part, ast.Name)]


def is_number(value: Any) -> bool:
    if isinstance(value, tuple | list | set | frozenset):
        return bool(value) and all(map(is_number, value))
    if isinstance(value, dict):
        return bool(value) and all(map(is_number, value.values()))
    return isinstance(value, int | float) and not isinstance(value, bool)


def written(value: Any) -> str:
    """A number, or several; 6 digits of a fraction, since a root or a logarithm may be rounded otherwise elsewhere."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {written(number)}" for key, number in value.items())
    if isinstance(value, tuple | list | set | frozenset):
        ordered = sorted(value) if isinstance(value, set | frozenset) else value
        return f"({', '.join(map(written, ordered))})"
    return f"{value:,}" if isinstance(value, int) and value < 1e15 else f"{value:.6g}"


def test_the_page_of_constants_holds_them_as_they_are():
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
