"""Make the run that the demo shows where there is no other: a small copy of a run folder, without its weights.

    mmgrpo train --recipe visual/demo --steps 100 --eval.every 25 --groups-kept 4
    python -m scripts.pretrain.stored_run runs/demo

It keeps the configuration, the metrics that are plotted, every evaluation, the first held-out samples before and after,
and the last training group. Numbers are rounded to four digits; pictures are as they were.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mmgrpo.cli.demo.models import STORED_RUN
from mmgrpo.runtime.identity import MARKER
from mmgrpo.statistics import mean_of_scored

SAMPLES = 12
"""Held-out prompts of which samples are kept."""
MOST = 300_000
"""Largest size in bytes."""
PLOTTED = ("step", "seconds", "loss", "grad_norm", "group/zero_std_fraction")
"""Metrics that are kept besides the means of rewards."""


def main() -> None:
    """Copy, and print the size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with images")
    parser.add_argument("--output", type=Path, default=STORED_RUN, help="folder to write, which is replaced")
    args = parser.parse_args()
    shutil.rmtree(args.output, ignore_errors=True)
    store(args.run, args.output)
    size = sum(path.stat().st_size for path in args.output.rglob("*") if path.is_file())
    print(f"{args.output}: {size:,} bytes")
    if size > MOST:
        raise SystemExit(f"error: {args.output}: got {size:,} bytes, expected at most {MOST:,}; lower SAMPLES")


def store(run: Path, folder: Path) -> None:
    """Write a small copy of a run into a new folder; of one that was stopped, the last evaluation is its end."""
    folder.mkdir(parents=True)
    config = yaml.safe_load((run / "config.yaml").read_text("utf-8"))
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "output_dir": "runs"}, sort_keys=False))
    shutil.copyfile(run / MARKER, folder / MARKER)
    evaluations = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted((run / "evaluations").iterdir())}
    last = "after" if "after" in evaluations else max(title for title in evaluations if title.startswith("step-"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["step"] <= evaluations[last]["step"]]
    write_rows(folder / "metrics.jsonl", [{name: row[name] for name in row if is_plotted(name)} for row in rows])
    for title, evaluation in evaluations.items():
        write_rows(folder / "evaluations" / f"{'after' if title == last else title}.json", [evaluation])
    finished = run / "summary.json"
    summary = (
        json.loads(finished.read_text("utf-8")) if finished.is_file() else summary_of(config, rows, evaluations, last)
    )
    (folder / "summary.json").write_text(json.dumps(round_numbers(summary), indent=1) + "\n", "utf-8")
    for moment, title in (("before", "before"), ("after", last)):
        lines = (run / "samples" / f"{title}.jsonl").read_text("utf-8").splitlines()[:SAMPLES]
        samples = [json.loads(line) for line in lines]
        names = [f"{moment}/{Path(row['image']).name}" for row in samples]
        write_rows(folder / "samples" / f"{moment}.jsonl", [{**row, "image": n} for row, n in zip(samples, names)])
        (folder / "samples" / moment).mkdir()
        for row, name in zip(samples, names):
            shutil.copyfile(run / "samples" / row["image"], folder / "samples" / name)
    group = max((run / "groups").iterdir())
    shutil.copytree(group, folder / "groups" / group.name)


def summary_of(config: Any, rows: list[Any], evaluations: dict[str, Any], last: str) -> dict[str, Any]:
    """What a run that was stopped would have written at its last evaluation."""
    columns = [
        {name: np.array(column, dtype=np.float64) for name, column in evaluations[title]["values"].items()}
        for title in ("before", last)
    ]
    sides = [{name: mean_of_scored(column) for name, column in side.items()} for side in columns]
    difference = {name: mean_of_scored(columns[1][name] - column) for name, column in columns[0].items()}
    known = {"family": config["model"]["family"], "preset": config["algorithm"]["preset"], "seed": config["seed"]}
    known |= {"steps": rows[-1]["step"], "seconds": rows[-1]["seconds"]}
    return {**known, "eval": {"before": sides[0], "after": sides[1], "difference": difference}}


def is_plotted(name: str) -> bool:
    """Whether a metric is kept."""
    return name in PLOTTED or (name.startswith("reward/") and name.endswith("/mean"))


def write_rows(path: Path, rows: list[Any]) -> None:
    """JSON, one object a line, in a folder that is made where there is none."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps(round_numbers(row), separators=(',', ':'))}\n" for row in rows), "utf-8")


def round_numbers(value: Any) -> Any:
    """A JSON value with its numbers rounded to four significant digits."""
    if isinstance(value, dict):
        return {name: round_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [round_numbers(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
