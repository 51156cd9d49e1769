"""The calls that a policy writes: how they are read, and what arguments a tool is given."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from mmgrpo.config.names import nearest
from mmgrpo.data.values import check_values, object_of, show_value

CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|$)", re.DOTALL)
"""A call as Hermes and Qwen write it: {"name": ..., "arguments": {...}} between tags."""
ARGUMENTS = ("arguments", "parameters")
"""Keys under which a call has its arguments; the second is Llama's."""

KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""What JSON schemas call the kinds of values."""


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
    name = read.pop("name", None)
    named = name if isinstance(name, str) else ""
    if not named:
        return "", f"got a call without a name, {expected}"
    keys = [key for key in ARGUMENTS if key in read]
    if unknown := sorted(read.keys() - set(ARGUMENTS)):
        return named, f"got the key '{unknown[0]}' in a call, {expected}"
    if len(keys) > 1:
        return named, f"got {' and '.join(keys)} in a call, {expected}"
    arguments: Any = read[keys[0]] if keys else {}
    if isinstance(arguments, str):  # as in OpenAI's messages
        try:
            check_values(arguments := object_of(arguments))
        except ValueError:
            return named, f"got {keys[0]} as a text that is no object of JSON, {expected}"
    if not isinstance(arguments, dict):
        return named, f"got {keys[0]} that are no object, {expected}"
    return named, arguments


def arguments_of(schema: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The arguments of a call by the JSON schema of the tool's parameters, or what is wrong with them.

    A value of another kind is converted where it can mean one thing only: "3" or 3.0 for an integer, a number for a
    text, "true" for a boolean, the text of a list or an object for these.
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    for name in given:
        if name not in properties:
            return {}, f"unknown argument '{name}'.{nearest(name, properties) or ' It takes none.'}"
    if missing := [name for name in schema.get("required") or () if name not in given]:
        return {}, f"argument '{missing[0]}' is missing"
    converted = {}
    for name, value in given.items():
        try:
            converted[name] = convert_to(properties[name], value)
        except ValueError as error:
            return {}, f"argument '{name}': {error}"
    return converted, ""


def convert_to(schema: Mapping[str, Any], value: Any) -> Any:
    """A value as a JSON schema describes it; ValueError where it is none and cannot be converted to one."""
    kinds = [{**schema, "type": kind} for kind in schema["type"]] if isinstance(schema.get("type"), list) else [schema]
    kinds = [option for kind in kinds for option in kind.get("anyOf") or [kind]]
    if schema.get("nullable"):
        kinds.append({"type": "null"})
    for convert in (False, True):  # a kind that it has already goes before one to which it could be converted
        for kind in kinds:
            read = _read_as(kind, value, convert)
            if read is not WRONG and ("enum" not in schema or read in schema["enum"] or read is None):
                return read
    expected = schema.get("enum") or [name for kind in kinds if (name := kind.get("type")) != "null"]
    raise ValueError(f"got {show_value(value)}, expected {' or '.join(map(str, expected))}")


WRONG = object()
"""In place of a value of another kind."""


def _read_as(schema: Mapping[str, Any], value: Any, convert: bool) -> Any:
    kind = schema.get("type")
    if kind is None:
        return value
    if convert and isinstance(value, str) and kind not in ("string", "null"):
        value = _from_text(kind, value)
    if convert and kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if convert and kind == "string" and isinstance(value, bool | int | float):
        return json.dumps(value)
    if kind not in KINDS:
        return value
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return WRONG
    try:
        if isinstance(value, list) and "items" in schema:
            return [convert_to(schema["items"], entry) for entry in value]
        if isinstance(value, dict):
            inner, other = schema.get("properties") or {}, schema.get("additionalProperties")
            rest = other if isinstance(other, Mapping) else {}
            return {name: convert_to(inner.get(name, rest), entry) for name, entry in value.items()}
    except ValueError:
        if convert:
            raise
        return WRONG
    return value


def _from_text(kind: str, text: str) -> Any:
    """What a text says in JSON; the text itself where that is nothing of the kind."""
    try:
        read = json.loads(text.strip().lower() if kind == "boolean" else text)
        check_values(read)
    except (ValueError, RecursionError):
        return text
    return read if not isinstance(read, str) else text
