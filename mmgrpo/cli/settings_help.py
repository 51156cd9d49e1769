"""The settings of one section, or one setting, for ``mmgrpo train --help optim`` and ``mmgrpo help optim.lr``."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from mmgrpo.config.conflicts import conflicts_of
from mmgrpo.config.names import nearest
from mmgrpo.config.needs import needs_of
from mmgrpo.config.ranges import ANY_TEXT, declarations
from mmgrpo.terminal import PROSE, definitions, paragraph, style_text

RUN = "run"
"""The settings that belong to no section, as a subject of help."""

SENTENCE = r"(?<!\bet al)(?<!\be\.g)(?<!\bi\.e)\. "
"""Where a sentence ends."""


def sentence(docstring: str) -> str:
    """The first sentence of a docstring, in one line."""
    return re.split(SENTENCE, " ".join(docstring.split()), maxsplit=1)[0].rstrip(".")


@cache
def descriptions(section: type) -> dict[str, str]:
    """The fields of a class of settings to the docstrings below them, those of its bases included."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__[:-1]):
        with contextlib.suppress(OSError, TypeError, KeyError):  # made at run time
            for field, text in pairwise(_classes(inspect.getsourcefile(base) or "")[base.__qualname__]):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                    texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())  # type: ignore[union-attr]
    return texts


@cache
def _classes(file: str) -> dict[str, list[ast.stmt]]:
    """The classes of a module to the lines of their bodies."""
    with open(file, encoding="utf-8") as source:
        return {node.name: node.body for node in ast.parse(source.read()).body if isinstance(node, ast.ClassDef)}


def subject(arguments: Sequence[str]) -> str:
    """What a command line asks help on: the word behind --help; empty where it asks for none."""
    for option, word in pairwise(arguments):
        if option in ("-h", "--help") and not word.startswith("-"):
            return word.removeprefix("--").replace("-", "_")
    return ""


def help_on(config: Any, subject: str) -> str:
    """The help on a section or on a setting of a configuration that has the defaults; ValueError for another word."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    parts: dict[str, Any] = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    if subject in (*parts, RUN):
        section = parts.get(subject, config)
        rows = [*_rows(section, f"{subject}." if subject in parts else "")]
        about = paragraph(" ".join((inspect.getdoc(type(section)) or "").split())) if subject in parts else []
        command = paragraph(f"'mmgrpo help {rows[0][0].removeprefix('--')}' shows all of one setting.")
        return "\n".join([style_text(subject, "bold"), *about, "", *definitions(rows, "  ", PROSE), "", *command])
    name, _, field = subject.rpartition(".")
    section = parts.get(name, config)
    if (name in parts or not name) and field in {f.name for f in dataclasses.fields(section)} - parts.keys():
        option = style_text(f"--{subject}".replace("_", "-"), "bold")
        return "\n".join([option, *definitions([*_facts(section, field)], "  ", PROSE)])
    known = [*parts, RUN, *(f"{part}.{f.name}" for part, value in parts.items() for f in dataclasses.fields(value))]
    raise ValueError(f"--help: no section or setting is called '{subject}'.{nearest(subject, known)}")


def _rows(section: Any, prefix: str) -> Iterator[tuple[str, str]]:
    texts = descriptions(type(section))
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if not dataclasses.is_dataclass(value):
            text = sentence(texts.get(field.name, ""))
            yield f"--{prefix}{field.name}".replace("_", "-"), f"{text} (default: {_text_of_default(value)})"


def _facts(section: Any, name: str) -> Iterator[tuple[str, str]]:
    _, declared = declarations(type(section))[name]
    yield "what", descriptions(type(section)).get(name, "")
    yield "default", _text_of_default(getattr(section, name))
    if declared not in (None, ANY_TEXT):
        yield "values", str(declared)
    for need in needs_of(type(section)).get(name, ()):
        yield "needs", str(need)
    for conflict in conflicts_of(type(section)).get(name, ()):
        yield "excludes", str(conflict)


def _text_of_default(value: Any) -> str:
    """A default as the command line takes it."""
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value == "" else f"{value:g}" if isinstance(value, float) else str(value)
