"""A recipe in the making: settings with where they come from, and what has no counterpart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from mmgrpo.cli.migrate.sources import Source, plain
from mmgrpo.cli.migrate.tables import Row, Table
from mmgrpo.config.presets import CATALOGUE, PRESETS
from mmgrpo.config.registry import parse
from mmgrpo.data.values import CONTROL

LINES = ("transform", "combine", "baseline", "scale", "shape", "credit", "select", "sampler")
LINES += ("objective", "mismatch", "aggregation", "terms")
"""Lines of the algorithm in the order in which they are written."""


@dataclass(frozen=True)
class Setting:
    """One setting of ours."""

    value: Any
    of: tuple[str, ...]
    """Their settings that it was made of."""
    note: str
    given: bool
    """Whether one of these is in their configuration; else the value is their default."""


@dataclass
class Draft:
    """What the conversions of a project read, and what they write."""

    table: Table
    source: Source
    family: str
    rows: int = 0
    """Training prompts; 0: unknown."""
    settings: dict[str, Setting] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """Their setting to the reason why it has no counterpart."""
    warnings: list[str] = field(default_factory=list)
    """What must be decided before the recipe is run."""
    mentioned: set[str] = field(default_factory=set)
    questions: dict[str, list[str]] = field(default_factory=dict)
    """Our settings that ``train`` refuses until they are written, with what each needs."""
    open: dict[str, str] = field(default_factory=dict)
    """Their settings that change a run and that nothing here stands for: ``train`` refuses these too."""

    def __getitem__(self, key: str) -> Any:
        """The value of a setting of theirs, else its default; ValueError where it is of another type than that."""
        row = self.table.rows[key]
        if key not in self.source.values:
            return row.default
        return coerce(self.source.values[key], row, f"{self.source.name}: {key}")

    def is_given(self, *keys: str) -> bool:
        """Whether one of the settings is in their configuration."""
        return any(key in self.source.values for key in keys)

    def number(self, key: str, low: float | None = None) -> Any:
        """A number from ``low``, else the table's or 0, to the table's largest; ValueError for any other."""
        value, row = self[key], self.table.rows[key]
        low, high = low if low is not None else row.low or 0, row.high
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError(
                f"{self.source.name}: {key}: got {text_of(value)}, expected a number from {low:g} to {high:g}"
            )
        return value

    def count(self, key: str, low: float | None = None) -> int:
        """A whole number of at least ``low``, else the table's or 1; ValueError for anything else."""
        row = self.table.rows[key]
        value = self.number(key, low if low is not None else row.low if row.low is not None else 1)
        if value != int(value):
            raise ValueError(f"{self.source.name}: {key}: got {text_of(value)}, expected a whole number")
        return int(value)

    def word(self, key: str, words: Iterable[str]) -> str:
        """One of some words; ValueError for any other."""
        value = self[key]
        if value not in (known := list(words)):
            names = ", ".join(word for word in known if isinstance(word, str))
            raise ValueError(f"{self.source.name}: {key}: got {text_of(value)}, expected one of {names}")
        return value

    def processes(self) -> int:
        """Processes that theirs runs on; 1, with a warning, where that is not known."""
        if not self.source.processes:
            self.warn("the number of processes is not known, and 1 is assumed: give it with --processes")
        return self.source.processes or 1

    def set(self, key: str, value: Any, *of: str, note: str = "") -> None:
        """Write a setting of ours, made of settings of theirs."""
        self.mentioned |= {*of}
        self.settings[key] = Setting(value, of, note, self.is_given(*of))

    def leave(self, key: str, why: str) -> None:
        """A setting of theirs that has no counterpart."""
        self.mentioned.add(key)
        self.left[key] = why

    def warn(self, text: str, *of: str) -> None:
        """Something that the user must decide."""
        self.mentioned |= {*of}
        if (text := CONTROL.sub(" ", text)) not in self.warnings:
            self.warnings.append(text)

    def ask(self, key: str, text: str, *of: str) -> None:
        """A setting of ours that must be written before the recipe can be run, and why it is not known."""
        self.warn(f"{key}: {text}", *of)
        self.questions.setdefault(key, []).append(CONTROL.sub(" ", text))

    def leave_open(self, key: str, why: str) -> None:
        """A setting of theirs that changes the run and that has no counterpart: the user must deal with it."""
        self.leave(key, why)
        self.open[key] = CONTROL.sub(" ", why)

    def rewards(self, texts: Sequence[str], *of: str, left: str = "") -> None:
        """Write the rewards that have a counterpart; without one ask for them, and leave those of theirs with the
        reason ``left``."""
        if texts:
            self.set("rewards", list(texts), *of)
            return
        if "rewards" not in self.questions:
            self.ask("rewards", "no reward is named; 'mmgrpo rewards' lists ours", *(of if left else ()))
        if left:
            self.left.update({key: left for key in of if self.is_given(key)})

    def algorithm(self, base: str, blocks: dict[str, tuple[Any, tuple[str, ...]]]) -> None:
        """Write the lines of the algorithm, each with the settings that it was made of: as the name of the preset that
        has exactly these lines, else as the preset ``base`` and what differs from it."""
        meant = PRESETS[base] | {line: value for line, (value, _) in blocks.items()}
        lines = {line: meant[line] for line in blocks}
        same = [base, *(name for name in PRESETS if CATALOGUE[name].policies in ("any", CATALOGUE[base].policies))]
        # Every field, also those that no conversion writes: a preset that adds a key or a weighting is another method.
        exact = next((name for name in same if all(equal(PRESETS[name][key], meant[key]) for key in meant)), "")
        everything = tuple(dict.fromkeys(key for _, of in blocks.values() for key in of))
        self.set("algorithm.preset", exact or base, *(everything if exact else ()))
        for line in LINES:
            if (
                line in lines
                and not exact
                and (self.is_given(*blocks[line][1]) or not equal(lines[line], PRESETS[base][line]))
            ):
                self.set(f"algorithm.{line}", *(lines[line], *blocks[line][1]))
        self.mentioned |= {*everything}


