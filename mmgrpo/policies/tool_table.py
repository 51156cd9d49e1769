"""The functions and classes that ``sampling.tools`` names, and what they declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from PIL import Image as Pil

from mmgrpo.config.plugins import load_object
from mmgrpo.types import Image, Media

HOOKS = ("reset", "turn_reward", "state", "reward", "get_reward")
"""Methods of a class that are no tools."""

COLUMNS = -1
"""``reset_parameters`` of a class whose ``reset`` takes the columns of the row by keywords."""


class WorldFailed(Exception):
    """Raised by a tool whose world broke, which is no fault of the policy's: a service that is gone, a simulator that
    fails. The completion ends and no reward scores it. Any other exception is what the policy reads of its call."""


def load_tools(names: Sequence[str]) -> list[Any]:
    """The functions and classes that ``sampling.tools`` names, ``module:name``."""
    for name in names:
        if ":" not in name:
            raise ValueError(f"sampling.tools: got '{name}', expected module:function or module:Class of your own")
    return [load_object(name, "sampling.tools", kind=_function_or_class) for name in names]


def _function_or_class(value: Any) -> str:
    return "" if inspect.isfunction(value) or inspect.isclass(value) else "a function or a class"


def tools_by_name(tools: Sequence[Any]) -> dict[str, tuple[type | None, Callable[..., Any]]]:
    """Each tool by its name, with the class whose method it is. ValueError for a name that two have, and for a class
    without a public method."""
    offered: dict[str, tuple[type | None, Callable[..., Any]]] = {}
    for tool in tools:
        owner = tool if isinstance(tool, type) else None
        methods = {tool.__name__: tool} if owner is None else _methods(owner)
        if not methods:
            raise ValueError(f"sampling.tools: class '{tool.__name__}' has no public method, expected at least one")
        if twice := offered.keys() & methods.keys():
            raise ValueError(f"sampling.tools: two tools have the name '{min(twice)}'; rename one")
        offered |= {name: (owner, function) for name, function in methods.items()}
    return offered


def _methods(owner: type) -> dict[str, Callable[..., Any]]:
    functions = inspect.getmembers(owner, inspect.isfunction)
    return {name: function for name, function in functions if not name.startswith("_") and name not in HOOKS}


def opens(owner: type) -> bool:
    """Whether a class declares that its ``reset`` returns a text."""
    reset = getattr(owner, "reset", None)
    if not inspect.isfunction(reset):
        return False
    hint = _return_hint(reset)
    either = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return str in either or hint in ("str", "str | None", "Optional[str]")


def reset_parameters(owner: type) -> int:
    """How many of the prompt and the seed the ``reset`` of a class takes; 0 without one, ``COLUMNS`` for one with
    ``**keywords``, as the environments of TRL have it."""
    if not callable(getattr(owner, "reset", None)):
        return 0
    parameters = inspect.signature(object.__new__(owner).reset).parameters.values()
    return (
        COLUMNS if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) else min(2, len(parameters))
    )


def having(tools: Sequence[Any], method: str) -> list[type]:
    """The classes of tools that have a method of ``HOOKS``."""
    return [tool for tool in tools if isinstance(tool, type) and hook(tool, method)]


def hook(owner: type, method: str) -> str:
    """The name of a method of ``HOOKS`` in a class: TRL's for ``reward`` is ``get_reward``; empty without one."""
    names = ("reward", "get_reward") if method == "reward" else (method,)
    return next((name for name in names if callable(getattr(owner, name, None))), "")


def returning_images(tools: Sequence[Any]) -> list[str]:
    """The tools whose annotations say that they return images."""
    return [name for name, (_, function) in tools_by_name(tools).items() if _of_images(_return_hint(function))]


def _return_hint(function: Callable[..., Any]) -> Any:
    """What a function is annotated to return, as text where names of its annotations exist for type checkers only."""
    try:
        return get_type_hints(function).get("return")
    except NameError:
        return inspect.signature(function).return_annotation


def _of_images(hint: Any) -> bool:
    kinds = Pil.Image, Image, Media
    return (isinstance(hint, type) and issubclass(hint, kinds)) or any(map(_of_images, get_args(hint)))
