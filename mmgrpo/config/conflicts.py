"""Settings that do not go together, declared at one of them: ``tree: Annotated[str, ..., excludes("sampling.states",
why="samples of a tree share their beginnings")]``.

A conflict is read in both directions: a run with both values is refused before anything is loaded, whichever was given
first, and by whom (``refuse_conflicts``). A conflict may be of all values that are in use, of some, or of the blocks
that read something, whatever their name. What was made by hand and not from settings, as a policy or a trainer, says
which settings it stands for and is refused by the same declarations (``refuse_values``).

    >>> from mmgrpo.config.conflicts import excludes, where
    >>> excludes("data.offline", where("sampling.search", "beam"), why="its completions have turns").others[1].setting
    'sampling.search'
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache
from typing import Any

from mmgrpo.config.needs import UNSET, values_of
from mmgrpo.config.ranges import short_repr
from mmgrpo.config.registry import parse

DECISIONS = "decisions"
"""What stands in the place of a setting for the kind of a policy's decisions (``Policy.kind``)."""
PROCESS = "process"
"""The same for what a model was trained on: tokens, flow or diffusion."""
WEIGHTS = "scheduled_weights"
"""The same for rewards whose weights follow schedules."""
STREAMS = "streams"
"""The same for what a sample is made of, where that is several streams."""
FACTS = (DECISIONS, PROCESS, WEIGHTS, STREAMS)
NO_FACTS: Mapping[str, Any] = {}
ADVANTAGES = ("transform", "combine", "baseline", "scale", "shape", "credit", "select", "kl_weight")
"""Settings whose blocks read the fields of a rollout."""

OTHERS = "*"
"""A trait of a block that may have any others besides those that are named."""
Traits = Mapping[tuple[str, str], Set[str]]
"""What blocks have, by their setting and their text: names of inputs, and parameters as ``name=value``."""
NO_TRAITS: Traits = {}


@dataclass(frozen=True)
class Where:
    """Values of a setting: those in use (``UNSET``), these, all but these, or blocks that have something."""

    setting: str
    values: tuple[Any, ...] = ()
    """Of blocks their names."""
    but: tuple[Any, ...] = ()
    having: tuple[str, ...] = ()
    """Traits of which a block has one, ``*`` for any letters."""
    lacking: str = ""
    """A trait that it has not."""

    def among(self, value: Any, traits: Traits) -> list[Any]:
        """Which of the values of a setting, one or a list, are such; of None, which stands for no setting, none."""
        several = value if isinstance(value, list | tuple) else [value]
        return [item for item in several if item is not None and self._holds(item, traits)]

    def _holds(self, value: Any, traits: Traits) -> bool:
        at = self.setting, str(value)
        if self.lacking and (at not in traits or traits[at] & {self.lacking, OTHERS}):
            return False
        if self.having:
            has = traits[at] if at in traits else _assignments(value)
            return any(fnmatch(trait, pattern) for trait in has for pattern in self.having)
        if self.lacking:
            return True
        name = value.partition("(")[0].strip() if isinstance(value, str) else value
        return name in self.values if self.values else name not in (self.but or UNSET)

    def __str__(self) -> str:
        if self.lacking:
            return f"{self.setting} that does not read {self.lacking}"
        if self.having:
            what = " or ".join(self.having)
            return f"{self.setting} with {what}" if "=" in what else f"blocks that read {what}"
        if self.values or self.but:
            texts = " or ".join(map(_text, self.values or self.but))
            return f"{self.setting}={texts}" if self.values else f"{self.setting} other than {texts}"
        return self.setting


@dataclass(frozen=True)
class Excludes:
    """What a setting, at such values of its own (``when``; its name is left open), does not go with."""

    others: tuple[Where, ...]
    why: str
    """The reason, as a clause."""
    when: Where
    given: Where | None = None
    """A third setting, at such values, without which it is no conflict."""

    def __str__(self) -> str:
        has = " or ".join(self.when.having)
        condition = (
            f"has {has}" if has else f"is{self.when}".replace("=", " ") if self.when.values or self.when.but else ""
        )
        condition = f"does not read {self.when.lacking}" if self.when.lacking else condition
        others = ", ".join(dict.fromkeys(map(str, self.others)))
        others += f" (where {self.given})" if self.given else ""
        return f"{f'Where it {condition}, not' if condition else 'Not'} with {others}: {self.why}."


@dataclass(frozen=True)
class AtMost:
    """A number that is at most that of another setting, where that is not 0."""

    setting: str
    why: str
    given: Where | None = None
    """A third setting, at such values, without which it has no bound."""

    def __str__(self) -> str:
        return f"At most {self.setting}{f' (where {self.given})' if self.given else ''}: {self.why}."


Declaration = Excludes | AtMost


def at_most(setting: str, *, why: str, given: str | Where = "") -> AtMost:
    """The bound of the number that it annotates by that of another ``setting``; ``given`` as in ``excludes``."""
    return AtMost(setting, why, (where(given) if isinstance(given, str) else given) if given else None)


