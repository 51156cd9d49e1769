"""Tables and facts of a report, cell by cell."""

from __future__ import annotations

import json

from mmgrpo.report.html import extra_tables, facts, group_tables, metric_table, reward_table
from mmgrpo.report.run_folder import read_measured, read_run


def estimate(mean, n):
    return {"mean": mean, "low": mean, "high": mean, "n": n}


def with_metrics(folder, rows):
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **row}) + "\n" for n, row in enumerate(rows)))
    return read_run(folder)


def texts(table):
    return {name: [cell.text for cell in cells] for name, cells in table.rows.items()}


def test_the_number_of_prompts_is_that_of_the_difference_where_there_is_one(tmp_path):
    sides = {
        "before": {"both": estimate(0.25, 5), "early": estimate(0.5, 4)},
        "after": {"both": estimate(0.5, 6), "late": estimate(0.75, 3)},
        "difference": {"both": estimate(0.25, 2)},
    }
    summary = {"eval": sides, "blind": {"late": estimate(0.125, 3)}, "supervised": {"after": {"both": estimate(1, 5)}}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    table = reward_table(read_run(tmp_path))
    assert list(table.columns) == [
        *("reward", "before", "after", "difference", "blind, after", "supervised instead", "prompts")
    ]
    assert texts(table) == {
        "both": ["0.250", "0.500", "+0.250", "–", "1.000", "2"],
        "early": ["0.500", "–", "–", "–", "–", "4"],
        "late": ["–", "0.750", "–", "0.125", "–", "3"],
    }
    assert len(table.notes) == 3 and table.dense


def test_further_files_have_the_columns_of_the_held_out_prompts(tmp_path):
    sides = {side: {"r": estimate(0.5, 7)} for side in ("before", "after", "difference")}
    (tmp_path / "summary.json").write_text(json.dumps({"extra": {"further": sides}}))
    (table,) = extra_tables(read_run(tmp_path))
    assert texts(table) == {"r": ["0.500", "0.500", "+0.500", "7"]}


def test_a_column_has_a_row_for_each_of_its_values(tmp_path):
    sides = {side: {"r": estimate(0.5, 7)} for side in ("before", "after", "difference")}
    (tmp_path / "summary.json").write_text(json.dumps({"groups": {"kind": {"count": sides, "colour": sides}}}))
    (table,) = group_tables(read_run(tmp_path))
    assert texts(table) == {f"r, {kind}": ["0.500", "0.500", "+0.500", "7"] for kind in ("count", "colour")}


def test_metrics_are_averaged_over_the_first_and_the_last_tenth(tmp_path):
    run = with_metrics(tmp_path, [{"a": n, "b": None if n else 3} for n in range(1, 21)])
    assert texts(metric_table(run)) == {"a": ["1.5", "19.5"], "b": ["–", "–"]}
    few = with_metrics(tmp_path, [{"a": n} for n in range(1, 10)])
    assert texts(metric_table(few)) == {"a": ["1", "9"]}, "at least one step"


CONFIG = "name: ''\nsteps: 8\nseed: 3\nmodel: {family: sd3}\nalgorithm: {preset: flow_grpo}\noptim: {lr: 0.0001}\n"


def test_the_facts_of_a_run_are_those_of_its_end_or_of_its_configuration(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    ratios = {"ratio/first_minus_one": 1e-7}, {"ratio/first_minus_one": None}, {"ratio/first_minus_one": 3e-8}
    run = with_metrics(tmp_path, [{"seconds": 60.0 + number, **ratio} for number, ratio in enumerate(ratios)])
    found = {
        **{"model": "sd3", "algorithm": "flow_grpo", "optimizer steps": "2 of 8", "training time": "1 min 2 s"},
        **{"learning rate": "0.0001", "seed": "3", "first |ratio − 1|": "1.0e-07"},
    }
    assert facts(run) == found and run.name == tmp_path.name and not run.finished
    (tmp_path / "summary.json").write_text(json.dumps({"family": "mine", "preset": "own", "seconds": 5}))
    named = {"model": "mine", "algorithm": "own", "training time": "5 s"}
    assert facts(read_run(tmp_path)) == found | named and read_run(tmp_path).finished
    (tmp_path / "empty").mkdir()
    assert facts(read_run(tmp_path / "empty")) == {"optimizer steps": "0"}


def test_directions_are_signs_and_an_error_rate_needs_units(tmp_path):
    (tmp_path / "evaluations").mkdir()
    trained = {"up": 2, "down": -0.5, "odd": "x", "0": 0}
    record = {"step": 0, "prompts": ["a"], "values": {"r": [1.0]}, "trained": trained}
    counts = {"wer": {"errors": [1, 1], "units": [0, 0]}, "cer": {"errors": [1, 2], "units": [4, 2]}}
    (tmp_path / "evaluations" / "before.json").write_text(json.dumps({**record, "counts": counts}))
    (one,) = read_measured(tmp_path)
    assert one.directions == {"up": 1.0, "down": -1.0, "odd": 1.0, "0": 1.0} and not one.final
    [evaluated] = read_run(tmp_path).history
    assert {rate: one["mean"] for rate, one in evaluated.rates.items()} == {"cer": 0.5}
