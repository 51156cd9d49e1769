"""The running averages that a progress bar shows, and what of a metric is written."""

from __future__ import annotations

import json
import math

import pytest
import torch

from mmgrpo.runtime.metrics import MetricsLog


def test_an_average_forgets_a_tenth_at_every_step_and_does_not_begin_at_zero(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(1, {"loss": 4.0})
    assert log.average("loss") == 4.0
    log.write(2, {"loss": 0.0})
    assert log.average("loss") == pytest.approx(0.9 * 4 / 1.9)
    log.write(3, {"loss": math.nan, "other": 1})  # not finite: not counted
    assert log.average("loss") == pytest.approx(0.9 * 4 / 1.9) and log.average("other") == 1
    assert math.isnan(log.average("nothing")) and math.isnan(log.average("step"))
    assert log.summary("loss", "reward/a/other") == "loss 1.895  other nan"


def test_a_metric_is_a_plain_value_also_inside_of_lists_and_mappings(tmp_path):
    log = MetricsLog(tmp_path)
    values = {"a": torch.tensor(0.5), "b": {"c": math.inf, 1: [True, None, "x", torch.tensor(math.nan)]}, "d": 3}
    log.write(7, values)
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 7, "a": 0.5, "b": {"c": None, "1": [True, None, "x", None]}, "d": 3}


def test_lines_after_a_step_are_removed_with_their_averages(tmp_path):
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.write(step, {"loss": float(step)})
    log.truncate(2)
    assert math.isnan(log.average("loss"))
    log.write(3, {"loss": 9.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 9.0)] and log.average("loss") == 9.0
