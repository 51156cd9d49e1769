"""What settings depend on, declared with them: ``lora_alpha: Annotated[float, ..., needs("model.lora_rank")] = 64.0``.

A setting whose need is not met changes nothing in a run, so a value that the user gave is refused by name before
anything is loaded (``refuse_moot``). A value that a recipe, a file or a preset gave, and that the user's own settings
made moot, is named in a warning. A need is of other settings, or of a fact that settings alone do not show (``FACTS``).

    >>> from mmgrpo.config.needs import needs
    >>> str(needs("sampling.policy", "matching", "neighbors"))
    'sampling.policy=matching or neighbors'
    >>> str(needs("rollout.engine", but="policy") | needs("sampling.dtype"))
    'rollout.engine other than policy, or sampling.dtype'
"""

from __future__ import annotations

import dataclasses
import typing
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from typing import Any

from mmgrpo.config.ranges import short_repr

HELDOUT = "held-out prompts (data.heldout)"
IMAGES = "images in prompts"
VIDEOS = "videos in prompts"
MEDIA = "media in prompts"
REFERENCE = "a loss that compares with the reference"
_DATA = ("data.train", "data.extra_train", "data.supervised", "data.heldout", "eval.extra", "eval.skip")
_LOSS = ("preset", "objective", "terms", "networks", "added", "judging", "parts")
FACTS: Mapping[str, Sequence[str]] = {
    HELDOUT: ("data.heldout", "data.train", "eval.extra", "eval.skip"),
    **dict.fromkeys((IMAGES, VIDEOS, MEDIA), _DATA),
    REFERENCE: [f"algorithm.{name}" for name in _LOSS],
}
"""What a setting may need besides other settings, to the settings that decide on it."""

NO_FACTS: Mapping[str, bool] = {}

UNSET = (None, False, 0, "", "none")
"""Values by which a setting is not in use; so is an empty list."""


@dataclass(frozen=True)
class Condition:
    """A value of one setting, or a fact."""

    setting: str
    values: tuple[Any, ...] = ()
    """Values of which it has one, of blocks their names, ``*`` for any letters; empty: any in use (``UNSET``)."""
    but: tuple[Any, ...] = ()
    """Values of which it has none."""

    def is_met(self, value: Any) -> bool:
        """Whether the setting has such a value; None: the family has no such setting. Of a list, whether an entry is
        one. A block of the user's own (``module:name``) may be any."""
        if value is None:
            return False
        if isinstance(value, list | tuple):
            return any(map(self.is_met, value))
        name = value.partition("(")[0].strip() if isinstance(value, str) else value
        if isinstance(name, str) and ":" in name and (self.values or self.but):
            return True
        if self.values:
            return any(fnmatch(name, pattern) if isinstance(name, str) else name == pattern for pattern in self.values)
        return name not in (self.but or UNSET)

    def __str__(self) -> str:
        if self.values:
            return f"{self.setting}={' or '.join(map(_text, self.values))}"
        return f"{self.setting} other than {' or '.join(map(_text, self.but))}" if self.but else self.setting

    def remedy(self) -> str:
        """How the condition is met."""
        if self.setting in FACTS:
            return f"have {self.setting}"
        if self.values:
            return f"set {self.setting}={_text(self.values[0])}"
        return f"set another value of {self.setting}" if self.but else f"set {self.setting}"


@dataclass(frozen=True)
class Needs:
    """What a setting depends on: any of these conditions. Of several needs of a setting, all must be met."""

    conditions: tuple[Condition, ...]

    def __or__(self, other: Needs) -> Needs:
        return Needs(self.conditions + other.conditions)

    def __str__(self) -> str:
        return ", or ".join(map(str, self.conditions))

    def is_met(self, values: Mapping[str, Any], sections: Collection[str]) -> bool | None:
        """Whether the settings and facts ``values`` meet the need; None where it depends on what is in none of the
        ``sections`` and no known fact."""
        if any(condition.is_met(values.get(condition.setting)) for condition in self.conditions):
            return True
        known = [
            condition.setting in values or _section(condition.setting) in sections for condition in self.conditions
        ]
        return False if all(known) else None


def needs(setting: str, *values: Any, but: Any = ()) -> Needs:
    """The need of a ``setting`` with one of the ``values``, of one without the value ``but``, or, with neither, of one
    that is in use; or of a fact."""
    return Needs((Condition(setting, values, but if isinstance(but, tuple) else (but,)),))


@cache
def needs_of(kind: type) -> dict[str, tuple[Needs, ...]]:
    """The needs of the fields of a dataclass, each those that the nearest class declares that annotates it so."""
    declared: dict[str, tuple[Needs, ...]] = {}
    for parent in reversed(kind.__mro__):
        if dataclasses.is_dataclass(parent):
            for name, hint in typing.get_type_hints(parent, include_extras=True).items():
                if several := tuple(entry for entry in getattr(hint, "__metadata__", ()) if isinstance(entry, Needs)):
                    declared[name] = several
    names = {f.name for f in dataclasses.fields(kind)}
    return {name: several for name, several in declared.items() if name in names}


