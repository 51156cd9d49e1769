"""A tool for completions: arithmetic.

    sampling:
      tools: [pipelines.text.calculator:calculate]

It is also the example of a tool of one's own: a function whose signature and docstring tell the model what it takes.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
MOST_CHARACTERS, MOST_POWER, MOST = 500, 64, 10**100


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression, for example (17 + 4) * 2 ** 3.

    Args:
        expression: Numbers with + - * / // % ** and parentheses.
    """
    if len(expression) > MOST_CHARACTERS:
        raise ValueError(f"got {len(expression)} characters, expected at most {MOST_CHARACTERS}")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"cannot read '{expression}'") from None
    return f"{_value(tree.body)}"


def _value(node: ast.AST) -> Any:
    """The value of a part of an expression; no name, call or attribute is one."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp | ast.UnaryOp) and type(node.op) in OPERATORS:
        values = [_value(node.operand)] if isinstance(node, ast.UnaryOp) else [_value(node.left), _value(node.right)]
        if isinstance(node.op, ast.Pow) and abs(values[1]) > MOST_POWER:
            raise ValueError(f"got the power {values[1]}, expected at most {MOST_POWER}")
        value = OPERATORS[type(node.op)](*values)
        if isinstance(value, complex) or abs(value) > MOST:
            raise ValueError("the value is too large, or no real number")
        return value
    raise ValueError("expected numbers with + - * / // % ** and parentheses")
