"""The tables of docs/migration/, made from the tables of ``mmgrpo.cli.migrate``.

python -m docs.site.migration docs/migration       # writes them between the two marks of each page
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmgrpo.cli.errors import enter
from mmgrpo.cli.migrate.draft import Draft
from mmgrpo.cli.migrate.losses import WEIGHTS, objective
from mmgrpo.cli.migrate.sources import Source
from mmgrpo.cli.migrate.tables import PROJECTS, Row, Table, table

BEGIN = "<!-- Tables: python -m docs.site.migration docs/migration -->"
END = "<!-- End of the tables. -->"

LOSSES: tuple[dict[str, Any], ...] = (
    *({"loss_type": kind} for kind in ("grpo", "dapo", "bnpo", "dr_grpo", "cispo", "sapo", "vespo", "luspo")),
    {"loss_type": "grpo", "delta": 4.0},
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
)
"""Settings of TRL that the table of losses shows."""


def tables(name: str) -> str:
    """The text between the marks of a project's page."""
    return "\n\n".join([*([losses()] if name == "trl" else []), section(table(name))])


def losses() -> str:
    """The losses of TRL as ours."""
    rows = []
    for settings in LOSSES:
        blocks = objective(Draft(table("trl"), Source("", dict(settings)), "causal_lm"))
        theirs = ", ".join(f"`{key}: {value}`" for key, value in settings.items())
        rows.append((theirs, f"`{blocks['objective'][0]}`", f"`{blocks['aggregation'][0]}`"))
    assert {one["loss_type"] for one in LOSSES} == {*WEIGHTS, "dr_grpo"}
    return f"## Losses of TRL\n\n{LOSSES_TEXT}\n\n" + grid(("TRL", "objective", "aggregation"), rows)


LOSSES_TEXT = """The other settings are at TRL's defaults. Each pair computes the same loss and the same gradient on the
same numbers, which `tests/unit/objectives/test_trl_losses.py` shows with TRL's own code."""


def section(one: Table) -> str:
    """The tables of one project."""
    mapped = [row for row in one.rows.values() if row.to]
    groups: dict[str, list[Row]] = {}
    for row in one.rows.values():
        if not row.to:
            groups.setdefault(row.note, []).append(row)
    parts = [
        "## Data columns",
        f"Columns and settings are those of {one.source}.",
        grid(("theirs", "ours", "read as it is?"), [(c["theirs"], c["ours"], c["note"]) for c in one.columns]),
        "## Settings",
        grid(
            ("theirs", "their default", "ours", "what differs"),
            [(f"`{row.key}`", shown(row.default), ours(row.to), note_of(row)) for row in mapped],
        ),
        "## Settings without a counterpart",
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


def shown(value: Any) -> str:
    """A default."""
    return "" if value is None else f"`{json.dumps(value)}`"


def ours(keys: str) -> str:
    return ", ".join(f"`{key.strip()}`" for key in keys.split(","))


def grid(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(escaped, line)) + " |" for line in lines)


def escaped(cell: str) -> str:
    """A cell in which bars, and angle brackets outside of code, are text."""
    parts = cell.replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def filled(page: str, name: str) -> str:
    """A project's page with the tables between its marks; ValueError where it has none."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page: expected the lines '{BEGIN}' and '{END}' once each")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{tables(name)}\n\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the tables into the pages of the folder that the command line names."""
    from mmgrpo.files import write_text

    if len(sys.argv) != 2:
        raise ValueError("usage: python -m docs.site.migration docs/migration")
    for name in PROJECTS:
        path = Path(sys.argv[1]) / f"{name}.md"
        write_text(path, filled(path.read_text(encoding="utf-8"), name))


if __name__ == "__main__":
    enter(main)
