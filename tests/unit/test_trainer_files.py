"""What a run tells and writes, when, and on which process; what one optimizer step does and leaves undone."""

from __future__ import annotations

import json
import math
import re
import signal
from dataclasses import replace

import pytest
from accelerate import Accelerator

from mmgrpo.evaluation import Evaluation
from mmgrpo.report import run_record
from mmgrpo.report.run_record import GroupRecord
from mmgrpo.runtime import metrics
from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.progress import Interrupted
from tests.building import recipe, trainer
from tests.toys import toy_policy, toy_prompts
from tests.unit.report.test_tracking import Kept


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def made_with(folder, **settings):
    made = trainer(toy_policy(steps=3), folder / "run", toy_prompts(2), **settings)
    made.record.groups = GroupRecord(folder / "run", kept=9, steps=made.steps, per_round=made.optim.steps_per_round)
    made.checkpoints.folder = folder / "run"
    return made


def test_a_run_writes_its_groups_metrics_evaluations_checkpoints_and_model_in_their_places(tmp_path, capsys):
    kept = Kept()
    accelerator = Accelerator(cpu=True, log_with=[kept])
    accelerator.init_trackers("demo")
    made = made_with(tmp_path, heldout=toy_prompts(3), every=2, steps=4, save_every=3, accelerator=accelerator)
    made.checkpoints.run, stems = "5f0c", []
    made.record.write_samples = lambda stem, shown: stems.append((stem, len(shown.prompts)))
    made.fit(tmp_path / "run" / "model")
    titles = ["before", "step-000002", "after"]
    assert stems == [(tmp_path / "run" / "samples" / title, 3) for title in titles]
    assert sorted(path.stem for path in (tmp_path / "run" / "evaluations").iterdir()) == sorted(titles)
    record = json.loads((tmp_path / "run" / "evaluations" / "step-000002.json").read_text())
    assert (record["run"], record["step"], record["prompts"], record["trained"]) == ("5f0c", 2, [*"012"], {"reward": 1})
    assert 0 < record["seconds"] <= made.seconds and len(record["values"]["reward"]) == 3
    assert [(line["step"], line["run"]) for line in lines(tmp_path / "run")] == [(step, "5f0c") for step in range(1, 5)]
    groups = sorted(path.name for path in (tmp_path / "run" / "groups").iterdir())
    assert groups == [f"step-{step:06d}" for step in range(4)]
    places = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert places == ["step-000003", "step-000004"]
    assert json.loads((tmp_path / "run" / "model" / "run.json").read_text())["step"] == 4
    sent = [(step, "loss" in values, "eval/reward" in values) for step, values in kept.values]
    assert sent == [(0, False, True), (1, True, False), (2, True, False), (2, False, True)] + [
        *((3, True, False), (4, True, False), (4, False, True))
    ]
    told = capsys.readouterr().err
    assert re.search(r"train: 4 of 4, .*, reward -?\d", told), "the line shows the reward"


def test_a_process_that_is_not_the_main_one_writes_and_tells_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    made = made_with(tmp_path, heldout=toy_prompts(3), every=1, steps=2, save_every=1)
    made.record.write_samples = lambda stem, shown: pytest.fail("samples are written")
    made.fit(tmp_path / "run" / "model")
    assert not made.resume() and made.step == 2 and not (tmp_path / "run").exists()
    made._rescue(RuntimeError("a reward"))
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_resumed_run_drops_the_groups_of_the_steps_that_it_repeats_and_its_bar_begins_where_it_goes_on(
    tmp_path, capsys
):
    made = made_with(tmp_path, steps=4, save_every=2)
    made.run_round(), made.run_round(), made.save()
    made.run_round()
    assert capsys.readouterr().err == "", "a round by itself has no bar"
    again = made_with(tmp_path, steps=4)
    assert again.resume() and len(lines(tmp_path / "run")) == 2
    assert sorted(path.name for path in (tmp_path / "run" / "groups").iterdir()) == ["step-000000", "step-000001"]
    again.fit()
    assert "train: 4 of 4, " in capsys.readouterr().err


def test_sampling_is_counted_once_in_a_round_of_several_epochs_and_updates(tmp_path):
    trainer(toy_policy(steps=3), tmp_path, toy_prompts(2), steps=3, epochs=2, updates=2).fit()
    assert [line["time/rollout"] > 0 for line in lines(tmp_path)] == [True, False, False], "three of four steps"


@pytest.mark.parametrize(("limit", "cut"), [(1e-4, True), (1e4, False), (0.0, False)])
def test_the_gradient_is_scaled_down_to_its_largest_norm(limit, cut, tmp_path):
    made, norms = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2), steps=1, max_grad_norm=limit), []
    made.optimizer.step = lambda: norms.append(
        math.sqrt(sum(float(p.grad.square().sum()) for p in made.trained.values()))
    )
    made.fit()
    [line] = lines(tmp_path)
    assert line["grad_norm"] > 1e-3
    assert norms == [pytest.approx(limit if cut else line["grad_norm"], rel=1e-3)]


def test_a_step_without_decisions_does_not_reach_the_optimizer(tmp_path):
    made = trainer(
        toy_policy(steps=3),
        tmp_path,
        toy_prompts(2),
        reward=lambda prompts, outputs: [1.0] * len(outputs),
        advantages=recipe(select=["drop_zero_spread"]),
        steps=1,
    )
    made.optimizer.step = lambda: pytest.fail("the optimizer steps")
    made.fit()
    [line] = lines(tmp_path)
    assert (line["loss"], line["clip/low"], line["clip/high"], line["grad_norm"]) == (0, 0, 0, 0)


