"""The calls that a policy writes: how they are read, and what arguments a tool is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mmgrpo.data.values import check_values, object_of

CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
"""A call as Hermes and Qwen write it: {"name": ..., "arguments": {...}} between tags."""


def calls_of(text: str) -> list[tuple[str, Mapping[str, Any] | str]]:
    """The calls of a turn, outside of its thought: name and arguments, or in place of these why they cannot be read."""
    _, closed, said = text.rpartition("</think>")
    said = said if closed else said.partition("<think>")[0]
    return [_read(content, closing) for content, closing in CALL.findall(said)]


def _read(content: str, closing: str) -> tuple[str, Mapping[str, Any] | str]:
    expected = 'expected {"name": ..., "arguments": {...}} in <tool_call></tool_call>'
    if not closing:
        return "", f"got a call without </tool_call>, {expected}"
    try:
        check_values(read := object_of(content.strip()))
    except ValueError:
        return "", f"got a call that cannot be read, {expected}"
    name, given = read.get("name"), read.get("arguments", {})
    if not isinstance(name, str) or not isinstance(given, dict):
        return name if isinstance(name, str) else "", f"got another object, {expected}"
    return name, given
