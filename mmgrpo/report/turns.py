"""The turns of a completion as blocks of a page: who writes, what a tool is called with, what it returns.

A completion in several turns (``sampling.tools``) is stored as pairs of role and text (``Text.messages``). A call
stands in the policy's text as it wrote it, in the form of Hermes and Qwen: ``<tool_call>{...}</tool_call>``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
MOST = 200
"""Blocks of a completion that are shown."""


@dataclass(frozen=True)
class Block:
    """A part of a turn."""

    kind: Literal["text", "call", "return"]
    role: str
    text: str


def blocks(turns: Sequence[tuple[str, str]]) -> list[Block]:
    """The blocks of a completion in their order: texts, calls and what tools returned."""
    parts = []
    for role, text in turns:
        if role == "tool":
            parts.append(Block("return", role, text.strip()))
            continue
        end = 0
        for call in CALL.finditer(text):
            parts += _text(role, text[end : call.start()])
            parts.append(Block("call", role, call[1].strip()))
            end = call.end()
        parts += _text(role, text[end:])
    return parts[:MOST]


def _text(role: str, text: str) -> list[Block]:
    return [Block("text", role, text.strip())] if text.strip() else []


def read_turns(value: Any) -> list[tuple[str, str]] | None:
    """Turns of a file; None where they are not pairs of texts."""
    if not isinstance(value, list):
        return None
    pairs = [(turn[0], turn[1]) for turn in value if isinstance(turn, list) and len(turn) == 2]
    strings = all(isinstance(part, str) for pair in pairs for part in pair)
    return pairs if strings and len(pairs) == len(value) else None
