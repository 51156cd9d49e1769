"""Values of expressions of Python that follow from their text: nothing is run."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
"""What is computed of numbers, so sizes that are written as fractions of each other can be read."""

LARGEST = 1e9
"""Largest number that is computed with."""

MAX_DEPTH = 20
"""Levels of expressions, and of names that stand for each other."""

MAX_TEXT = 10_000
"""Characters of a text that is put together."""

CONVERSIONS = {"str": str, "int": int, "float": float, "bool": bool, "Path": str, "list": list, "tuple": tuple}

Known = Callable[[ast.expr, int], Any]
"""What a name, an attribute, or a call stands for at a depth; ``Unread`` where that is not in the text."""


class Unread(Exception):
    """An expression whose value is not in the text."""


def unknown(node: ast.expr, depth: int) -> Any:
    """Where no name stands for anything."""
    raise Unread


def value(node: ast.expr | None, known: Known = unknown, depth: int = 0) -> Any:
    """The value of a literal, of what ``known`` knows, of sums and products of numbers, of texts that are put together,
    of an entry of a list or a dictionary, and of some calls (``value_of_call``); ``Unread`` for anything else."""
    if node is None or depth > MAX_DEPTH:
        raise Unread
    with contextlib.suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ast.literal_eval(node)
    match node:
        case ast.Name() | ast.Attribute():
            return known(node, depth)
        case ast.List() | ast.Tuple():
            items = [value(element, known, depth + 1) for element in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        case ast.Dict() if None not in node.keys:
            pairs = zip(node.keys, node.values, strict=True)
            return {value(key, known, depth + 1): value(item, known, depth + 1) for key, item in pairs}
        case ast.Subscript():
            holder, key = value(node.value, known, depth + 1), value(node.slice, known, depth + 1)
            try:
                return holder[key]
            except (LookupError, TypeError) as error:
                raise Unread from error
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            inner = value(node.operand, known, depth + 1)
            if isinstance(node.op, ast.Not) and isinstance(inner, bool):
                return not inner
            if isinstance(node.op, ast.USub) and type(inner) in (int, float):
                return -inner
        case ast.JoinedStr():
            return "".join(part(piece, known, depth + 1) for piece in node.values)[:MAX_TEXT]
        case ast.BinOp() if type(node.op) in ARITHMETIC:
            both: list[Any] = [value(operand, known, depth + 1) for operand in (node.left, node.right)]
            if all(isinstance(operand, str) for operand in both) and isinstance(node.op, ast.Add):
                return "".join(both)[:MAX_TEXT]
            if all(type(operand) in (int, float) and abs(operand) <= LARGEST for operand in both):
                with contextlib.suppress(ZeroDivisionError):
                    return ARITHMETIC[type(node.op)](*both)
        case ast.Call():
            return value_of_call(node, known, depth)
    raise Unread


def part(node: ast.expr, known: Known, depth: int) -> str:
    """A part of an f-string, without a form of its own."""
    if isinstance(node, ast.FormattedValue) and node.format_spec:
        raise Unread
    inner = value(node.value if isinstance(node, ast.FormattedValue) else node, known, depth)
    if not isinstance(inner, str | int | float):
        raise Unread
    return str(inner)


def value_of_call(node: ast.Call, known: Known, depth: int) -> Any:
    """The value of a call that follows from its arguments: a conversion, a path, a default of the environment, an entry
    of a dictionary, the parts of a text."""
    name, arguments = name_of(node.func), node.args
    if name in CONVERSIONS and len(arguments) == 1:
        inner = value(arguments[0], known, depth + 1)
        if isinstance(inner, str | int | float | list | tuple):
            with contextlib.suppress(ValueError, TypeError, OverflowError):
                return CONVERSIONS[name](inner)
    elif name == "dict" and not arguments and all(keyword.arg for keyword in node.keywords):
        return {str(keyword.arg): value(keyword.value, known, depth + 1) for keyword in node.keywords}
    elif name in ("os.environ.get", "os.getenv", "environ.get") and len(arguments) == 2:
        return value(arguments[1], known, depth + 1)
    elif name == "os.getcwd":
        return ""
    elif name == "os.path.join" and arguments:
        parts = [value(argument, known, depth + 1) for argument in arguments]
        if all(isinstance(text, str) for text in parts):
            return str(Path(*parts))
    elif name.endswith(("is_bf16_supported", "is_bfloat16_supported")):
        return True
    elif name.endswith(".split") and isinstance(node.func, ast.Attribute) and len(arguments) == 1:
        holder, mark = value(node.func.value, known, depth + 1), value(arguments[0], known, depth + 1)
        if isinstance(holder, str) and isinstance(mark, str) and mark:
            return holder.split(mark)
    elif name.endswith(".get") and isinstance(node.func, ast.Attribute) and arguments:
        holder, key = value(node.func.value, known, depth + 1), value(arguments[0], known, depth + 1)
        if isinstance(holder, dict):
            return holder[key] if key in holder else value(arguments[1], known, depth + 1) if arguments[1:] else None
    raise Unread


def name_of(node: ast.expr) -> str:
    """``a.b.c`` of names; what is called in between is left out (``Parser().parse`` is ``.parse``)."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(names)])
