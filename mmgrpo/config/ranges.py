"""The ranges of settings, declared with them: ``steps: Annotated[int, within("[1, 1e9]")] = 100``.

A range is checked wherever a value can come from: in files, on the command line and in Python (``check_ranges``), and
in the parameters of blocks (``check_parameter``). A field that a subclass repeats with another default keeps its range.

    >>> from mmgrpo.config.ranges import within
    >>> 1.0 in within("(0, 1]"), float("nan") in within("(0, 1]"), 0 in within("0", "[0.01, 100]")
    (True, False, True)
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Interval:
    """The numbers of an interval in mathematical notation; NaN lies in none, and infinity only within a bracket."""

    text: str
    """``[0, 1)``, ``(0, inf]``, ``[0, 2^63)``; or one number."""

    def __contains__(self, value: int | float) -> bool:
        ends = re.fullmatch(r"([\[(])(.+), (.+)([\])])", self.text)
        if ends is None:
            return value == _parse_bound(self.text)
        left, low, high, right = ends.groups()
        above = value >= _parse_bound(low) if left == "[" else value > _parse_bound(low)
        return above and (value <= _parse_bound(high) if right == "]" else value < _parse_bound(high))


@dataclass(frozen=True)
class Numbers:
    """The numbers of any of several intervals."""

    intervals: tuple[Interval, ...]
    note: str = ""
    """What a reader of the error does not know."""

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, int | float) and any(value in interval for interval in self.intervals)

    def __str__(self) -> str:
        words = " or ".join(
            f"a number in {interval.text}" if ", " in interval.text else interval.text for interval in self.intervals
        )
        return f"{words} ({self.note})" if self.note else words


@dataclass(frozen=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    def __contains__(self, value: Any) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(word or "'' (empty)" for word in self.words)


@dataclass(frozen=True)
class Text:
    """Text that matches a pattern as a whole and can be written to a file."""

    pattern: str
    expected: str
    longest: int = 4096
    """The largest number of bytes in UTF-8."""

    def __contains__(self, value: Any) -> bool:
        try:  # a lone surrogate, as of a command line in another encoding, has no form in UTF-8
            short = isinstance(value, str) and len(value.encode()) <= self.longest
        except UnicodeEncodeError:
            return False
        return short and re.fullmatch(self.pattern, value, re.DOTALL) is not None

    def __str__(self) -> str:
        return self.expected


Range: TypeAlias = Numbers | Choice | Text


def within(*intervals: str, note: str = "") -> Numbers:
    """The numbers of any of the intervals; errors add the ``note``."""
    return Numbers(tuple(map(Interval, intervals)), note)


def one_of(*words: str) -> Choice:
    """One of the words."""
    return Choice(words)


ANY_TEXT = Text(r"[^\0]*", "text without NUL, at most 4096 bytes of UTF-8")
"""Text that something else interprets: a block, a path, a name of a module."""
LONG_TEXT = Text(r"[^\0]*", "text without NUL, at most 1 MiB of UTF-8", longest=1 << 20)
_COMPONENT = r"(?!-)(?!\.{1,2}$)[^/\\\x00-\x1f\x7f]+"
PATH_COMPONENT = Text(
    _COMPONENT,
    "one plain component of a path (not empty, no slash, backslash or control character, not '.' or '..', "
    "no dash at its start, at most 200 bytes of UTF-8)",
    longest=200,
)
RUN_NAME = Text(
    rf"(?:{_COMPONENT})?",
    "one plain component of a path (no slash, backslash or control character, not '.' or '..', no dash at its start, "
    "at most 200 bytes of UTF-8), or empty for preset and time",
    longest=200,
)
CHECKPOINT = Text(r"(step-)?\d+|", "a checkpoint, e.g. step-000040", longest=20)
DEVICE = Text(r"auto|cpu|mps|(cuda|xpu|npu)(:\d{1,3})?", "auto, cpu, cuda, cuda:N, mps, xpu or npu", longest=8)
COUNT = within("[1, 1e9]")
COUNT_OR_ZERO = within("[0, 1e9]")
SEED = within("[0, 2^63)")
THREADS = within("[0, 1024]")
FRACTION = within("[0, 1]")
POSITIVE_FRACTION = within("(0, 1]")
POSITIVE = within("(0, inf)")
UPPER_BOUND = within("[0, inf]")
ANY_NUMBER = within("(-inf, inf)")
WHOLE = within("[-2^63, 2^63)")
DDOF = within("[0, 1]")
"""What is subtracted from the number of samples in a variance; with more, that of two samples would be negative."""

UNDECLARED: dict[Any, Range] = {int: COUNT_OR_ZERO, float: within("[0, inf)"), str: ANY_TEXT}
"""Ranges of the parameters of blocks whose annotations state none: most are counts, clip ranges, coefficients."""


WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
"""Types in errors."""


def check_ranges(settings: Any, where: str = "", prefix: str = "", option: bool = False) -> None:
    """Raise ValueError for the first field of a dataclass, sections included, that has a wrong type or is outside of
    its range. ``where`` names the source of the values; with ``option`` fields are called as on the command line."""
    for name, (kind, declared) in declarations(type(settings)).items():
        value = getattr(settings, name)
        key = prefix + (name.replace("_", "-") if option else name)
        if dataclasses.is_dataclass(value):
            check_ranges(value, where, f"{key}.", option)
        else:
            check_value(value, kind, declared, f"{where}: {key}" if where else key)


@cache
def declarations(kind: type) -> dict[str, tuple[Any, Range | None]]:
    """For each field of a dataclass its type and its range, which is that of the nearest class that declares one."""
    ranges: dict[str, Range | None] = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            hints = typing.get_type_hints(parent, include_extras=True)
            ranges |= {name: limits for name, hint in hints.items() if (limits := _range_of(hint)) is not None}
    types = typing.get_type_hints(kind)
    return {f.name: (types[f.name], ranges.get(f.name)) for f in dataclasses.fields(kind)}


def check_parameter(function: Callable[..., Any], name: str, value: Any, what: str) -> Any:
    """The value of a block's parameter, a whole number for a float converted; ValueError if it has the wrong type or
    is outside of the range that the annotation states (``UNDECLARED`` where it states none)."""
    hint = _hints(function).get(name)
    kind = _plain(hint)
    if kind is float and type(value) is int and abs(value) < 2**63:
        value = float(value)
    item = typing.get_args(kind)[0] if typing.get_origin(kind) is Sequence else kind
    check_value(value, kind, _range_of(hint) or UNDECLARED.get(item), what)
    return value


def metadata_of(function: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """What the annotation of a block's parameter says besides its type."""
    hint = _hints(function).get(name)
    return typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()


