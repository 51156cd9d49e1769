"""How often the host waits for a device, as the benchmark counts it."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.waits import page
from tests.journeys.cli.running import run

COUNTS = {"decision": 2.0, "own decision": 1.0, "update": 3.0, "own update": 1.0, "part": 0.5, "own part": 0.0}


def test_the_table_has_the_waits_of_the_project_of_all():
    assert page([{"network": "a", **COUNTS}], "m", "c")[-1] == "| a | 1 of 2 | 1 of 3 | 0 of 0.5 |"


@pytest.mark.nightly
@pytest.mark.nightly
def test_a_denoising_step_never_waits_and_a_token_once(tmp_path):
    networks = ["sd3.5-medium", "qwen2.5-vl-3b", "whisper-large-v3"]
    run([sys.executable, "-m", "benchmarks"], "waits", "--networks", *networks, "--output", tmp_path)
    rows = json.loads((tmp_path / "waits.json").read_text())["rows"]
    assert [row["network"] for row in rows] == networks
    drawn, *spoken = rows
    assert all(row["own decision"] <= 1 for row in spoken), spoken  # a token
    assert drawn["own decision"] == 0, drawn  # a denoising step, sampled and trained
    assert all(1 == row["own update"] <= row["update"] < 10 for row in rows), rows
    assert all(f"| {name} |" in (tmp_path / "waits.md").read_text() for name in networks)
