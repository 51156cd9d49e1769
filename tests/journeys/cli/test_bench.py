"""The benchmarks of pictures: what they compare does the same work, and their tables say what was measured."""

from __future__ import annotations

import json
import shlex

import pytest

from mmgrpo.cli.bench import visual, vlm
from tests.journeys.cli.running import call


def test_time_to_a_level_lies_on_the_line_between_two_evaluations():
    curve = {"points": [(0, 0.0, 0.2), (10, 50.0, 0.4), (20, 100.0, 0.8)]}
    assert visual.time_to(curve, 0.2) == 0.0
    assert visual.time_to(curve, 0.3) == pytest.approx(25.0)  # half way from 0.2 to 0.4
    assert visual.time_to(curve, 0.7) == pytest.approx(87.5)  # 50 + 50 * 0.3 / 0.4
    assert visual.time_to(curve, 0.9) is None


def test_the_learning_table_names_what_was_not_reached():
    ends = {
        "Flow-GRPO": 0.8,
        "MixGRPO": 0.5,
        "one-step branch": 0.9,
        "one-step branch, 4 epochs": 0.9,
        "BranchGRPO-Mix": 0.8,
    }
    curves = [{"method": m, "seed": 0, "points": [(0, 0.0, 0.4), (10, 100.0, ends[m])]} for m in visual.LEARNING]
    rows = {line.split("|")[1].strip(): line for line in visual.learning_table(curves, 1) if line.startswith("| ")}
    assert "not reached" in rows["MixGRPO"]
    assert rows["one-step branch"].endswith("| 80 | 0.80 |")  # (0.8 - 0.4) / (0.9 - 0.4) of 100 s


@pytest.mark.slow
def test_the_benchmark_of_rollouts_writes_a_table(tmp_path):
    options = ["--rounds", 1, "--prompts", 1, "--threads", 1, "--methods", "one-step branch", "--output", tmp_path]
    call("bench", "visual", *options)
    table = (tmp_path / "visual.md").read_text()
    assert (
        "| one-step branch |" in table and f"`{shlex.join(['mmgrpo', 'bench', 'visual', *map(str, options)])}`" in table
    )


def row(contestant: str, seconds: float, peak: float, completion: int = 64) -> dict[str, object]:
    """What a contestant of the vision-language benchmark measured."""
    times = {"seconds": seconds, "rollout": seconds / 4, "reward": 0.0, "update": 3 * seconds / 4}
    memory = {"peak": peak, "peak above load": peak - 100}
    tokens = {"prompt tokens": 90, "completion tokens": completion}
    speed = {"samples a second": 8 / seconds, "processor seconds": seconds}
    return {"contestant": contestant, "group": 8, **times, **speed, **memory, **tokens}


def test_every_contestant_is_reported_as_a_fraction_of_trls_speed_and_memory():
    rows = [row("ours", 2.0, 300), row("TRL", 8.0, 500)]
    result = {"command": "x", "machine": "y", "parameters": 1, "settings": vars(vlm.Args()), "rows": rows}
    ours, trl = vlm.report(result).splitlines()[-2:]
    # 8 / 2 = 4 samples a second against 1; 300 of 500 MiB; 200 of 400 above the loaded model
    assert ours == "| 8 | ours | 4.00 | 4.00 | 2.00 | 0.50 | 0.00 | 1.50 | 2.00 | 0.25 | 300 | 0.60 | 200 | 0.50 |"
    assert trl == "| 8 | TRL | 1.00 | 1.00 | 8.00 | 2.00 | 0.00 | 6.00 | 8.00 | 1.00 | 500 | 1.00 | 400 | 1.00 |"


def test_contestants_that_did_different_work_are_not_compared():
    vlm.refuse_unequal([row("ours", 2.0, 300), row("TRL", 8.0, 500)])
    with pytest.raises(RuntimeError, match=r"groups.*8.*\(90, 63\)"):
        vlm.refuse_unequal([row("ours", 2.0, 300), row("TRL", 8.0, 500, completion=63)])


@pytest.mark.slow
@pytest.mark.nightly
def test_the_benchmark_beside_trl_runs_both_on_the_same_work(tmp_path):
    options = ["--groups", 4, "--steps", 1, "--vocabulary", 300, "--width", 32, "--layers", 2, "--tokens", 4]
    options += ["--side", 56, "--threads", 1, "--contestants", "ours", "TRL", "--output", tmp_path]
    call("bench", "vlm", *options)
    ours, trl = json.loads((tmp_path / "vlm.json").read_text())["rows"]
    assert (ours["contestant"], trl["contestant"]) == ("ours", "TRL")
    # 2 x 2 places for the picture; 4 samples of 4 tokens, none of which ended early
    assert ours["prompt tokens"] == trl["prompt tokens"] > 4 + 20
    assert ours["completion tokens"] == trl["completion tokens"] == 16
    for found in (ours, trl):
        assert 0 < found["rollout"] < found["seconds"] and found["update"] > 0
        assert 0 < found["peak above load"] < found["peak"]
    assert "| 4 | ours |" in (tmp_path / "vlm.md").read_text()


def test_a_benchmark_that_does_not_exist_is_an_error_that_names_those_that_do():
    with pytest.raises(ValueError, match="'opera'"):
        call("bench", "opera")


@pytest.mark.slow
def test_the_benchmark_of_cards_runs_at_toy_size(tmp_path):
    networks = ["sd3.5-medium", "qwen2.5-vl-3b", "whisper-large-v3"]
    call("bench", "gpu", "--toy", "--rounds", 1, "--device", "cpu", "--networks", *networks, "--output", tmp_path)
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert [row["network"] for row in rows] == networks and not any("error" in row for row in rows), rows
    assert all(row["operations"] > 1e6 and row["evaluations per second"] > 0 for row in rows)
    assert all(f"| {name} |" in (tmp_path / "gpu.md").read_text() for name in networks)
