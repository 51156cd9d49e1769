"""The benchmark of sharding: how bytes are counted, and that they are those of the formulas."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import scale
from tests.journeys.cli.running import program

BLOCKS = {"weights": 100, "trained bytes": 40, "updates": 1, "in step": True, "calls": 3, "calls with gradient": 2}
AGREED = {**BLOCKS, "in step": False, "phases": 1, "gathered": 240, "reduced": 36, "trained outside": 4}


@pytest.mark.parametrize(
    ("seen", "processes", "mode", "replicate", "expected"),
    [
        (BLOCKS, 2, "none", 1, 40),  # 2 x 1/2 x 40
        (BLOCKS, 4, "full", 1, 585),  # 3/4 x 100 x (3 + 2 x 2) + 2 x 3/4 x 40
        (BLOCKS, 4, "HSDP", 2, 430),  # 1/2 x 100 x 7 + 2 x 40 x (1/2 + 1/2)
        (AGREED, 2, "full", 1, 190),  # 1/2 x (100 + 240) + 1/2 x (36 + 4)
        (AGREED, 4, "HSDP", 2, 212),  # and between the copies 36 / 2 and 4
    ],
)
def test_what_is_moved(seen, processes, mode, replicate, expected):
    seen = {**seen, "processes": processes}
    assert scale.bytes_moved(seen, mode, replicate) == expected
    shards = 1 if mode == "none" else processes // replicate
    assert scale.bytes_held(seen, mode, replicate) == (100 + 3 * 40) / shards


def test_a_collective_operation_brings_what_the_others_have():
    small, large = torch.zeros(2), torch.zeros(8)
    assert scale.bytes_received("_allgather_base_", [large, small, None]) == 24
    assert scale.bytes_received("allgather_", [[[small, small]], [small], None]) == 8
    assert scale.bytes_received("_reduce_scatter_base_", [small, large]) == 24
    assert scale.bytes_received("all_gather_into_tensor", [small, 4, "group"]) == 24
    assert scale.bytes_received("reduce_scatter_tensor", [large, "sum", 4, "group"]) == 24
    with pytest.raises(RuntimeError, match="alltoall_"):
        scale.bytes_received("alltoall_", [small])


def test_what_is_alive_at_the_peak():
    """Two vectors of 1,000 numbers next to the held one, of which one is gone before the third; one is emptied."""
    held = torch.zeros(1000)
    counted = scale.Counted([held])
    with counted, counted.count_resizes():
        first = held + 1
        second = first + 1
        del first
        third = second + 1
        assert (counted.alive, counted.most) == (12_000, 12_000)
        third.untyped_storage().resize_(0)
        assert counted.alive == 8000
    del second


@pytest.mark.nightly
@pytest.mark.nightly
def test_the_benchmark_of_sharding_finds_the_formulas(tmp_path):
    networks = ["sd3.5-medium", "qwen2.5-vl-3b"]
    program("scale", "--networks", *networks, "--processes", 2, "--ranks", 0, "--output", tmp_path)
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    assert [(row["network"], row["mode"]) for row in rows] == [(n, m) for n in networks for m in ("none", "full")]
    for row in rows:
        assert row["moved"] == pytest.approx(row["moved by formula"], rel=0.05)
        assert row["held"] == pytest.approx(row["held by formula"], rel=0.02) and row["most"] > row["held"]
    assert (tmp_path / "scale.md").read_text().count("| sd3.5-medium |") == 2