@dataclass(frozen=True)
class Moot:
    """A setting without effect in a run."""

    name: str
    value: Any
    need: Needs
    """The one that is not met."""
    values: Mapping[str, Any]
    """All settings and facts."""

    def __str__(self) -> str:
        there = [
            condition
            for condition in self.need.conditions
            if condition.setting in self.values and condition.setting != self.name
        ]
        used = [
            f"{condition.setting}={_text(self.values[condition.setting])}"
            for condition in there
            if not self._is_unset(condition)
        ]
        unused = [condition.setting for condition in there if self._is_unset(condition)]
        states = [f"with {' and '.join(used)}"] * bool(used) + [f"without {' or '.join(unused)}"] * bool(unused)
        return f"has no effect {' and '.join(states) or 'in this family'}"

    @property
    def remedy(self) -> str:
        """What to do."""
        there = [
            condition
            for condition in self.need.conditions
            if condition.setting in self.values and condition.setting != self.name
        ]
        return f"leave it out, or {there[0].remedy()}" if there else "leave it out"

    def _is_unset(self, condition: Condition) -> bool:
        value = self.values[condition.setting]
        return value == [] or (value in UNSET and value != "none")


def moot(sections: Mapping[str, Any], facts: Mapping[str, bool] = NO_FACTS) -> list[Moot]:
    """The settings of the dataclasses ``sections`` that differ from their defaults, are in use (``UNSET``) and have no
    effect. The empty name stands for settings in no section; a need of a section or fact that is not given is left
    open."""
    values = {**values_of(sections), **facts}
    complete = sections if values.get("model.family") else ()  # without a family a policy has settings unknown here
    without_effect = []
    for section, settings in sections.items():
        plain = type(settings)()
        for field, declared in needs_of(type(settings)).items():
            name = f"{section}.{field}" if section else field
            if values[name] != getattr(plain, field) and values[name] not in UNSET:
                unmet = [need for need in declared if need.is_met(values, complete) is False]
                without_effect += [Moot(name, values[name], need, values) for need in unmet[:1]]
    return without_effect


def refuse_moot(config: Any, usual: Any, inherited: Collection[str] = (), facts: Mapping[str, bool] = NO_FACTS) -> None:
    """ValueError for a setting of a configuration that has no effect and that its user gave.

    Named in a warning are those of its preset (``usual``: the configuration of a user who gave nothing else), those
    that are ``inherited`` (``overridden``), and all of a run that is resumed, whose settings are those of its start.
    """
    before = values_of(sections_of(usual))
    left = moot(sections_of(config), facts)
    kept = [setting for setting in left if config.resume or config.resume_from or setting.name in inherited]
    kept += [setting for setting in left if setting not in kept and setting.value == before[setting.name]]
    refuse([setting for setting in left if setting not in kept])
    for setting in kept:
        warnings.warn(f"{setting.name}: {short_repr(setting.value)} {setting}", stacklevel=2)


def refuse(settings: Sequence[Moot]) -> None:
    """ValueError for settings without effect."""
    if settings:
        raise ValueError(
            "; ".join(
                f"{setting.name}: got {short_repr(setting.value)}, which {setting}; {setting.remedy}"
                for setting in settings
            )
        )


def overridden(config: Any, given: Collection[str]) -> set[str]:
    """The settings that may have lost their effect through those that the command line gives, and that it does not
    give: a later layer overrode what they depend on, so they are no mistake of the file."""
    names = set()
    for section, settings in sections_of(config).items():
        for field, declared in needs_of(type(settings)).items():
            name = f"{section}.{field}" if section else field
            needed = [condition.setting for need in declared for condition in need.conditions]
            causes = {cause for setting in needed for cause in FACTS.get(setting, (setting,))}
            causes |= {"algorithm.preset"} if any(_section(cause) == "algorithm" for cause in causes) else set()
            if name not in given and causes & {*given}:
                names.add(name)
    return names


def sections_of(config: Any) -> dict[str, Any]:
    """The sections of a configuration by name, itself by the empty one."""
    named = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {"": config} | {name: section for name, section in named.items() if dataclasses.is_dataclass(section)}


def values_of(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names, ``section.setting``."""
    return {
        f"{section}.{f.name}" if section else f.name: getattr(settings, f.name)
        for section, settings in sections.items()
        for f in dataclasses.fields(settings)
    }


def _section(setting: str) -> str:
    """The section of a setting; of a fact itself."""
    return setting.rpartition(".")[0] if setting not in FACTS else setting


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "''"
