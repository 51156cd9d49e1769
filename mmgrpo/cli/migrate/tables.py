"""The settings of other projects against ours, as tables: ``<project>.yaml`` next to this file.

A table has ``settings``, each of which becomes one or several settings of ours, by itself or with others (``rules``),
and ``none``, groups of settings that have no counterpart, with the reason; where a group ``matters``, a recipe with
another value than the default is refused until the user has dealt with it. From these tables both the command and the
pages of docs/migration/ are made.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

PROJECTS = ("trl", "ms_swift", "easyr1", "verl", "flow_grpo", "dance_grpo")
"""The projects, by the names of their tables."""


@dataclass(frozen=True)
class Row:
    """One setting of theirs."""

    key: str
    to: str = ""
    """Our settings, separated by commas; empty where there is none."""
    default: Any = None
    by: str = ""
    """The conversion that reads it with others, in ``rules`` or in code; empty: the value is taken as it is."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Their words, in lower case, to ours, where a setting is one of several words or true or false."""
    note: str = ""
    """What differs in meaning, or why there is no counterpart and what to do instead."""
    matters: bool = False
    """Whether a value other than the default changes what is trained, although there is no counterpart."""
    low: float | None = None
    """The smallest number; None: 0, or 1 of what is counted."""
    high: float = 1e12
    """The largest number."""


@dataclass(frozen=True)
class Table:
    """The settings and data columns of one project."""

    project: str
    """Its name as people write it."""
    source: str
    """The version that was read."""
    forms: str
    """What the command reads."""
    rows: dict[str, Row]
    renamed: Mapping[str, str]
    """Old names of settings to present ones."""
    columns: tuple[Mapping[str, str], ...]
    """Data columns: ``theirs``, ``ours``, ``note``."""
    rules: Mapping[str, Sequence[Mapping[str, Any]]]
    """Conversions by name: what follows from several settings (``mmgrpo.cli.migrate.rules``)."""
    preset: str
    """The preset that the lines of the algorithm are compared with first."""
    rewards: Mapping[str, str]
    """Their rewards that have a counterpart; of DanceGRPO the switch of each."""
    shared: Mapping[str, str]
    """Names of settings that verl and EasyR1 have under different ones."""
    words: Mapping[str, Mapping[str, str]]
    """Further names: parameters of functions and their settings (empty: of no consequence), columns and ours, rewards
    and functions."""
    tools: Mapping[str, Any]
    """Settings ``of`` tools and environments, of ``turns`` and of ``calls`` of a turn, and how many turns ours counts
    ``more``."""

    def find(self, key: str) -> Row | None:
        """The row of a setting; a key of the table may be a pattern (``critic.*``), whose row is then for all that
        match and that have no row of their own."""
        if key in self.rows:
            return self.rows[key]
        return next(
            (row for pattern, row in self.rows.items() if "*" in pattern and fnmatch.fnmatchcase(key, pattern)), None
        )

    @property
    def names(self) -> list[str]:
        """The settings without patterns."""
        return [key for key in self.rows if "*" not in key]


@cache
def table(name: str) -> Table:
    """The table of a project, one of ``PROJECTS``."""
    read = yaml.safe_load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))
    rows = {}
    for key, row in read["settings"].items():
        words = {str(word).lower(): ours for word, ours in row.pop("values", {}).items()}
        rows[key] = Row(key, values=words, **row)
    for group in read["none"]:
        for key, default in group["keys"].items():
            assert key not in rows, key
            rows[key] = Row(key, default=default, note=group["why"], matters=group.get("matters", False))
    optional = {key: read.get(key, {}) for key in ("renamed", "rules", "rewards", "shared", "words", "tools")}
    return Table(
        read["project"], read["source"], read["forms"], rows, columns=tuple(read["columns"]),
        preset=read["preset"], **optional
    )  # fmt: skip
