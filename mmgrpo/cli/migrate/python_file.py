"""Assignments of a Python file of ``ml_collections``, read from its syntax tree: no line of it is run."""

from __future__ import annotations

import ast
import contextlib
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from mmgrpo.cli.migrate.sources import Source
from mmgrpo.config.names import nearest

ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
"""What is computed of numbers, so that sizes that are written as fractions of each other can be read."""

LARGEST = 1e9


def from_python(source: Source, text: str, chosen: str) -> None:
    """Put ``config.a.b = value`` of the function ``chosen`` of a file, after those of functions that it begins with.

    A value that is neither a literal nor arithmetic of numbers (``folded``) is kept as text in ``source.unread``.
    """
    tree = parsed(source, text)
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(True for _ in assignments(node.body))
    }
    if not functions:
        put(source, tree.body, functions, ())
    elif not chosen and len(functions) > 1:
        raise ValueError(
            f"{source.name}: has {len(functions)} configurations; name one, FILE.py:NAME.{nearest('', functions)}"
        )
    elif chosen and chosen not in functions:
        raise ValueError(f"{source.name}: unknown function '{chosen}'.{nearest(chosen, functions)}")
    else:
        put(source, functions[chosen or next(iter(functions))].body, functions, ())
    if not source.values and not source.unread:
        raise ValueError(f"{source.name}: has no assignment config.name = value")


def parsed(source: Source, text: str) -> ast.Module:
    """The syntax tree of a file; ValueError with the line for what is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ValueError(f"{source.name}{line}: not Python: {getattr(error, 'msg', error)}") from error


def put(
    source: Source, body: Iterable[ast.stmt], functions: dict[str, ast.FunctionDef], within: tuple[str, ...]
) -> None:
    """Put the assignments of some statements; ``config = other()`` puts those of ``other`` first."""
    aliases, known = {"config": ""}, {}
    for target, value, line in assignments(body):
        if isinstance(target, ast.Name):
            known[target.id] = folded(value, known)
            if target.id in ("gpu_number", "n_gpus", "num_gpus") and isinstance(known[target.id], int):
                source.processes = source.processes or int(known[target.id])
            inner = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
            if target.id == "config" and inner in functions and inner not in within:
                put(source, functions[inner].body, functions, (*within, inner))
            continue
        *path, root = reversed(dotted(target))
        if root not in aliases:
            continue
        key = ".".join(filter(None, [aliases[root], *reversed(path)]))
        if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("ConfigDict") and not value.args:
            aliases[path[0]] = key  # config.sample = sample = ConfigDict()
            continue
        result = folded(value, known | {f"config.{one}": found for one, found in source.values.items()})
        if result is None and not (isinstance(value, ast.Constant) and value.value is None):
            source.values.pop(key, None)
            source.unread[key] = f"{ast.unparse(value)[:200]} (line {line})"
        else:
            source.put(key, result)


def folded(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """The value of a literal, of a setting that was assigned before, and of + - * / // and int() of such numbers; None
    for anything else. Numbers are at most ``LARGEST``."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    if isinstance(node, ast.Name | ast.Attribute):
        return known.get(ast.unparse(node))
    if isinstance(node, ast.Tuple):
        items = [folded(item, known) for item in node.elts]
        return None if None in items else tuple(items)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "int" and len(node.args) == 1:
        value = folded(node.args[0], known)
        return int(value) if isinstance(value, int | float) else None
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node).startswith("os.path.join(os.getcwd(), ")
        and len(node.args) == 2
    ):
        return folded(node.args[1], known)
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = folded(node.left, known), folded(node.right, known)
        if all(type(one) in (int, float) and abs(one) <= LARGEST for one in (left, right)):
            with contextlib.suppress(ZeroDivisionError):
                return ARITHMETIC[type(node.op)](left, right)
    return None


def assignments(body: Iterable[ast.stmt]) -> Iterable[tuple[ast.expr, ast.expr, int]]:
    """``target = value`` of some statements, one for each target of ``config.a = a = value``."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in sorted(node.targets, key=lambda one: isinstance(one, ast.Name)):
                if isinstance(target, ast.Name) or dotted(target):
                    yield target, node.value, node.lineno


def dotted(node: ast.expr) -> list[str]:
    """The names of ``a.b.c``; empty for anything else, and for a name alone."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) and names else []
