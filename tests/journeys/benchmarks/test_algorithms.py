"""The comparison of presets: who is compared, what the tables say of runs, and a run of it."""

from __future__ import annotations

import json

import pytest

from benchmarks import algorithms
from benchmarks.algorithms import PRESETS, TASKS, Args, cells, earlier_runs, fits, report, table
from mmgrpo.config.presets import CATALOGUE


def run_of(preset: str, seed: int, before: list[float], after: list[float], task: str = "text") -> dict:
    return {"task": task, "preset": preset, "seed": seed, "before": before, "after": after, "seconds": 2.0}


def test_twenty_four_presets_are_compared_each_on_the_tasks_of_its_decisions():
    assert len(set(PRESETS)) == 24 and set(PRESETS) <= CATALOGUE.keys()
    assert all(any(fits(task, preset) for task in TASKS) for preset in PRESETS)
    assert fits("image", "flow_grpo") and not fits("text", "flow_grpo") and fits("question", "grpo")
    assert all(fits(name, task.baseline) for name, task in TASKS.items())


def test_gains_are_paired_by_prompt_and_averaged_over_seeds():
    """Gains of the two prompts: (.5 + .3) / 2 and (.1 + .3) / 2; against grpo .1 and .1, whatever the prompt."""
    runs = [
        run_of("grpo", 0, [0, 0], [0.4, 0]),
        run_of("grpo", 1, [0, 0], [0.2, 0.2]),
        run_of("rloo", 0, [0, 0], [0.5, 0.1]),
        run_of("rloo", 1, [0, 0], [0.3, 0.3]),
        {"task": "text", "preset": "remax", "seed": 0, "problem": "refused | here"},
        run_of("gspo", 0, [0, 0], [1, 1], task="question"),
    ]
    rloo, grpo, remax = table(runs, "text")
    assert (rloo["preset"], rloo["seeds"], rloo["gain"]["mean"]) == ("rloo", 2, pytest.approx(0.3))
    assert (rloo["gain"]["low"], rloo["gain"]["high"]) == (pytest.approx(0.2), pytest.approx(0.4))
    assert rloo["against"] == pytest.approx({"mean": 0.1, "low": 0.1, "high": 0.1, "n": 2})
    assert grpo["against"] is None and grpo["range"] == pytest.approx([0.2, 0.2])
    assert cells(remax) == "| `remax` | | | | refused / here | | |"
    page = report({"command": "c", "machine": "m", "settings": vars(Args()), "runs": runs}, {"text": [rloo, remax]})
    assert "| `rloo` | 0.000 | 0.300 | 0.300 to 0.300 | +0.300 [+0.200, +0.400] |" in page


def test_runs_of_other_settings_are_not_mixed_with_these():
    earlier = {"machine": "m", "settings": {"threads": 1}, "runs": [1]}
    assert earlier_runs(earlier, {"threads": 1}, "m") == [1]
    for settings, machine, name in (({"threads": 2}, "m", "threads"), ({"threads": 1}, "n", "machine")):
        with pytest.raises(ValueError, match=f"--resume.*{name}"):
            earlier_runs(earlier, settings, machine)


@pytest.mark.nightly
def test_presets_are_trained_side_by_side_and_a_stopped_comparison_goes_on(tmp_path, capsys):
    args = Args(["text"], ["grpo", "flow_grpo", "dr_grpo"], seeds=1, text_steps=2, eval_prompts=4, output=str(tmp_path))
    algorithms.run(args, "m", "c")
    result = json.loads((tmp_path / "algorithms.json").read_text())
    assert [(one["preset"], len(one["after"])) for one in result["runs"]] == [("grpo", 4), ("dr_grpo", 4)]
    assert (tmp_path / "algorithms.png").read_bytes()[:4] == b"\x89PNG"
    args.resume, args.seeds = True, 2
    algorithms.run(args, "m", "c")
    again = json.loads((tmp_path / "algorithms.json").read_text())["runs"]
    assert again[:2] == result["runs"] and [one["seed"] for one in again] == [0, 0, 1, 1]
