"""What a text ``module:name`` may refer to. It is decided from the object itself, before anything is called.

Nothing of Python's standard library is ever meant: ``os:abort`` and ``shutil:rmtree`` are functions too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

Kind: TypeAlias = Callable[[Any], str]
"""From an object to what was expected instead; empty if the object is of the kind."""


def in_standard_library(module: str) -> bool:
    """Whether a module is part of Python, told from its name without importing it."""
    return module.partition(".")[0] in sys.stdlib_module_names


def definition(value: Any) -> Any:
    """The function or class that defines what a call of ``value`` does: inside wrappers and partial applications."""
    if isinstance(value, functools.partial):
        return definition(value.func)
    value = inspect.unwrap(value)
    return value if inspect.isroutine(value) or inspect.isclass(value) else type(value)


def function(value: Any) -> str:
    """A function that is written in Python, or an object of a class with ``__call__``."""
    source = definition(value)
    if inspect.isclass(source) and not isinstance(value, type):
        source = inspect.unwrap(getattr(source, "__call__", source))  # noqa: B004
    return "" if inspect.isfunction(source) or inspect.ismethod(source) else "a function that is written in Python"


def reward(value: Any) -> str:
    """A function whose first two positional parameters are prompts and outputs."""
    expected = "a function of prompts and outputs"
    if function(value):
        return expected
    parameters = list(inspect.signature(value).parameters.values())
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters[:3]):
        return ""
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return "" if len(positional) >= 2 else expected


def with_members(protocol: type) -> Kind:
    """An object, or a class, with all members of a protocol, properties included."""

    def kind(value: Any) -> str:
        asked = {name for name in vars(protocol) if not name.startswith("_")}
        lacking = ", ".join(sorted(asked - {*dir(value), *getattr(value, "__dataclass_fields__", ())}))
        return f"a {protocol.__name__}, which also has {lacking}" if lacking else ""

    return kind


def made_of(protocol: type) -> Kind:
    """An object of a runtime-checkable protocol, or what makes one without arguments: a class, or a function that is
    annotated to return one."""

    def kind(value: Any) -> str:
        if isinstance(value, type):
            right = issubclass(value, protocol)
        elif inspect.isfunction(value):
            returned = inspect.get_annotations(value).get("return")
            if isinstance(returned, str):  # from __future__ import annotations; looked up and not evaluated
                returned = value.__globals__.get(returned)
            right = isinstance(returned, type) and issubclass(returned, protocol)
        else:
            right = isinstance(value, protocol)
        name = protocol.__name__
        return "" if right else f"a {name}, a class of one, or a function annotated to return one: def f() -> {name}"

    return kind
