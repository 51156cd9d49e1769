"""Folders of runs as the tab Runs reads them."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

from PIL import Image as Pil

from mmgrpo.runtime.identity import MARKER

ESTIMATE = {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8}


def write_run(folder: Path, steps: int = 4, finished: bool = True, config: str = "seed: 0\n", **metrics: float) -> Path:
    """A run folder whose metric ``loss`` is ten times the step."""
    (folder / "samples").mkdir(parents=True)
    (folder / MARKER).write_text("{}")
    (folder / "config.yaml").write_text(config)
    rows = [{"step": s, "seconds": s / 2, "loss": 10.0 * s, **metrics} for s in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        sides = {"before": {"r": ESTIMATE}, "after": {"r": ESTIMATE}, "difference": {"r": ESTIMATE}}
        (folder / "summary.json").write_text(json.dumps({"eval": sides}))
    for moment in ("before", "step-000010", "step-000002", "after"):
        write_picture(folder / "samples" / f"{moment}.png")
    return folder


def write_picture(path: Path) -> None:
    buffer = BytesIO()
    Pil.new("RGB", (8, 8), "red").save(buffer, format="PNG")
    path.write_bytes(buffer.getvalue())