def is_whole(function: Callable[..., Any], name: str) -> bool:
    """Whether a block's parameter is a whole number."""
    return _plain(_hints(function).get(name)) is int


def check_type(function: Callable[..., Any], name: str, value: Any, what: str) -> None:
    """ValueError for a value that is not of the type that a function's parameter is annotated with, by ``fits``; its
    default is always taken."""
    source = function if inspect.isroutine(function) else getattr(type(function), "__call__", function)  # noqa: B004
    default, kind = inspect.signature(function).parameters[name].default, _hints(source).get(name, Any)
    if not fits(value, kind) and not (type(value) is type(default) and value == default):
        raise ValueError(f"{what}: got {short_repr(value)}, expected {type_in_words(kind)}")


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type: texts, numbers (a whole number is a float; true and false are none), lists,
    mappings, and unions of them. A text is no list of texts, which it would be to a loop over its characters. True
    for types of any other kind.

    >>> from collections.abc import Mapping, Sequence
    >>> fits("hands", Sequence[str]), fits(["hands"], Sequence[str]), fits({"hands": 2}, Mapping[str, float])
    (False, True, True)
    """
    kind = _plain(kind)
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, member) for member in inner)
    if origin is typing.Literal:
        return value in inner
    if origin in _LISTS:
        fixed = origin is tuple and Ellipsis not in inner
        if not isinstance(value, list | tuple | set | frozenset) or (fixed and inner and len(inner) != len(value)):
            return False
        return all(map(fits, value, inner if fixed and inner else itertools.repeat(inner[0] if inner else Any)))
    if origin in (dict, Mapping):
        key, item = inner or (Any, Any)
        return isinstance(value, Mapping) and all(fits(k, key) and fits(v, item) for k, v in value.items())
    if origin in WORDS:
        return isinstance(value, (int, float) if origin is float else origin) and isinstance(value, bool) == (
            origin is bool
        )
    return value is None if origin is types.NoneType else True


def type_in_words(kind: Any) -> str:
    """A type in an error: "a list (each text) or keys with values (each a number)"."""
    kind = _plain(kind)
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(type_in_words, inner))
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in _LISTS:
        fixed = origin is tuple and Ellipsis not in inner
        each = ", ".join(map(type_in_words, inner)) if fixed else f"each {type_in_words(inner[0])}" if inner else ""
        return f"a list ({each})" if each else "a list"
    if origin in (dict, Mapping):
        return f"keys with values (each {type_in_words(inner[1])})" if inner else "keys with values"
    return "None" if origin is types.NoneType else WORDS.get(origin, getattr(origin, "__name__", str(origin)))


_LISTS = (list, tuple, set, frozenset, Sequence, Collection, Iterable)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or class, without those that cannot be resolved as they are imported for type
    checkers only."""
    with suppress(NameError, TypeError):
        return typing.get_type_hints(function, include_extras=True)
    names, hints = getattr(function, "__globals__", {}), dict[str, Any]()
    for name, hint in (getattr(function, "__annotations__", None) or {}).items():
        with suppress(NameError, TypeError):
            alone = types.SimpleNamespace(__annotations__={name: hint})
            hints |= typing.get_type_hints(alone, names, include_extras=True)
    return hints


