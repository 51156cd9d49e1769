"""What is read of a run folder."""

from __future__ import annotations

import json

import pytest

from mmgrpo.report import run_folder
from mmgrpo.report.html import grids
from mmgrpo.report.media import MediaFolder
from mmgrpo.report.run_folder import read_run
from mmgrpo.statistics import bootstrap_mean


def evaluated(folder, **values):
    (folder / "evaluations").mkdir()
    (folder / "evaluations" / "before.json").write_text(json.dumps({"step": 0, "values": values}))
    return folder


def test_a_grid_that_moves_replaces_the_still_one(tmp_path):
    (tmp_path / "samples").mkdir()
    for name in ("before.png", "before.webp", "after.png"):
        (tmp_path / "samples" / name).touch()
    assert read_run(tmp_path).samples == {"before": "before.webp", "after": "after.png"}


def test_metrics_have_a_bound_of_rows_times_names(tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 1}\n{"step": 2, "b": 1}\n')
    for most, read in ((6, True), (5, False)):  # two rows of step, a and b
        monkeypatch.setattr(run_folder, "MAX_CELLS", most)
        if read:
            assert len(read_run(tmp_path).metrics) == 2
        else:
            with pytest.raises(ValueError, match="2 rows.*3.*5"):
                read_run(tmp_path)


def test_an_evaluation_has_a_bound_of_values(tmp_path, monkeypatch):
    evaluated(tmp_path, a=[1.0, 2.0], b=[0.0, 1.0, None])
    monkeypatch.setattr(run_folder, "MAX_VALUES", 5)
    assert read_run(tmp_path).evaluation["before"]["b"]["n"] == 2
    monkeypatch.setattr(run_folder, "MAX_VALUES", 4)
    with pytest.raises(ValueError, match="5 numbers.*4"):
        read_run(tmp_path)


def test_intervals_of_a_run_that_was_killed_are_those_of_its_end(tmp_path):
    values = [0.0, 1.0, 2.0, 7.0, 9.0, 11.0, 0.5]
    assert read_run(evaluated(tmp_path, a=values)).evaluation == {"before": {"a": bootstrap_mean(values).as_dict()}}


def test_grids_have_headings_by_prompts_and_moments(tmp_path):
    (tmp_path / "samples").mkdir()
    for title in ("before", "after", "after-more", "step-000001"):
        (tmp_path / "samples" / f"{title}.png").touch()
    assert [(one.heading, list(one.images)) for one in grids(read_run(tmp_path), MediaFolder(tmp_path))] == [
        ("", ["before", "after"]),
        ("Samples of prompts of further files", ["after-more"]),
        ("Samples during the run", ["step-000001"]),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("[1]", r"metrics\.jsonl:3.*'\[1\]'"),
        ('{"step": "x"}', "'step'.*'x'"),
        ("{}", "None"),
    ],
)
def test_a_row_of_metrics_that_is_none_is_named_by_its_line(tmp_path, line, told):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n\n{line}\n')
    with pytest.raises(ValueError, match=told):
        read_run(tmp_path)
