"""Assignments of a Python file of ``ml_collections``, read from its syntax tree: no line of it is run."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable
from typing import Any

from mmgrpo.cli.migrate.expressions import Unread, name_of, value
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.config.names import nearest


def from_python(source: Source, text: str, chosen: str) -> None:
    """Put ``config.a.b = value`` of the function ``chosen`` of a file, after those of functions that it begins with.

    A value that is not in the text is kept as text in ``source.unread``.
    """
    tree = parse(source, text)
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


def parse(source: Source, text: str) -> ast.Module:
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
    aliases, variables = {"config": ""}, {}

    def look_up(node: ast.expr, depth: int) -> Any:
        """A variable, or a setting, that was assigned before."""
        name = name_of(node)
        table, key = (source.values, name.removeprefix("config.")) if "." in name else (variables, name)
        if key not in table:
            raise Unread
        return table[key]

    for target, node, line in assignments(body):
        if isinstance(target, ast.Name):
            variables.pop(target.id, None)
            with contextlib.suppress(Unread):
                variables[target.id] = value(node, look_up)
            if target.id in ("gpu_number", "n_gpus", "num_gpus") and isinstance(variables.get(target.id), int):
                source.processes = source.processes or variables[target.id]
            inner = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if target.id == "config" and inner in functions and inner not in within:
                put(source, functions[inner].body, functions, (*within, inner))
            continue
        root, *path = name_of(target).split(".")
        if root not in aliases:
            continue
        key = ".".join(filter(None, [aliases[root], *path]))
        if isinstance(node, ast.Call) and name_of(node.func).endswith("ConfigDict") and not node.args:
            aliases[path[-1]] = key  # config.sample = sample = ConfigDict()
            continue
        try:
            source.put(key, value(node, look_up))
        except Unread:
            source.values.pop(key, None)
            source.unread[key] = f"{ast.unparse(node)[:200]} (line {line})"


def assignments(body: Iterable[ast.stmt]) -> Iterable[tuple[ast.expr, ast.expr, int]]:
    """``target = value`` of some statements, one for each target of ``config.a = a = value``."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in sorted(node.targets, key=lambda target: isinstance(target, ast.Name)):
                if isinstance(target, ast.Name) or not name_of(target).startswith("."):
                    yield target, node.value, node.lineno
