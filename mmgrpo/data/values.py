"""Rows as plain values: the JSON of a line, and what no later part of a run can take.

Python's parser takes more than JSON (NaN, the last of several equal keys) and fails at some of it with errors of its
own, or makes values at which only a later step fails: a lone surrogate when it is written, a number of 400 digits when
it is compared.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

ROW_FORMAT = 'one JSON object per line, e.g. {"text": "two red circles", "answer": 2}'
MAX_LINE = 1 << 24
"""Bytes of a line. Media are named, not contained, so 16 MiB are a mistake (a file without line breaks)."""

MAX_DEPTH = 32
"""Levels of lists and objects in each other, of which a conversation has six."""

MAX_INTEGER = 10**308
"""Larger integers are no floats, so comparing them with one fails."""


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that end a line, command a terminal, or turn the direction of what follows them."""


def text_of(line: bytes) -> str:
    """The text of a line; ValueError where it is too long or not UTF-8."""
    if len(line) > MAX_LINE:
        raise ValueError(f"got a line of {len(line):,} bytes, expected at most {MAX_LINE:,}; expected {ROW_FORMAT}")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text ({error.reason} at byte {error.start + 1}); save it as UTF-8") from error


def object_of(line: str) -> dict[str, Any]:
    """The object of a line of JSON; ValueError where it is no object, or not as RFC 8259 has it, or has a key twice."""
    return check_object(_parse(line, ROW_FORMAT, "column"))


def array_of(text: str) -> list[Any]:
    """The array of a text of JSON; errors as ``object_of``, but whether its items are objects is not checked."""
    rows = _parse(text, "an array of objects", "line")
    if not isinstance(rows, list):
        raise ValueError(f"got a {type(rows).__name__}, expected an array of objects")
    return rows


def _parse(text: str, expected: str, unit: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        place = error.colno if unit == "column" else error.lineno
        raise ValueError(f"not JSON ({error.msg} at {unit} {place}); expected {expected}") from error
    except RecursionError as error:
        raise ValueError(f"is nested too deeply; expected at most {MAX_DEPTH} levels") from error
    except Refused as error:
        raise ValueError(str(error)) from error
    except ValueError as error:  # of int(), for a number of more than 4,300 digits
        raise ValueError("has a number of too many digits; write it as a string") from error


def check_object(row: Any) -> dict[str, Any]:
    """The same object; ValueError where it is none."""
    if not isinstance(row, dict):
        raise ValueError(f"got a {type(row).__name__}, expected {ROW_FORMAT}")
    return row


class Refused(ValueError):
    """What the parser meets and JSON does not allow."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise Refused(f"has the key {show_value(twice)} twice; keep one of them")
    return content


def _constant(name: str) -> Any:
    raise Refused(f"has {name}, which is not JSON; write null or a string, or leave the key out")


def check_values(value: Any, key: str = "", depth: int = 0) -> None:
    """ValueError for values of a row that cannot be written, compared or sent to a model, each with its key.

    These are lone surrogates in strings, numbers that are infinite, NaN or beyond ``MAX_INTEGER``, keys that are no
    strings, and more than ``MAX_DEPTH`` levels.
    """
    if depth > MAX_DEPTH:
        raise ValueError(f"{quote(key)}: is nested too deeply; expected at most {MAX_DEPTH} levels")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{_key_prefix(key)}has a lone surrogate (U+{ord(value[error.start]):04X} at character {error.start}), "
                "half of a character; remove it"
            ) from error
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"{_key_prefix(key)}got {value}, expected a finite number; write null, or leave the key out"
            )
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError(f"{_key_prefix(key)}got an integer of more than 308 digits; write it as a string")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{_key_prefix(key)}got the key {show_value(name)}, expected a string")
            check_values(name, f"{key}, a key" if key else "a key", depth)
            check_values(item, f"{key}.{name}" if key else name, depth + 1)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_values(item, f"{key}[{number}]", depth + 1)


def _key_prefix(key: str) -> str:
    return f"{quote(key)}: " if key else ""


def show_value(value: Any) -> str:
    """A value as JSON for error messages, truncated to 120 characters."""
    try:
        written = json.dumps(value, ensure_ascii=False, default=lambda item: f"<{type(item).__name__}>", skipkeys=True)
    except (ValueError, RecursionError):  # it contains itself
        written = f"<{type(value).__name__}>"
    written = written.encode(errors="backslashreplace").decode()
    return written if len(written) <= 120 else written[:119] + "…"


def quote(name: str) -> str:
    """A name in quotation marks for error messages, truncated to 60 characters."""
    return f"'{name}'" if len(name) <= 60 else f"'{name[:59]}…'"


def one_line(error: Exception) -> str:
    """The message of an error, in which names and values of a user's row cannot break the line."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", str(error))


def reason_of(error: BaseException) -> str:
    """Kind and message of a library's error, in one line of at most 300 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
