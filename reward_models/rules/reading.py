"""Reading numbers, literals and gold answers: bounded, never evaluated, never guessed.

What a model wrote and cannot be read is None, and its verdict is 0. What a data set says and cannot be
read is an error that names the prompt.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from mmgrpo.types import Prompt

LONGEST = 20_000
"""Characters of an answer that are read as a literal; longer ones are unreadable."""

NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?"
"""A decimal number, as a regular expression without groups."""

_FENCED = re.compile(r"```(?:json)?\s*\n?(.*?)```", re.DOTALL)
_ALONE = re.compile(rf"(?<![\w.])(?:[-+]?\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?|{NUMBER})(?![\w.]*\d)")


def literal(text: str) -> Any:
    """The JSON or Python literal that a text is, without what a ```` ```json ```` fence wraps around it; or None.

    A text of several fenced blocks is its last one. None also for the literals ``null`` and ``None``.
    """
    if len(text) > LONGEST:
        return None
    blocks = _FENCED.findall(text)
    body = (blocks[-1] if blocks else text).strip()
    for read in (json.loads, ast.literal_eval):
        try:
            return read(body)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return None


def number(text: str) -> float | None:
    """The one number that stands in a text ("1,234.5 km" is 1234.5, "3x5" none); None unless there is exactly one."""
    found = _ALONE.findall(text) if len(text) <= 1000 else []
    return _finite(found[0].replace(",", "")) if len(found) == 1 else None


def numbers(value: Any, count: int) -> tuple[float, ...] | None:
    """A sequence of exactly ``count`` finite numbers; None for everything else."""
    if not isinstance(value, list | tuple) or len(value) != count:
        return None
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in value):
        return None
    read = tuple(_finite(one) for one in value)
    return None if None in read else tuple(one for one in read if one is not None)


def words(text: str) -> str:
    """Lower case, single spaces, without spaces and a full stop at the end: how texts are compared."""
    return " ".join(text.casefold().split()).removesuffix(".").rstrip()


def malformed(prompt: Prompt, wanted: str, what: str = "answer") -> NoReturn:
    """Raise the error that a prompt whose gold answer (or ``meta`` entry) cannot be used deserves."""
    value = prompt.answer if what == "answer" else prompt.meta.get(what.removeprefix("meta."))
    raise ValueError(f"prompt '{prompt.id}' ({prompt.text[:80]!r}): {what} is {value!r:.200}; wanted {wanted}")


def gold_text(prompt: Prompt) -> str:
    """The gold answer as a text: a string that is not blank, or a number."""
    answer = prompt.answer
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        malformed(prompt, "a text that is not empty, or a number")
    return str(answer).strip()


def gold_texts(prompt: Prompt) -> list[str]:
    """All gold answers that are accepted: a text or number, or a list of them that is not empty."""
    answers = prompt.answer if isinstance(prompt.answer, list | tuple) else [prompt.answer]
    if not answers or any(isinstance(a, bool) or not isinstance(a, str | int | float) for a in answers):
        malformed(prompt, "a text or number, or a list of those that are right")
    texts = [str(answer).strip() for answer in answers]
    if not all(texts):
        malformed(prompt, "texts that are not empty")
    return texts


def gold_number(prompt: Prompt) -> float:
    """The gold answer as a number."""
    return _gold(prompt, prompt.answer, "answer")


def meta_number(prompt: Prompt, key: str, default: float = math.nan) -> float:
    """A number from ``prompt.meta``; without a default it must be there."""
    if key not in prompt.meta and not math.isnan(default):
        return default
    return _gold(prompt, prompt.meta.get(key), f"meta.{key}")


def meta_choice(prompt: Prompt, key: str, known: Sequence[str]) -> str:
    """One of some words from ``prompt.meta``; the first of them where the row says nothing."""
    word = prompt.meta.get(key, known[0])
    if word not in known:
        close = difflib.get_close_matches(str(word), known, n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        malformed(prompt, f"one of {', '.join(known)}{hint}", f"meta.{key}")
    return word


def meta_size(prompt: Prompt) -> tuple[float, float]:
    """``meta.size``: (height, width) of the original picture in pixels."""
    size = numbers(prompt.meta.get("size"), 2)
    if size is None or min(size) <= 0:
        malformed(prompt, "[height, width] of the original picture in pixels", "meta.size")
    return size[0], size[1]


def _gold(prompt: Prompt, value: Any, what: str) -> float:
    read = number(value) if isinstance(value, str) else numbers([value], 1)
    single = read[0] if isinstance(read, tuple) else read
    if single is None:
        malformed(prompt, "one finite number", what)
    return single


def _finite(value: str | int | float) -> float | None:
    try:
        read = float(value)
    except OverflowError:
        return None
    return read if math.isfinite(read) else None
