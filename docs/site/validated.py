"""The table of checkpoints that ``mmgrpo validate`` was run on, and of those that it was not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.site.markdown import grid
from mmgrpo.catalogue.checkpoints import checkpoints
from mmgrpo.report import validation

RESULTS = Path(__file__).parents[2] / "benchmarks" / "validated"


def table() -> str:
    """Every published checkpoint, and what else has a committed result."""
    known = {name: record.family for name, record in checkpoints().items()}
    rows = validation.table(validation.read_results(RESULTS), known)
    return grid(validation.HEAD, [(f"`{name}`", f"`{owner}`", *rest) for name, owner, *rest in rows])


TABLES: Mapping[str, Callable[[], str]] = {"validated": table}
