"""Policies from a checkpoint and keyword options; the checkpoint determines the family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from mmgrpo.config.advice import argument, in_python, meant
from mmgrpo.config.conflicts import PROCESS, refuse_conflicts
from mmgrpo.config.names import nearest
from mmgrpo.config.needs import moot, refuse
from mmgrpo.config.plugins import locate
from mmgrpo.config.ranges import check_ranges
from mmgrpo.config.reading import build, setting_names, with_preset
from mmgrpo.config.settings import config_class
from mmgrpo.family import Family
from mmgrpo.family import families as registered
from pipelines.tools import import_path

if TYPE_CHECKING:
    from mmgrpo.types import Policy


def make_policy(
    families: Mapping[str, Family], path: str, name: str, seed: int, options: Mapping[str, Any], preset: str = ""
) -> Policy:
    """The policy of a checkpoint; ``options`` are those of the sections ``model`` and ``sampling``, ``tools`` also the
    functions and classes themselves. What they leave out has the settings of the ``preset``, if one is named."""
    family = of_name(families, name or recognize(families, locate(path)))
    kind = config_class(family.sections)
    section = {"algorithm": {"preset": preset}} if preset else {}
    section = with_preset(kind, section, "policy", str(options.get("policy", ""))) if preset else section
    config = replace(build(kind, section, "policy"), seed=seed) if preset else kind(seed=seed)
    sections = {"model": replace(config.model, path=path, family=family.name), "sampling": config.sampling}
    names = [f.name for section in sections.values() for f in fields(section)]
    for option, value in options.items():
        owners = [key for key, section in sections.items() if option in {f.name for f in fields(section)}]
        if not owners:
            raise ValueError(f"family '{family.name}' has no option '{option}'.{of_policy(option, kind, names)}")
        if option == "tools":
            value = [import_path(tool) for tool in (value if isinstance(value, list | tuple) else [value])]
        if option == "program":
            value = import_path(value, option)
        sections[owners[0]] = replace(sections[owners[0]], **{option: value})
    config = replace(config, **sections)
    refuse(moot(sections))
    refuse_conflicts(sections, facts={PROCESS: config.process})
    check_ranges(config, f"policy of '{path}'")
    family.check(config)
    try:
        policy = family.policy(config, device_of(config.model.device))
    except (ValueError, OSError) as error:
        if len(error.args) == 1:
            error.args = (in_python(str(error), setting_names(kind)),)
        raise
    policy.settings = replace(policy.settings, given=frozenset(options), preset=preset)
    return policy


def of_policy(option: str, kind: type, names: Sequence[str]) -> str:
    """What is said of an option that no policy of the family has: what is meant, here or of ``mmgrpo.train``."""
    setting = meant(option, setting_names(kind))
    section, _, name = setting.rpartition(".")
    if not setting or section in ("model", "sampling"):
        return nearest(name or option, names)
    return f" It is an argument of mmgrpo.train: {argument(setting)}."


def of_name(families: Mapping[str, Family], name: str) -> Family:
    """The family of a name; ValueError for one that is not among ``families``."""
    if name not in families:
        elsewhere = [other for other in registered().values() if other.name == name]
        raise ValueError(f"family: unknown family '{name}'.{policy_of(elsewhere) or nearest(name, families)}")
    return families[name]


def recognize(families: Mapping[str, Family], path: str) -> str:
    """The family of a checkpoint by the architecture that it declares."""
    from pipelines.pretrained import architecture

    declared = architecture(path) if path else ""
    for name, family in families.items():
        if declared in family.architectures:
            return name
    reason = f"declares the architecture '{declared}'" if declared else "declares no architecture"
    names = ", ".join(families)
    elsewhere = [other for other in registered().values() if declared in other.architectures]
    raise ValueError(
        f"'{path}' {reason}, expected one that a family here names; if one reads it, add family=, of {names}."
        f"{policy_of(elsewhere)}"
    )


def policy_of(elsewhere: Sequence[Family]) -> str:
    """What is said of a model that families of other packages read: the function that makes a policy of it."""
    calls = [f"{family.module.rpartition('.')[0]}.policy for {family.name}" for family in elsewhere]
    return f" Call {' or '.join(calls)}." if calls else ""


def device_of(device: str) -> str:
    """The device of an option; ``auto`` is accelerate's choice."""
    from mmgrpo.runtime.devices import accelerator

    return str(accelerator(device).device)
