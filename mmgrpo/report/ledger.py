"""What a run's ledger shows in its report: how hard its prompts were, over its rounds, and which were the hardest.

``prompts.jsonl`` is untrusted input, as all of a run folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmgrpo.prompts.ledger import FILE
from mmgrpo.report.chart import Chart, quantile_chart
from mmgrpo.report.figures import is_number
from mmgrpo.report.untrusted import MAX_METRICS, mapping, parse_json, printable, read_text

HARDEST = 10
LEVELS = ("q10", "q25", "q50", "q75", "q90")
NEEDED = {*LEVELS, "round", "flat"}
NOTE = "Mean rewards of samples of training. mmgrpo prompts lists more, and writes them as a data set."


@dataclass(frozen=True)
class Hardness:
    """The numbers of a ledger that a report shows."""

    visited: int
    prompts: int
    flat: float
    """Fraction of the visited prompts whose last rewards were all equal."""
    rounds: np.ndarray
    levels: np.ndarray
    """[rounds, 5] quantiles ``LEVELS`` of the last mean rewards of the prompts visited so far."""
    hardest: Sequence[Mapping[str, Any]]

    @property
    def chart(self) -> Chart:
        """The distribution of the rewards of prompts over the rounds."""
        return quantile_chart("mean reward per prompt, by round", self.rounds, self.levels)

    @property
    def heading(self) -> str:
        return f"Hardest of the {self.visited} prompts visited ({self.prompts} in all)"


def read_hardness(folder: Path) -> Hardness | None:
    """The ledger of a run folder; None where it has none."""
    lines = read_text(folder, FILE, MAX_METRICS).splitlines()[: HARDEST + 1]
    if not lines:
        return None
    place = folder / FILE
    head, *rows = [mapping(parse_json(line, f"{place}:{n}"), f"{place}:{n}") for n, line in enumerate(lines, start=1)]
    columns, history = head.get("columns"), head.get("history")
    counts = all(is_number(head.get(name)) for name in ("visited", "prompts"))
    if (
        not isinstance(columns, list)
        or not isinstance(history, list)
        or not counts
        or not {*map(str, columns)} >= NEEDED
    ):
        raise ValueError(f"{printable(place)}: line 1 is not the summary of a ledger; repair or remove the file")
    kept = [row for row in history if isinstance(row, list) and len(row) == len(columns) and all(map(is_number, row))]
    if not kept:
        return None
    table = np.array(kept, dtype=np.float64)
    column = {str(name): table[:, place] for place, name in enumerate(columns)}
    hardest = [row for row in rows if is_number(row.get("mean"))]
    levels = np.stack([column[name] for name in LEVELS], 1)
    visited, prompts = int(head["visited"]), int(head["prompts"])
    return Hardness(visited, prompts, float(column["flat"][-1]), column["round"], levels, hardest)
