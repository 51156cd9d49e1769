"""Runs beside each other, by numbers that can be checked in the head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.report.compare import as_dict, compare, curves, group_by_settings, read_ended, table


def run(
    place: Path, after: list[float], *, seed: int = 0, lr: float = 0.1, name: str = "", prompts: str = "ab", **more
) -> Path:
    """A run folder whose reward r was 0 before training and is also measured at step 5."""
    folder = place / (name or f"lr-{lr}-seed-{seed}")
    (folder / "evaluations").mkdir(parents=True)
    (folder / "config.yaml").write_text(f"name: {folder.name}\nseed: {seed}\noptim: {{lr: {lr}}}\n")
    sides = {"before": (0, [0.0] * len(after)), "step-000005": (5, [0.5] * len(after)), "after": (10, after)}
    for title, (step, values) in sides.items():
        record = {"step": step, "prompts": [*prompts], "values": {"r": values}, "trained": {"r": 1.0}}
        (folder / "evaluations" / f"{title}.json").write_text(json.dumps(record | more))
    return folder


def rows(*folders: Path):
    return compare([read_ended(folder) for folder in folders])


def test_runs_that_differ_in_their_seed_are_one_row_and_gains_are_means_over_seeds_and_prompts(tmp_path):
    [row] = rows(run(tmp_path, [1.0, 0.0]), run(tmp_path, [1.0, 1.0], seed=1))
    assert (row.before, row.after, row.gain.mean) == (0.0, 0.75, 0.75)
    assert [*row.by_seed] == [0.5, 1.0] and [*row.seeds] == [0, 1]
    assert (row.gain.low, row.gain.high) == (0.5, 1.0)  # a resample has the prompt of 1 alone, or that of .5
    assert row.against is None


def test_the_difference_to_the_first_row_is_paired_by_prompt(tmp_path):
    first, second = rows(run(tmp_path, [1.0, 0.0]), run(tmp_path, [0.75, -0.25], lr=0.2))
    assert (first.label, second.label) == ("optim.lr=0.1", "optim.lr=0.2")
    assert (second.against.mean, second.against.low, second.against.high) == (-0.25, -0.25, -0.25)


def test_runs_on_other_prompts_have_no_difference(tmp_path):
    _, second = rows(run(tmp_path, [1.0, 0.0]), run(tmp_path, [1.0, 0.0], lr=0.2, prompts="ac"))
    assert second.against is None and second.gain.mean == 0.5


def test_a_prompt_without_a_value_is_left_out_of_the_gain(tmp_path):
    folder = run(tmp_path, [1.0, None])  # null in JSON
    [row] = rows(folder)
    assert (row.gain.mean, row.gain.n) == (1.0, 1)


def test_a_run_twice_and_one_that_has_not_ended_are_named(tmp_path):
    folders = [run(tmp_path, [1.0, 0.0], name=name) for name in ("one", "two")]
    with pytest.raises(ValueError, match="one.*seed 0"):
        rows(*folders)
    (folders[1] / "evaluations" / "after.json").unlink()
    (folders[1] / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="two.*--resume"):
        read_ended(folders[1])
    with pytest.raises(FileNotFoundError, match="three.*config.yaml"):
        read_ended(tmp_path / "three")


def test_pass_at_k_is_of_runs_with_several_samples_that_are_right_or_wrong(tmp_path):
    folder = run(tmp_path, [1.0, 0.0])
    record = {"samples": 4, "values": [{"id": "a", "r": [1, 0, 0, 0]}, {"id": "b", "r": [0, 0, 0, 0]}]}
    (folder / "evaluation.json").write_text(json.dumps(record))
    [row] = rows(folder)
    assert row.passes == {1: 0.125, 2: 0.25, 4: 0.5}
    record["values"][0]["r"][0] = 0.5
    (folder / "evaluation.json").write_text(json.dumps(record))
    [row] = rows(folder)
    assert row.passes == {}


def test_a_table_has_the_columns_that_have_something_and_json_every_number(tmp_path):
    found = rows(run(tmp_path, [1.0, 0.0], name="a|b"))
    head, _, line = table(found, markdown=True).splitlines()
    assert "against" not in head and "pass@k" not in head
    assert line.replace("\\|", "").count("|") == head.count("|")
    assert json.loads(json.dumps(as_dict(found[0]), allow_nan=False))["gain"]["mean"] == 0.5


def test_curves_are_of_the_steps_that_all_seeds_have(tmp_path):
    runs = [read_ended(one) for one in (run(tmp_path, [1.0, 0.0]), run(tmp_path, [1.0, 1.0], seed=1))]
    [(steps, means)] = curves(runs, "r").values()
    assert steps == [0, 5, 10] and means.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.5, 1.0]]
    assert len(group_by_settings(runs)) == 1


def test_runs_without_a_common_reward_are_an_error(tmp_path):
    second = run(tmp_path, [1.0, 0.0], lr=0.2)
    for path in (second / "evaluations").iterdir():
        path.write_text(path.read_text().replace('"r"', '"other"'))
    with pytest.raises(ValueError, match="reward"):
        rows(run(tmp_path, [1.0, 0.0]), second)
