"""The tables of presets, from the catalogue."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from mmgrpo.cli.explain import settings_of
from mmgrpo.config.presets import BASE, CATALOGUE, KINDS, Preset


def blocks() -> str:
    """Every preset with what differs from the base, kind by kind."""
    head = "| preset | policies | in one sentence | differs from the base | source |\n| --- | --- | --- | --- | --- |\n"
    return "\n".join(
        f"### {title}\n\n{head}"
        + "".join(row(name, preset) for name, preset in CATALOGUE.items() if preset.kind == kind)
        for kind, title in KINDS.items()
    )


def row(name: str, preset: Preset) -> str:
    """A preset: policies, description, lines that differ from the base, and source."""
    texts = {line: ", ".join(value) if isinstance(value, list) else value for line, value in preset.blocks.items()}
    differs = "; ".join(f"`{line}: {text}`" for line, text in texts.items() if preset.blocks[line] != BASE[line])
    source = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", preset.source)
    return f"| `{name}` | {preset.policies} | {preset.about} | {differs} | {source} |\n"


def settings() -> str:
    """The settings of sampling and data by which presets are what their names say; presets with equal ones are one
    row."""
    named: dict[tuple[str, ...], list[str]] = {}
    for name in CATALOGUE:
        if values := settings_of(name):
            named.setdefault(tuple(values), []).append(f"`{name}`")
    rows = (
        f"| {', '.join(names)} | {'; '.join(f'`{value}`' for value in values)} |\n" for values, names in named.items()
    )
    return "| presets | settings |\n| --- | --- |\n" + "".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {"presets": blocks, "what presets sample with": settings}
