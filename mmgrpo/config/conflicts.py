"""Settings that do not go together, declared at one of them: ``tree: Annotated[str, ..., excludes("sampling.states",
why="samples of a tree share their beginnings")]``.

A conflict is read in both directions: a run with both values is refused before anything is loaded, whichever was given
first, and by whom (``refuse_conflicts``). A conflict may be of all values that are in use, of some, or of the blocks
that read something, whatever their name.

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
from mmgrpo.config.ranges import shown
from mmgrpo.config.registry import parse

DECISIONS = "decisions"
"""What stands in the place of a setting for the kind of a policy's decisions (``Policy.kind``)."""
ADVANTAGES = ("transform", "combine", "baseline", "scale", "shape", "credit", "select", "kl_weight")
"""Settings whose blocks read the fields of a rollout."""

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
        return [one for one in several if one is not None and self._holds(one, traits)]

    def _holds(self, value: Any, traits: Traits) -> bool:
        at = self.setting, str(value)
        if self.lacking and (at not in traits or self.lacking in traits[at]):
            return False
        if self.having:
            has = traits[at] if at in traits else _written(value)
            return any(fnmatch(trait, one) for trait in has for one in self.having)
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

    def __str__(self) -> str:
        has = " or ".join(self.when.having)
        own = f"has {has}" if has else f"is{self.when}".replace("=", " ") if self.when.values or self.when.but else ""
        others = ", ".join(dict.fromkeys(map(str, self.others)))
        return f"{f'Where it {own}, not' if own else 'Not'} with {others}: {self.why}."


def where(setting: str, *values: Any, but: Any = (), having: str | Sequence[str] = (), lacking: str = "") -> Where:
    """Values of a ``setting``: the ``values``, others than ``but``, or blocks with a trait or without; else those in
    use."""
    traits = (having,) if isinstance(having, str) else tuple(having)
    return Where(setting, values, but if isinstance(but, tuple) else (but,), traits, lacking)


def excludes(
    *others: str | Where, why: str, values: Sequence[Any] = (), but: Any = (), having: str | Sequence[str] = ()
) -> Excludes:
    """The conflict of the setting that it annotates, where that is in use or as ``where`` says, with ``others``."""
    there = tuple(where(one) if isinstance(one, str) else one for one in others)
    return Excludes(there, why, where("", *values, but=but, having=having))


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

    def __str__(self) -> str:
        unused = self.beside in UNSET
        remedy = f"set {self.other}, or leave {self.name} out" if unused else "leave out one of them"
        remedy = f"leave {self.name} out" if self.other == DECISIONS else remedy
        return f"{self.name}: got {shown(self.value)} with {self.other}={_text(self.beside)}, but {self.why}; {remedy}"


@cache
def conflicts_of(kind: type) -> dict[str, tuple[Excludes, ...]]:
    """The conflicts that the fields of a dataclass declare, each those of the nearest class that declares any."""
    declared: dict[str, tuple[Excludes, ...]] = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            for name, hint in typing.get_type_hints(parent, include_extras=True).items():
                if several := tuple(one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Excludes)):
                    declared[name] = several
    names = {f.name for f in dataclasses.fields(kind)}
    return {name: several for name, several in declared.items() if name in names}


def conflicts(sections: Mapping[str, Any], traits: Traits = NO_TRAITS, decisions: str = "") -> list[Conflict]:
    """The conflicts that the dataclasses ``sections`` declare, the empty name for settings in no section, among the
    values of their fields; ``decisions``: the kind of those of the policy. What is not known is in no conflict."""
    there, values = [], {**values_of(sections), DECISIONS: decisions or None}
    for section, settings in sections.items():
        for field, declared in conflicts_of(type(settings)).items():
            name = f"{section}.{field}" if section else field
            for one in declared:
                own = replace(one.when, setting=name).among(values.get(name), traits)
                others = [(other.setting, other.among(values.get(other.setting), traits)) for other in one.others]
                there += [Conflict(name, own[0], other, had[0], one.why) for other, had in others if own and had]
    return there


def refuse_conflicts(sections: Mapping[str, Any], traits: Traits = NO_TRAITS, decisions: str = "") -> None:
    """ValueError that names the settings that do not go together, all of them."""
    if there := conflicts(sections, traits, decisions):
        raise ValueError("; ".join(dict.fromkeys(map(str, there))))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"


def _written(value: Any) -> frozenset[str]:
    """The parameters of a block as it is written."""
    with suppress(ValueError):  # it is no block, or one that cannot be read, which is refused where it is bound
        return frozenset(f"{name}={one}" for name, one in parse(str(value))[1].items())
    return frozenset()