def short_repr(value: Any) -> str:
    """A value in an error: in one line, and short however large it is."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"a number of about {int(math.log10(2) * value.bit_length())} digits"
    short = reprlib.Repr()
    short.maxstring = short.maxother = 100
    return short.repr(value)


def check_value(value: Any, kind: Any, declared: Range | None, what: str) -> None:
    """Raise ValueError for a value that is not of the type ``kind`` or not in the range; a list's range is that of its
    items, a mapping's that of its keys and texts, and its numbers are finite, integers of 64 bits. ``what`` names the
    value."""
    if typing.get_origin(kind) in (list, Sequence):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{what}: got {short_repr(value)}, expected a list")
        for item in value:
            check_value(item, typing.get_args(kind)[0], declared, what)
        return
    if typing.get_origin(kind) is dict:
        simple = str | int | float  # bool is an int
        if not isinstance(value, Mapping) or not all(
            isinstance(key, str) and isinstance(item, simple) for key, item in value.items()
        ):
            raise ValueError(f"{what}: got {short_repr(value)}, expected keys with texts, numbers, true or false")
        for key, item in value.items():
            check_value(key, str, declared, what)
            numbers = ANY_NUMBER if isinstance(item, float) else WHOLE
            check_value(
                item, type(item), declared if isinstance(item, str) else numbers, f"{what}.{short_repr(key)[1:-1]}"
            )
        return
    accepted = (int, float) if kind is float else kind
    if kind in WORDS and (not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool)):
        raise ValueError(f"{what}: got {short_repr(value)}, expected {WORDS[kind]}")
    if declared is not None and value not in declared:
        raise ValueError(f"{what}: got {short_repr(value)}, expected {declared}")


def _plain(hint: Any) -> Any:
    """A type without its metadata."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint


def _range_of(hint: Any) -> Range | None:
    """The range in the metadata of a type."""
    metadata = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    return next((entry for entry in metadata if isinstance(entry, Range)), None)


@cache
def _parse_bound(text: str) -> int | float:
    """``3``, ``1e9``, ``inf``, or a power of two, ``2^63``, exactly."""
    base, _, exponent = text.partition("^")
    if exponent:
        return int(base) ** int(exponent)
    return float(text)