def coerce(value: Any, row: Row, where: str) -> Any:
    """A value of the type of the row's default: text that is a number as one; ValueError where it is another."""
    if isinstance(value, str) and isinstance(row.default, bool | int | float):
        value = plain(value)
    if isinstance(row.default, float) and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if isinstance(row.default, str) and isinstance(value, bool) and row.default in ("no", "none", "steps"):
        value = "no" if value is False else value  # YAML 1.1 reads the word no as false
    if isinstance(row.default, bool) and value in (0, 1):
        value = bool(value)
    if isinstance(row.default, list) and isinstance(value, str):
        value = [value]
    kinds: Any = {bool: bool, int: (int, float), float: (int, float), str: str, list: (list, tuple)}.get(
        type(row.default)
    )
    if value is None or kinds is None or row.values:
        return value
    wrong = not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool)
    if wrong and not (isinstance(row.default, str) and not isinstance(value, dict)):
        words = {bool: "true or false", str: "text", list: "a list"}.get(type(row.default), "a number")
        raise ValueError(f"{where}: got {text_of(value)}, expected {words}")
    return value


def equal(one: Any, other: Any) -> bool:
    """Whether two lines name the same blocks with the same parameters, in whatever spelling."""
    listed = [value if isinstance(value, list) else [value] for value in (one, other)]
    return [parse(text) for text in listed[0]] == [parse(text) for text in listed[1]]


def text_of(value: Any, most: int = 100) -> str:
    """A value of theirs in a comment: one line of at most ``most`` characters, without control characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    text = CONTROL.sub(" ", text)
    return (text if len(text) <= most else text[: most - 3] + "...") or "''"


def yaml_of(value: Any) -> str:
    """A value of ours as one line of YAML."""
    breaks = CONTROL.search(json.dumps(value, ensure_ascii=False, default=str)) is not None
    return yaml.safe_dump([value], default_flow_style=True, width=1_000_000, allow_unicode=not breaks).strip()[1:-1]


def say(keys: Sequence[str], draft: Draft) -> str:
    """``key value, ...`` of settings that are in their configuration, then defaults in parentheses."""
    given = [f"{key} {text_of(draft.source.values[key], 40)}" for key in keys if key in draft.source.values]
    others = [f"{key} {text_of(draft.table.rows[key].default, 40)}" for key in keys if key not in draft.source.values]
    rest = f"(default: {', '.join(others[:3])})" if others and not given else ""
    return ", ".join(given) + rest
