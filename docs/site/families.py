"""The table of model families: what each is, what it is compared with, and what its published sizes need."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.site.markdown import code, escape_cell, grid
from mmgrpo.catalogue.checkpoints import checkpoints
from mmgrpo.family import Family, all_families


def table() -> str:
    """Every family in the order of ``mmgrpo families``."""
    rows = [
        (escape_cell(family.about), f"`{name}`", library_classes(family), sizes(name))
        for name, family in all_families().items()
    ]
    return grid(("models", "family", "compared with", "published sizes, GB in bf16"), rows)


def library_classes(family: Family) -> str:
    """The classes of diffusers, or types of transformers, that draw what the family draws (``mmgrpo validate``)."""
    return code(family.architectures) if family.library else ""


def sizes(name: str) -> str:
    """Billions of parameters of the published checkpoints of a family and their GB in bf16, from small to large."""
    counts = sorted({checkpoint.parameters for checkpoint in checkpoints().values() if checkpoint.family == name})
    return ", ".join(dict.fromkeys(f"{count / 1e9:.2g} B: {2 * count / 1e9:,.1f}" for count in counts))


TABLES: Mapping[str, Callable[[], str]] = {"families": table}
