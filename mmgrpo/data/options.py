"""Options of multiple-choice rows, as ScienceQA (``choices``) and MMMU (``options``) have them, in the prompt."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

KEYS = ("options", "choices")
"""Keys of the options of a row."""


def options_in(row: Mapping[str, Any]) -> tuple[str, list[Any] | dict[str, Any]]:
    """The key and the options of a row, a list or an object by letters; an empty key where it has none.

    A text that is a list, as MMMU has it, is read as one.
    """
    for key in KEYS:
        value = _parse_list(row.get(key))
        texts = list(value.values()) if isinstance(value, Mapping) else value
        if isinstance(texts, list) and 1 < len(texts) <= len(ascii_uppercase):
            if all(isinstance(text, str | int | float) for text in texts):
                return key, dict(value) if isinstance(value, Mapping) else texts
    return "", []


def _parse_list(value: Any) -> Any:
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    for read in (json.loads, literal_eval):
        try:
            return read(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return value


def letter_options(options: list[Any] | dict[str, Any], text: str) -> str:
    """The options as lines "A. cat" behind a prompt; empty where the prompt has the text of every one already."""
    named = options if isinstance(options, dict) else dict(zip(ascii_uppercase, options))
    if all(str(option).casefold() in text.casefold() for option in named.values()):
        return ""
    return "".join(f"\n{letter}. {option}" for letter, option in named.items())
