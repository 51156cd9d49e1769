"""Docstrings as Markdown: examples of the interpreter are listings, and what stands in angle brackets is no HTML."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import griffe

sys.path.append(str(Path(__file__).parents[2]))
from docs.site.hooks import outside_code

EXAMPLE = re.compile(r"^ *>>> .*\n?(?:^ *\S.*\n?)*", re.MULTILINE)
"""From a prompt to the next empty line."""


def markdown(docstring: str) -> str:
    """The text of a docstring as Markdown."""
    parts, start = [], 0
    for example in EXAMPLE.finditer(docstring):
        code = textwrap.dedent(example[0]).rstrip()
        parts += [escape_brackets(docstring[start : example.start()]), f"```pycon\n{code}\n```\n"]
        start = example.end()
    return "".join([*parts, escape_brackets(docstring[start:])])


def escape_brackets(text: str) -> str:
    """The text with angle brackets outside of code as they are read."""
    return outside_code(lambda prose: prose.replace("<", "&lt;"), text.replace("``", "`"))


class Docstrings(griffe.Extension):
    """Rewrites the docstring of every object."""

    def on_object(self, *, obj: Any, **rest: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
