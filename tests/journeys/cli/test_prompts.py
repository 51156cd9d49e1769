"""The prompts of a run: how hard they were, as a list, as a data set, in a report and in the next run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mmgrpo.cli.prompts import budgets, is_weak
from mmgrpo.config.registry import bind
from mmgrpo.data.prompts import load_prompts
from mmgrpo.prompts.ledger import FILE, Ledger, key_of, read_measurements
from mmgrpo.prompts.trackers import TRACKERS
from mmgrpo.report.html import write_report
from mmgrpo.report.ledger import read_hardness
from tests.journeys.cli.running import call
from tests.unit.prompts.test_ledger import rows


@pytest.fixture
def run(tmp_path):
    """A run folder of four prompts: never solved, half solved, solved, and never visited."""
    data = tmp_path / "train.jsonl"
    lines = [{"id": f"p{n}", "text": f"question {n}", "task": "ab"[n % 2], "note": [n]} for n in range(4)]
    data.write_text("\n".join(map(json.dumps, lines)))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(f"model: {{family: toy}}\ndata: {{train: {data}}}\n")
    ledger = Ledger(4, [bind("history", TRACKERS, "test")])
    for number, values in enumerate([[0.0, 0.4, 1.0, 0.0, 1.0, 1.0], [0.0, 0.2, 0.0, 1.0, 1.0, 1.0]]):
        ledger.update(rows([0, 0, 1, 1, 2, 2], values), number)
    ledger.write(folder, load_prompts(data), 2)
    return folder


@pytest.mark.parametrize(
    ("which", "ids"),
    [("hard", "012"), ("never", "0"), ("solved", "2"), ("varied", "10"), ("weak", "0")],
)
def test_prompts_are_listed_and_written_as_they_were(which, ids, run, tmp_path, capsys):
    call("prompts", str(run), "--which", which, "--write", str(tmp_path / "some.jsonl"))
    out = capsys.readouterr().out
    assert [line.split()[5][:2] for line in out.splitlines() if "question" in line] == [f"p{n}" for n in ids]
    assert "3 of 4" in out and "1 never solved" in out
    written = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert {row["id"] for row in written} == {f"p{n}" for n in ids} and "note" in written[0]


def test_a_count_bounds_both_and_a_budget_is_divided(run, tmp_path, capsys):
    call("prompts", str(run), "--count", "1", "--write", str(tmp_path / "one.jsonl"))
    assert len((tmp_path / "one.jsonl").read_text().splitlines()) == 1
    call("prompts", str(run), "--which", "weak", "--budget", "10")
    assert "10 new problems of the task a" in capsys.readouterr().out
    many = [{"task": task} for task in "abc" for _ in range(10)]
    assert budgets(many, [{"task": "a"}] * 3 + [{"task": "b"}, {"task": "c"}], 1000) == {"a": 600, "b": 200, "c": 200}


def test_weakness_is_a_low_mean_that_falls():
    cases = {(0.4, 0.3, 0.2): True, (0.1, 0.2, 0.3): False, (0.6, 0.3, 0.1): False, (0.0, 0.0, 0.0): False, (): False}
    assert {means: is_weak(means) for means in cases} == cases


def test_the_run_may_be_named_as_other_commands_name_it(run, capsys):
    call("prompts", run)
    listed = capsys.readouterr().out
    call("prompts", "--run", run)
    assert capsys.readouterr().out == listed


def test_a_folder_without_a_ledger_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=FILE):
        call("prompts", str(tmp_path))


def test_a_report_shows_the_hardest_prompts_and_how_rewards_moved(run):
    found = read_hardness(run)
    assert found is not None and (found.visited, found.prompts, len(found.rounds)) == (3, 4, 2)
    assert found.levels[-1].tolist() == [0.1, 0.1, 0.5, 1, 1], "of .1, .5 and 1"
    page = write_report(run).read_text()
    assert "question 0" in page and "3 prompts visited" in page
    (run / FILE).write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=FILE):
        write_report(run)
    (run / FILE).unlink()
    assert "prompts visited" not in write_report(run).read_text()


def test_rows_that_are_solved_blind_are_problems_and_the_others_are_kept(tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    lines = [{"id": f"p{n}", "text": f"question {n}", "answer": "1", "task": "numeric"} for n in range(3)]
    data.write_text("\n".join(map(json.dumps, lines)))
    prompts = load_prompts(data)
    values = [{"id": p.id, "key": key_of(p), "task": [1.0], "blind": {"task": v}}
              for p, v in zip(prompts, [[1.0, 0.0], [0.0, 0.25], [None]])]  # fmt: skip
    (tmp_path / "evaluation.json").write_text(json.dumps({"values": values}))
    with pytest.raises(SystemExit):
        call(
            "check-data",
            str(data),
            "--blind",
            str(tmp_path / "evaluation.json"),
            "--kept",
            str(tmp_path / "kept.jsonl"),
        )
    assert "without its media" in capsys.readouterr().out
    assert [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()] == lines[1:]
    with pytest.raises(ValueError, match="--blind"):
        call("check-data", str(data), "--blind", str(data))


def test_rates_that_are_not_there_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data\.ledger.*rates\.json"):
        read_measurements(tmp_path / "rates.json", {"task": 1.0})


def test_a_run_begins_with_what_another_measured(run, tmp_path, capsys):
    from accelerate import Accelerator

    from mmgrpo import api
    from mmgrpo.config.reading import build
    from mmgrpo.config.settings import Algorithm, Data, config_class
    from mmgrpo.data.splits import Splits
    from mmgrpo.inputs import RunInputs
    from tests.building import first_number
    from tests.toys import toy_policy

    prompts = [replace(prompt, meta={}) for prompt in load_prompts(tmp_path / "train.jsonl")]
    config = build(config_class(api.PLAIN), {"output_dir": str(tmp_path), "name": "next"}, "the test")
    config = replace(
        config,
        data=Data(train="train.jsonl", prompts_per_step=2, group_size=4, ledger=str(run)),
        algorithm=build(Algorithm, {"preset": "vas"}, "the test"),
    )
    inputs = RunInputs(toy_policy(), Splits(prompts), keys={}, rows=4)
    made = api.make_trainer(config, None, lambda _: inputs, [first_number], Accelerator(cpu=True))
    assert "3 of 4" in capsys.readouterr().out
    assert made.ledger.columns["prompts"]["visits"].tolist() == [1, 1, 1, 0]
    assert torch.allclose(made.ledger.read("pass_rate")[:3], torch.tensor([0.15, 0.5, 1.0], dtype=torch.float64))
