from __future__ import annotations

import gc
import math
import os
import warnings

import pytest
import torch

from mmgrpo.runtime.metrics import MetricsLog, peak_memory_gib, read_metrics


def test_rows_are_read_back_as_written_and_a_line_is_there_at_once(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(1, {"loss": 0.5, "rows": 8, "kind": "own", "per_reward": [0.1, 0.2]})
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss": 0.5, "rows": 8, "kind": "own", "per_reward": [0.1, 0.2]}
    ]


def test_what_is_not_finite_is_written_as_null_and_scalar_tensors_as_numbers(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(1, {"a": math.nan, "b": torch.tensor(-math.inf), "c": torch.tensor(0.25), "d": [math.inf, 1.0]})
    assert "NaN" not in log.path.read_text() and "Infinity" not in log.path.read_text()
    assert read_metrics(log.path) == [{"step": 1, "a": None, "b": None, "c": 0.25, "d": [None, 1.0]}]


def test_truncating_drops_the_lines_after_the_step_and_writing_goes_on_there(tmp_path):
    log = MetricsLog(tmp_path)
    for step in range(1, 6):
        log.write(step, {"loss": float(step)})
    log.truncate(3)
    assert math.isnan(log.average("loss"))
    log.write(4, {"loss": 40.0})
    assert [(row["step"], row["loss"]) for row in read_metrics(log.path)] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_log_that_is_opened_again_is_continued(tmp_path):
    for step in (1, 2):
        log = MetricsLog(tmp_path)
        log.write(step, {})
    assert [row["step"] for row in read_metrics(log.path)] == [1, 2]


def test_a_torn_last_line_is_left_out_and_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1}]
    log = MetricsLog(tmp_path)
    log.write(2, {"loss": 1.0})
    assert read_metrics(path) == [{"step": 1}, {"step": 2, "loss": 1.0}]


def test_a_whole_last_line_that_lacks_only_its_end_is_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    log = MetricsLog(tmp_path)
    log.write(3, {})
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [("{broken", "not JSON"), ('{"loss": 1}', 'an integer "step"'), ("3", "3.*object")],
)
def test_a_broken_line_before_the_last_is_an_error_with_its_place(tmp_path, line, complaint):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(ValueError, match=rf"metrics\.jsonl:2.*{complaint}"):
        read_metrics(path)


def test_the_average_weighs_recent_values_and_skips_what_is_not_finite(tmp_path):
    log = MetricsLog(tmp_path, decay=0.5)
    assert math.isnan(log.average("loss"))
    log.write(1, {"loss": 1.0})
    assert log.average("loss") == 1.0
    log.write(2, {"loss": math.nan})
    log.write(3, {"loss": 4.0})
    # (0.5 * 1 + 4) / (0.5 + 1) = 3
    assert log.average("loss") == 3.0


def test_a_log_leaves_no_file_open(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        log = MetricsLog(tmp_path)
        log.write(1, {})
        log.truncate(1)
        log.flush()
        del log
        gc.collect()
    assert not [one for one in caught if str(tmp_path) in str(one.message)]


def test_memory_is_that_of_the_process_on_a_cpu_in_gib():
    # torch alone takes more than 50 MiB, and no test machine has 10 TiB.
    assert 0.05 < peak_memory_gib(torch.device("cpu")) < 10_000


def test_lines_of_another_run_are_refused(tmp_path):
    log = MetricsLog(tmp_path, run="a")
    log.write(1, {})
    assert read_metrics(log.path) == [{"step": 1, "run": "a"}]
    MetricsLog(tmp_path, run="a"), MetricsLog(tmp_path)
    with pytest.raises(ValueError, match="run a.*b"):
        MetricsLog(tmp_path, run="b")


def test_lines_that_are_missing_before_a_resumed_step_are_told(tmp_path, capsys):
    log = MetricsLog(tmp_path)
    for step in (1, 4, 5):
        log.write(step, {})
    log.truncate(1)
    assert capsys.readouterr().out == ""
    log.write(4, {})
    log.truncate(4)
    assert "the lines of 2 steps are lost, from step 2 on" in capsys.readouterr().out


def test_a_log_is_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed = []
    log = MetricsLog(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    log.flush()
    assert flushed == [log.path.stat().st_ino]
