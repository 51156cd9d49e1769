"""Named, parametrized pure functions: how an algorithm is written down.

A table maps names to ``Block`` rows. A user writes ``name`` or ``name(parameter=value, ...)`` in a
recipe or on the command line; ``bind`` turns that text into a function of the table's inputs.

    >>> from mmgrpo.config.registry import Block, bind
    >>> table = {"power": Block(lambda x, exponent=2.0: x**exponent, needs=("x",))}
    >>> bind("power(exponent=3)", table, "demo")({"x": 2.0})
    8.0
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmgrpo.config.ranges import check_parameter


@dataclass(frozen=True)
class Block:
    """One row of a table: a pure function and the names of its inputs, in order.

    ``level`` is what the function must see together: ``decision`` (elementwise), ``row`` (all decisions
    of a sample) or ``group`` (all samples of a group).
    """

    fn: Callable[..., Any]
    needs: tuple[str, ...] = ()
    level: str = "decision"


@dataclass(frozen=True)
class Bound:
    """A block with its parameters, to be called with a mapping that contains at least its inputs."""

    text: str
    block: Block
    parameters: Mapping[str, Any]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of its inputs. ``changed_NAME`` is ``NAME@CHANGE``, NAME under the parameter ``change``."""
        if not any(name.startswith("changed_") for name in self.block.needs):
            return self.block.needs
        change = self.parameters.get("change", inspect.signature(self.block.fn).parameters["change"].default)
        return tuple(f"{n[8:]}@{change}" if n.startswith("changed_") else n for n in self.block.needs)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        missing = [name for name in self.needs if name not in inputs]
        if missing:
            raise KeyError(f"'{self.text}' needs {', '.join(missing)}; got only {', '.join(sorted(inputs))}")
        return self.block.fn(*(inputs[name] for name in self.needs), **self.parameters)


def parse(text: str, what: str = "") -> tuple[str, dict[str, Any]]:
    """Split ``name(parameter=literal, ...)`` into name and parameters. Nothing is evaluated; ``what`` begins errors.

    A name may be dotted and may hold one colon (``package.module:function``).
    """
    message = f"{what}: got {text!r}, expected the form name or name(parameter=value, ...)".removeprefix(": ")
    match = re.fullmatch(r"\s*([\w.\-]+(?::[\w.]+)?)\s*(\(.*\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(message)
    name, arguments = match.groups()
    try:
        call = ast.parse(f"f{arguments or '()'}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError(message)
        names = [k.arg for k in call.keywords]
        if None in names or len({*names}) < len(names):
            raise ValueError(message)
        return name, {str(k.arg): _literal(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{message} with numbers, strings, lists or booleans as values") from error


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id == "inf":
        return float("inf")
    return ast.literal_eval(node)


FEW = 16
"""Longest list of names that a message shows whole."""

SHOWN = 5
"""Names that a message shows of a longer one."""


def nearest(name: str, names: Any, listing: str = "") -> str:
    """A hint for an unknown name: the closest of ``names``, then all of them, or the five closest of more than
    ``FEW`` and the command that lists all (``listing``)."""
    ordered = sorted(names)
    close = difflib.get_close_matches(name, ordered, n=1, cutoff=0.5)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    if len(ordered) <= FEW:
        return f"{hint} Known: {', '.join(ordered)}."
    shown = difflib.get_close_matches(name, ordered, n=SHOWN, cutoff=0.0) if name else ordered[:SHOWN]
    rest = f"'{listing}' lists all {len(ordered)}" if listing else f"and {len(ordered) - len(shown)} others"
    return f"{hint} Known: {', '.join(shown)}{'; ' if listing else ' '}{rest}."


def bind(text: str, table: Mapping[str, Block], what: str) -> Bound:
    """Bind the text to a block of the table; unknown names and parameters are errors that name the nearest, and so are
    values of a wrong type or out of range. A whole number for a parameter that is declared ``float`` is converted."""
    name, parameters = parse(text, what)
    if name not in table:
        raise ValueError(f"{what}: there is no '{name}'.{nearest(name, table)}")
    block = table[name]
    signature = inspect.signature(block.fn).parameters
    accepted = list(signature)[len(block.needs) :]
    for parameter in parameters:
        if parameter not in accepted:
            raise ValueError(f"{what}: '{name}' has no parameter '{parameter}'.{nearest(parameter, accepted)}")
    for parameter in accepted:
        if signature[parameter].default is inspect.Parameter.empty and parameter not in parameters:
            raise ValueError(f"{what}: '{name}' needs the parameter '{parameter}', e.g. {name}({parameter}=...)")
    for parameter, value in parameters.items():
        parameters[parameter] = check_parameter(block.fn, parameter, value, f"{what}: {parameter} of {name}")
    return Bound(text, block, parameters)
