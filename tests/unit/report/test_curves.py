"""Which curves a report draws."""

from __future__ import annotations

import pytest

from mmgrpo.report.html import curves
from mmgrpo.report.run_folder import read_run
from mmgrpo.runtime.metrics import MetricsLog

ROW = {"reward/a/mean": 0.5, "reward/a/std": 0.1, "reward/a/failed": 0.0, "other/mean": 1.0, "loss": 0.3, "kl": 0.0}


def titles(folder, **more) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("name: trial\n")
    log = MetricsLog(folder)
    for step in (1, 2):
        log.write(step, {**ROW, **more})
    return [one.title for one in curves(read_run(folder))]


def test_rewards_are_drawn_by_their_means_and_what_is_always_zero_is_not(tmp_path):
    drawn = titles(tmp_path / "a")
    assert "a" in drawn and not {"reward/a/std", "reward/a/failed", "other/mean", "kl", "loss"} & {*drawn}
    assert "kl" in titles(tmp_path / "b", kl=0.25)


def test_a_run_without_anything_else_shows_its_loss(tmp_path):
    (tmp_path / "config.yaml").write_text("name: trial\n")
    log = MetricsLog(tmp_path)
    log.write(1, {"loss": 0.5, "steps": 3})
    assert [one.title for one in curves(read_run(tmp_path))] == ["loss"]


@pytest.mark.parametrize("name", ["grad_norm", "clip/high"])
def test_what_shows_the_state_of_training_is_drawn(name, tmp_path):
    assert name in titles(tmp_path / "c", **{name: 0.5})


def test_a_step_that_no_curve_can_place_exactly_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text("name: trial\n")
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": {2**53 - 1}}}\n')
    assert read_run(tmp_path).metrics[0]["step"] == 2**53 - 1
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": {2**53}}}\n')
    with pytest.raises(ValueError, match="'step': got"):
        read_run(tmp_path)


@pytest.mark.parametrize(("values", "drawn"), [((0.0, 0.25), True), ((0.25, None), True), ((None, 0.0), False)])
def test_what_is_zero_at_some_steps_only_is_drawn(tmp_path, values, drawn):
    (tmp_path / "config.yaml").write_text("name: trial\n")
    log = MetricsLog(tmp_path)
    for step, value in enumerate(values, start=1):
        log.write(step, {"kl": value, "loss": 0.5})
    assert [one.title for one in curves(read_run(tmp_path))] == ["kl" if drawn else "loss"]
