"""The benchmark of rewards: its table says what was measured, and its ways give the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.rewards import AFTER, COMPUTES, HERE, PROCESS, SERVER, WHILE, Args, report
from tests.journeys.cli.running import program


def test_throughput_and_overlap_are_relative_to_what_they_replace():
    rows = [{"way": HERE, "seconds": 0.9}, {"way": PROCESS, "seconds": 1.0}, {"way": SERVER, "seconds": 1.2}]
    overlap = {
        "reward": COMPUTES,
        AFTER: {"rollout": 6.0, "reward": 6.0},
        WHILE: {"rollout": 7.0, "reward": 1.0},
        "hidden": 4 / 6,
    }
    result: dict[str, Any] = {"command": "x", "machine": "y", "settings": vars(Args()), "rows": rows}
    lines = report({**result, "overlap": [overlap]}).splitlines()
    assert f"| {HERE} | 0.900 | 1.00 | 0.000 |" in lines
    assert f"| {PROCESS} | 1.000 | 0.90 | 0.100 |" in lines
    assert f"| {SERVER} | 1.200 | 0.75 | 0.300 |" in lines
    assert f"| {COMPUTES} | 6.00 | 6.00 | 7.00 | 1.00 | 67% |" in lines
    assert "overlap" not in report({**result, "overlap": []})


@pytest.mark.nightly
@pytest.mark.nightly
def test_the_three_ways_give_the_same_values_and_a_run_is_measured(tmp_path):
    small = {"width": 64, "layers": 1, "size": 32, "batch": 2, "batches": 2, "repeats": 1}
    run = {"prompts": 2, "group": 2, "rounds": 1, "threads": 1, "output": tmp_path}
    options = [word for name, value in {**small, **run}.items() for word in (f"--{name}", value)]
    program("rewards", *options)
    result = json.loads((tmp_path / "rewards.json").read_text())
    assert [row["way"] for row in result["rows"]] == [HERE, PROCESS, SERVER]
    assert [set(row[WHILE]) for row in result["overlap"]] == [{"rollout", "reward"}] * 2
    assert "| hidden |" in (tmp_path / "rewards.md").read_text()
