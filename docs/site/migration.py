"""The tables of docs/migration/, from those of ``mmgrpo.cli.migrate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from docs.site.markdown import grid
from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.rules import apply
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import PROJECTS, Row, Table, table

LOSSES: tuple[dict[str, Any], ...] = (
    *({"loss_type": kind} for kind in ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")),
    {"loss_type": "grpo", "delta": 4.0},
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
)
"""Settings of TRL that the table of losses shows."""


def tables(name: str) -> str:
    """The tables of a project's page."""
    return "\n\n".join([*([losses()] if name == "trl" else []), section(table(name))])


def losses() -> str:
    """The losses of TRL as ours."""
    rows, trl = [], table("trl")
    for settings in LOSSES:
        blocks = apply(Draft(trl, Source("", dict(settings)), "causal_lm"), trl.rules["loss"])
        theirs = ", ".join(f"`{key}: {value}`" for key, value in settings.items())
        rows.append((theirs, f"`{blocks['objective'][0]}`", f"`{blocks['aggregation'][0]}`"))
    assert {loss["loss_type"] for loss in LOSSES} == {*trl.rules["loss"][0]["words"]["loss_type"]}
    return f"## Losses of TRL\n\n{LOSSES_TEXT}\n\n" + grid(("TRL", "objective", "aggregation"), rows)


LOSSES_TEXT = """The other settings are at TRL's defaults. Each pair computes the same loss and the same gradient on the
same numbers, which `tests/unit/objectives/test_trl_losses.py` shows with TRL's own code."""


def section(project: Table) -> str:
    """The tables of one project."""
    mapped = [row for row in project.rows.values() if row.to]
    groups: dict[str, list[Row]] = {}
    for row in project.rows.values():
        if not row.to:
            groups.setdefault(row.note, []).append(row)
    parts = [
        "## Data columns",
        f"Columns and settings are those of {project.source}.",
        grid(("theirs", "ours", "read as it is?"), [(c["theirs"], c["ours"], c["note"]) for c in project.columns]),
        "## Settings {data-search-exclude}",
        grid(
            ("theirs", "their default", "ours", "what differs"),
            [(f"`{row.key}`", code_of_default(row.default), ours(row.to), note_of(row)) for row in mapped],
        ),
        "## Settings without a counterpart {data-search-exclude}",
        "Another value than the default of those that are marked (!) changes what is trained: `mmgrpo train` refuses "
        "it until it is dealt with.",
        grid(
            ("theirs", "why, and what to do instead"),
            [
                (", ".join(f"`{row.key}`" for row in rows), f"{'(!) ' * rows[0].matters}{why}")
                for why, rows in groups.items()
            ],
        ),
    ]
    return "\n\n".join(parts)


def note_of(row: Row) -> str:
    """The note of a row, after its table of words."""
    words = ", ".join(f"{theirs}: {ours}" for theirs, ours in row.values.items())
    return "; ".join(filter(None, [f"`{words}`" if words else "", row.note]))


def code_of_default(value: Any) -> str:
    """A default."""
    return "" if value is None else f"`{json.dumps(value)}`"


def ours(keys: str) -> str:
    return ", ".join(f"`{key.strip()}`" for key in keys.split(","))


TABLES: Mapping[str, Callable[[], str]] = {f"migration from {name}": partial(tables, name) for name in PROJECTS}
