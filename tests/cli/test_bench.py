import json
import subprocess
import sys

import pytest

from tests import ROOT

sys.path.insert(0, str(ROOT / "scripts"))


def test_time_to_a_level_lies_on_the_line_between_two_evaluations():
    from bench import time_to

    curve = {"points": [(0, 0.0, 0.2), (10, 50.0, 0.4), (20, 100.0, 0.8)]}
    assert time_to(curve, 0.2) == 0.0
    assert time_to(curve, 0.3) == pytest.approx(25.0)  # half way from 0.2 to 0.4
    assert time_to(curve, 0.7) == pytest.approx(87.5)  # 50 + 50 * 0.3 / 0.4
    assert time_to(curve, 0.9) is None


def test_the_learning_table_names_what_was_not_reached():
    from bench import LEARNING, learning_table

    ends = {
        "Flow-GRPO": 0.8,
        "MixGRPO": 0.5,
        "one-step branch": 0.9,
        "one-step branch, 4 epochs": 0.9,
        "BranchGRPO-Mix": 0.8,
    }
    curves = [{"method": m, "seed": 0, "points": [(0, 0.0, 0.4), (10, 100.0, ends[m])]} for m in LEARNING]
    rows = {line.split("|")[1].strip(): line for line in learning_table(curves, 1) if line.startswith("| ")}
    assert "not reached" in rows["MixGRPO"]
    assert rows["one-step branch"].endswith("| 80 | 0.80 |")  # (0.8 - 0.4) / (0.9 - 0.4) of 100 s


@pytest.mark.slow
def test_the_benchmark_of_rounds_writes_a_table(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "visual", "--rounds", "1", "--prompts", "1"]
    command += ["--methods", "one-step branch", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "| one-step branch |" in (tmp_path / "visual.md").read_text()


def row(contestant: str, seconds: float, peak: float, completion: int = 64) -> dict[str, object]:
    """What a contestant of the vision-language benchmark measured."""
    times = {"seconds": seconds, "rollout": seconds / 4, "reward": 0.0, "update": 3 * seconds / 4}
    memory = {"peak": peak, "peak above load": peak - 100}
    tokens = {"prompt tokens": 90, "completion tokens": completion}
    speed = {"samples a second": 8 / seconds, "processor seconds": seconds}
    return {"contestant": contestant, "group": 8, **times, **speed, **memory, **tokens}


def test_every_contestant_is_told_as_a_share_of_trls_speed_and_memory():
    from bench_vlm import Args, report

    rows = [row("ours", 2.0, 300), row("TRL", 8.0, 500)]
    result = {"command": "x", "machine": "y", "parameters": 1, "settings": vars(Args()), "rows": rows}
    ours, trl = report(result).splitlines()[-2:]
    # 8 / 2 = 4 samples a second against 1; 300 of 500 MiB; 200 of 400 above the loaded model
    assert ours == "| 8 | ours | 4.00 | 4.00 | 2.00 | 0.50 | 0.00 | 1.50 | 2.00 | 0.25 | 300 | 0.60 | 200 | 0.50 |"
    assert trl == "| 8 | TRL | 1.00 | 1.00 | 8.00 | 2.00 | 0.00 | 6.00 | 8.00 | 1.00 | 500 | 1.00 | 400 | 1.00 |"


def test_contestants_that_did_different_work_are_not_compared():
    from bench_vlm import refuse_unequal

    refuse_unequal([row("ours", 2.0, 300), row("TRL", 8.0, 500)])
    with pytest.raises(RuntimeError, match=r"groups of 8 .*\(90, 63\)"):
        refuse_unequal([row("ours", 2.0, 300), row("TRL", 8.0, 500, completion=63)])


@pytest.mark.slow
def test_the_benchmark_beside_trl_runs_both_on_the_same_work(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "vlm", "--groups", "4", "--steps", "1"]
    command += ["--vocabulary", "300", "--width", "32", "--layers", "2", "--tokens", "4", "--side", "56"]
    command += ["--contestants", "ours", "TRL", "--output", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ours, trl = json.loads((tmp_path / "vlm.json").read_text())["rows"]
    assert (ours["contestant"], trl["contestant"]) == ("ours", "TRL")
    # 2 x 2 places for the picture; 4 samples of 4 tokens, none of which ended early
    assert ours["prompt tokens"] == trl["prompt tokens"] > 4 + 20
    assert ours["completion tokens"] == trl["completion tokens"] == 16
    for found in (ours, trl):
        assert 0 < found["rollout"] < found["seconds"] and found["update"] > 0
        assert 0 < found["peak above load"] < found["peak"]
    assert "| 4 | ours |" in (tmp_path / "vlm.md").read_text()


def test_a_benchmark_that_does_not_exist_is_an_error_in_one_line():
    command = [sys.executable, str(ROOT / "scripts" / "bench.py"), "opera"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: there is no benchmark for 'opera'; known: visual, vlm, speech\n"
