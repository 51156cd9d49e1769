"""Puts one-line changes into functions that are already defined."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

Graft = Callable[[], None]
Place = tuple[str, str, int]
"""File, qualified name and first line of a function."""


def place(code: CodeType) -> Place:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def found_functions(root: Path) -> dict[Place, list[FunctionType]]:
    """All functions of files below ``root``, those that a decorator wraps, too."""
    found: dict[Place, list[FunctionType]] = {}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(f"{root}/"):
            found.setdefault(place(one.__code__), []).append(one)
    return found


def grafts(
    file: str, before: bytes, after: bytes, functions: Mapping[Place, Sequence[FunctionType]]
) -> list[Graft] | None:
    """What replaces the code of the functions that differ; none where a difference lies in what runs at import."""
    pairs = changed(compile(before, file, "exec"), compile(after, file, "exec"))
    if pairs is None:
        return None
    found = [(one, new) for old, new in pairs for one in functions.get(place(old), ())]
    if any(len(one.__code__.co_freevars) != len(new.co_freevars) for one, new in found):
        return None
    return [partial(setattr, one, "__code__", new) for one, new in found]


def changed(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Pairs of codes of functions that differ, with those within them; none where a module's or a class's own does."""
    if old == new:
        return []
    called = bool(old.co_flags & inspect.CO_OPTIMIZED)
    found = [(old, new)] if called else []
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    if not called and described(old) != described(new):
        return None
    if len(inner[0]) != len(inner[1]):
        return found if called else None
    for one, other in zip(*inner, strict=True):
        pairs = changed(one, other)
        if pairs is None:
            return None
        found += pairs
    return found


def described(code: CodeType) -> tuple[object, ...]:
    """What a code does, but for the codes within it."""
    consts = tuple(repr(one) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
