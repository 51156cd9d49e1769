"""YAML files of records by name, as presets and papers are written: part of the package, and read at every command that
names one, so they are parsed by libyaml where PyYAML has it, ten times as fast. Recipes are read by ``reading.py``."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["records"]

_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Fast):
    """Safe YAML in which a key may stand once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        if len({*keys}) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"line {node.start_mark.line + 1}: the key '{twice}' stands twice")
        return super().construct_mapping(node, deep=deep)


def records(path: Path) -> dict[str, Any]:
    """The records of a file by name; ValueError that names the file for what is no mapping."""
    loader = _Loader(path.read_text(encoding="utf-8"))
    try:
        content = loader.get_single_data()
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path.name}: {' '.join(str(error).split())}") from error
    finally:
        loader.dispose()
    if not isinstance(content, dict):
        raise ValueError(f"{path.name}: got {content!r}, expected a mapping of names to records")
    return content
