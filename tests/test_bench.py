import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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

    ends = {"Flow-GRPO": 0.8, "MixGRPO": 0.5, "one-step branch": 0.9, "BranchGRPO-Mix": 0.8}
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