def where(setting: str, *values: Any, but: Any = (), having: str | Sequence[str] = (), lacking: str = "") -> Where:
    """Values of a ``setting``: the ``values``, others than ``but``, or blocks with a trait or without; else those in
    use."""
    traits = (having,) if isinstance(having, str) else tuple(having)
    return Where(setting, values, but if isinstance(but, tuple) else (but,), traits, lacking)


def excludes(
    *others: str | Where,
    why: str,
    values: Sequence[Any] = (),
    but: Any = (),
    having: str | Sequence[str] = (),
    lacking: str = "",
    given: str | Where = "",
) -> Excludes:
    """The conflict of the setting that it annotates, where that is in use or as ``where`` says, with ``others``;
    ``given``: only beside these values of a third setting."""
    there = tuple(where(other) if isinstance(other, str) else other for other in others)
    third = where(given) if given and isinstance(given, str) else given
    return Excludes(there, why, where("", *values, but=but, having=having, lacking=lacking), third or None)


def reading(*inputs: str) -> tuple[Where, ...]:
    """Blocks of an algorithm whose advantages read one of the ``inputs``."""
    return tuple(where(f"algorithm.{line}", having=inputs) for line in ADVANTAGES)


@dataclass(frozen=True)
class Conflict:
    """Two settings of a run that do not go together."""

    name: str
    value: Any
    other: str
    beside: Any
    why: str
    expected: Any = None
    """A value of the other with which it goes; None: that which is not in use."""

    def __str__(self) -> str:
        unused = self.beside in UNSET
        value = "" if self.expected is None else f"={_text(self.expected)}"
        remedy = f"set {self.other}{value}, or leave {self.name} out" if unused or value else "leave out one of them"
        remedy = f"leave {self.name} out" if self.other in FACTS else remedy
        there = f"{short_repr(self.value)} with {self.other}={_text(self.beside)}"
        return f"{self.name}: got {there}, but {self.why}; {remedy}"


@dataclass(frozen=True)
class Above:
    """A number above its bound."""

    name: str
    value: float
    other: str
    bound: float
    why: str

    def __str__(self) -> str:
        bound = f"expected at most {self.other}={_text(self.bound)}"
        return f"{self.name}: got {self.value}, {bound}, {self.why}; lower it, or raise {self.other}"


@cache
def conflicts_of(kind: type) -> dict[str, tuple[Declaration, ...]]:
    """The conflicts that the fields of a dataclass declare, each those of the nearest class that declares any."""
    declared: dict[str, tuple[Declaration, ...]] = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            for name, hint in typing.get_type_hints(parent, include_extras=True).items():
                if several := tuple(
                    entry for entry in getattr(hint, "__metadata__", ()) if isinstance(entry, Declaration)
                ):
                    declared[name] = several
    names = {f.name for f in dataclasses.fields(kind)}
    return {name: several for name, several in declared.items() if name in names}


def declared_in(kinds: Mapping[str, type]) -> dict[str, tuple[Declaration, ...]]:
    """The conflicts that the dataclasses of sections declare, by setting; the empty name is of settings in no
    section."""
    return {
        f"{section}.{name}" if section else name: declared
        for section, kind in kinds.items()
        for name, declared in conflicts_of(kind).items()
    }


def conflicts(
    values: Mapping[str, Any], declared: Mapping[str, Sequence[Declaration]], traits: Traits = NO_TRAITS
) -> list[Conflict | Above]:
    """The ``declared`` conflicts among the ``values`` of settings. What is not known is in no conflict."""

    def among(place: Where) -> list[Any]:
        return place.among(values.get(place.setting), traits)

    there: list[Conflict | Above] = []
    for name, several in declared.items():
        for declaration in several:
            if declaration.given is not None and not among(declaration.given):
                continue
            if isinstance(declaration, AtMost):
                value, bound = values.get(name), values.get(declaration.setting)
                there += (
                    [Above(name, value, declaration.setting, bound, declaration.why)]
                    if value and bound and value > bound
                    else []
                )
            elif matches := among(replace(declaration.when, setting=name)):
                others = [(other, among(other)) for other in declaration.others]
                there += [
                    Conflict(
                        name, matches[0], other.setting, had[0], declaration.why, other.but[0] if other.but else None
                    )
                    for other, had in others
                    if had
                ]
    return there


def refuse_values(
    values: Mapping[str, Any], declared: Mapping[str, Sequence[Declaration]], traits: Traits = NO_TRAITS
) -> None:
    """ValueError that names the settings that do not go together, all of them."""
    if there := conflicts(values, declared, traits):
        raise ValueError("; ".join(dict.fromkeys(map(str, there))))


def refuse_conflicts(
    sections: Mapping[str, Any], traits: Traits = NO_TRAITS, facts: Mapping[str, Any] = NO_FACTS
) -> None:
    """The same among the fields of the dataclasses ``sections``, by what these declare, and the ``facts``."""
    kinds = {name: type(settings) for name, settings in sections.items()}
    known = {name: value for name, value in facts.items() if value}
    refuse_values(values_of(sections) | known, declared_in(kinds), traits)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def _assignments(value: Any) -> frozenset[str]:
    """The parameters of a block as it is written."""
    with suppress(ValueError):  # it is no block, or one that cannot be read, which is refused where it is bound
        return frozenset(f"{name}={argument}" for name, argument in parse(str(value))[1].items())
    return frozenset()
