"""The comparison of critics and groups: what its table says of runs, and a run of it."""

from __future__ import annotations

import json

import pytest

from benchmarks import critics
from benchmarks.critics import METHODS, RATES, Args, report, table


def run_of(method: str, seed: int, before: list[float], after: list[float], split: str = "heldout") -> dict:
    counts = {"samples": 4, "further": 2 * (method == "VinePPO"), "seconds": 1.0}
    return {"method": method, "rate": 0.01, "seed": seed, "split": split, "before": before, "after": after, **counts}


def test_gains_are_paired_by_prompt_and_seed_and_tuning_runs_are_apart():
    """Gains of the two prompts: (.5 + .3) / 2 and (.1 + .3) / 2; against GRPO .1 and .1, whatever the prompt."""
    runs = [
        run_of("GRPO", 0, [0, 0], [0.4, 0]),
        run_of("GRPO", 1, [0, 0], [0.2, 0.2]),
        run_of("VinePPO", 0, [0, 0], [0.5, 0.1]),
        run_of("VinePPO", 1, [0, 0], [0.3, 0.3]),
        run_of("VinePPO", 100, [0, 0], [9, 9], split="tune"),
    ]
    vine, grpo = table(runs)
    assert (vine["method"], vine["gain"]["mean"], vine["seeds"]) == ("VinePPO", pytest.approx(0.3), [0.3, 0.3])
    assert vine["against"] == pytest.approx({"mean": 0.1, "low": 0.1, "high": 0.1, "n": 2}) and grpo["against"] is None
    page = report({"command": "c", "machine": "m", "settings": vars(Args()), "runs": runs})
    assert "| VinePPO | 0.01 | 0.300, 0.300 | +0.300 [+0.200, +0.400] | +0.100 [+0.100, +0.100] | 4 + 2 | 1 |" in page
    assert "| VinePPO | 0.01 | 9.000 |" in page


@pytest.mark.nightly
def test_every_method_is_tuned_and_draws_as_many_completions(tmp_path):
    critics.run(Args(seeds=1, steps=2, output=str(tmp_path)), "m", "c")
    runs = json.loads((tmp_path / "critics.json").read_text())["runs"]
    assert [one["method"] for one in runs] == [name for name in METHODS for _ in (*RATES, 0)]
    assert all(abs(one["samples"] + one["further"] - 512) < 52 for one in runs)
    assert (tmp_path / "critics.md").is_file()
