"""Policies in one call: the family of a checkpoint, and options by their names alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from mmgrpo.family import Family, Settings
from mmgrpo.registry import nearest
from mmgrpo.runtime.config import config_class
from mmgrpo.runtime.plugins import locate

if TYPE_CHECKING:
    from mmgrpo.types import Policy


def make_policy(families: Mapping[str, Family], path: str, name: str, seed: int, options: Mapping[str, Any]) -> Policy:
    """The policy of a checkpoint with options of the sections ``model`` and ``sampling``."""
    family = families[name or recognize(families, locate(path))]
    config = config_class(family.sections)(seed=seed)
    sections = {"model": replace(config.model, path=path, family=family.name), "sampling": config.sampling}
    known = [f.name for section in sections.values() for f in fields(section)]
    for option, value in options.items():
        owners = [key for key, section in sections.items() if option in {f.name for f in fields(section)}]
        if not owners:
            raise ValueError(f"family '{family.name}' has no option '{option}'.{nearest(option, known)}")
        sections[owners[0]] = replace(sections[owners[0]], **{option: value})
    config = replace(config, **sections)
    family.check(config)
    return family.policy(config, device_of(config.model.device))


def recognize(families: Mapping[str, Family], path: str) -> str:
    """The family whose architecture a checkpoint has."""
    from pipelines.pretrained import architecture

    found = architecture(path) if path else ""
    for name, family in families.items():
        if found and found in family.architectures:  # type: ignore[attr-defined]
            return name
    reason = f"is a '{found}'" if found else "does not say what it is"
    raise ValueError(f"'{path}' {reason}, which no family here reads; name one: family='{next(iter(families))}'")


def device_of(device: str) -> str:
    """``auto`` as accelerate chooses it."""
    from accelerate import Accelerator

    return str(Accelerator(cpu=device == "cpu").device)


def with_settings(policy: Any, family: Family, config: Any) -> Any:
    """The policy, which knows how it was made."""
    policy.settings = Settings(family, config)
    return policy