def test_either_a_loss_or_a_gradient_that_is_not_finite_skips_the_step(tmp_path, monkeypatch):
    def broken_gradient(made):
        made.policy.network.outer.weight.register_hook(lambda gradient: gradient * math.nan)

    def broken_loss(made):
        sums = metrics.sum_by_name
        monkeypatch.setattr(metrics, "sum_by_name", lambda *given: {**sums(*given), "loss": math.nan})

    for name, damage in (("gradient", broken_gradient), ("loss", broken_loss)):
        made = trainer(toy_policy(steps=3), tmp_path / name, toy_prompts(2), steps=1)
        damage(made)
        made.optimizer.step = lambda: pytest.fail("the optimizer steps")
        made.fit()
        [line] = lines(tmp_path / name)
        assert line["nonfinite"] == made.nonfinite_row == 1
        assert (line["loss"] is None) == (name == "loss") and (line["grad_norm"] is None) == (name == "gradient")


def test_clips_are_shares_of_decisions_also_of_a_single_one(tmp_path, monkeypatch):
    made = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2), steps=1)
    monkeypatch.setattr(
        metrics,
        "sum_by_name",
        lambda _, names, __: dict.fromkeys(names, 0.0) | {"loss": 0.5, "entries": 1.0, "clip/low": 1.0},
    )
    made.fit()
    [line] = lines(tmp_path)
    assert (line["loss"], line["clip/low"], line["clip/high"]) == (0.5, 1, 0)


def test_an_evaluation_that_was_made_is_no_longer_due(tmp_path):
    made, measured = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2)), []
    made.measure = lambda title, prompts: (measured.append(title), Evaluation({}))[1]
    assert made.evaluation_due is False
    made.evaluation_due, made.step = True, 7
    made._evaluate_between(), made._evaluate_between()
    assert measured == ["step-000007"]


def test_evaluations_come_in_the_first_round_that_passes_a_multiple_and_not_at_the_end(tmp_path):
    made = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2), heldout=toy_prompts(2), every=2, steps=9, epochs=3)
    made.fit()
    names = {path.stem for path in (tmp_path / "evaluations").iterdir()}
    assert names == {"before", "step-000003", "step-000006", "after"}


def test_only_held_out_prompts_have_a_say_in_alarms(tmp_path, monkeypatch):
    alarmed = []
    monkeypatch.setattr(run_record, "print_alarms", lambda folder, step: alarmed.append(step))
    made = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2), heldout=toy_prompts(2))
    made.measure("before-other", toy_prompts(3))
    assert alarmed == []
    made.measure("before", made.evaluation.prompts)
    assert alarmed == [0]


def test_prompts_that_do_not_divide_among_processes_are_refused_before_anything_is_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(ValueError, match="prompts.*2.*3"):
        trainer(toy_policy(steps=3), tmp_path, toy_prompts(4), heldout=toy_prompts(2), prompts_per_step=3)


@pytest.mark.parametrize(("ranks", "left"), [(1, True), (2, False)])
def test_a_signal_leaves_work_that_changes_nothing_where_no_other_process_waits(ranks, left, tmp_path, monkeypatch):
    monkeypatch.setattr(Accelerator, "num_processes", ranks)
    made = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2))
    reached = False
    with made.interruption:
        try:
            with made.interruption.at_once():
                signal.raise_signal(signal.SIGTERM)
                reached = True
        except Interrupted:
            pass
    assert reached != left and made.interruption.requested == signal.SIGTERM


def test_a_signal_that_reached_another_rank_stops_this_one_after_its_round(tmp_path, monkeypatch):
    made = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2))
    monkeypatch.setattr("mmgrpo.trainer.largest", lambda value, accelerator: value + signal.SIGTERM)
    with pytest.raises(Interrupted) as stop:
        made.fit()
    assert stop.value.status == 128 + signal.SIGTERM
    assert 0 < made.step == made.checkpoints.saved < made.steps


def test_a_policy_with_nothing_to_train_is_refused(tmp_path):
    policy = toy_policy()
    policy.network.requires_grad_(False)
    with pytest.raises(ValueError, match="trainable"):
        trainer(policy, tmp_path, toy_prompts(2))


def test_weights_that_diverged_are_not_saved_and_a_checkpoint_that_cannot_be_written_hides_no_error(tmp_path, capsys):
    made = trainer(toy_policy(steps=3), tmp_path, toy_prompts(2))
    made.step = 1

    def full():
        raise OSError("no space")

    made.save = full
    made._rescue(NotFinite("the weights"))
    assert capsys.readouterr().out == ""
    made._rescue(RuntimeError("a reward"))
    assert capsys.readouterr().out == "no checkpoint could be written: no space\n"


def test_a_run_that_shows_no_samples_writes_none(tmp_path):
    made = trainer(toy_policy(steps=4), tmp_path, toy_prompts(2), heldout=toy_prompts(1), steps=1)
    made.evaluation, made.record.write_samples = replace(made.evaluation, shown=0), None
    assert made.fit()["eval"]["after"]["reward"]["n"] == 1
