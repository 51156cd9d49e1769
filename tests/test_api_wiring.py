"""Every setting of a run reaches what it is for, and what a run was is in its summary."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator

from mmgrpo import api
from mmgrpo.api import PLAIN, Handmade
from mmgrpo.data.inputs import RunInputs
from mmgrpo.data.splits import Splits
from mmgrpo.evaluation import EvalSettings
from mmgrpo.rollout import RoundSettings
from mmgrpo.runtime.config import Algorithm, Data, Eval, Optim, config_class
from mmgrpo.runtime.identity import Identity
from tests.building import first_number
from tests.toys import toy_policy, toy_prompts

SETTINGS = {"name": "mine", "steps": 7, "seed": 3, "trackers": [], "rewards": ["first_number"]}


def config(folder, **changes):
    return replace(config_class(PLAIN)(), output_dir=str(folder), **{**SETTINGS, **changes})


def test_every_setting_reaches_the_trainer(tmp_path):
    settings = config(
        tmp_path,
        algorithm=Algorithm(
            objective="gspo(low=0.1, high=0.1)",
            aggregation="per_decision",
            mismatch="tis(cap=3.0)",
            terms=["kl_velocity(coef=0.1)"],
            off_policy="luffy",
            baseline="leave_one_out",
            sampler=["dynamic_sampling(rounds=4)"],
        ),
        optim=Optim(lr=0.5, updates=2, epochs=3),
        data=Data(prompts_per_step=6, group_size=5, prompts_at_once=2),
        eval=Eval(every=9, samples=8, seed=11, batch_size=12, prompts=1),
        samples_shown=13,
        save_every=14,
        save_every_minutes=15.0,
        keep=16,
        groups_kept=17,
    )
    policy, prompts = toy_policy(), toy_prompts(4)
    splits = Splits(prompts[:2], prompts[2:3], {"more": prompts[3:]})
    accelerator = Accelerator(cpu=True)
    made = api.make_trainer(settings, None, lambda _: RunInputs(policy, splits), [first_number], accelerator)
    folder = tmp_path / "mine"
    assert (made.policy, made.prompts, made.steps, made.seed) == (policy, prompts[:2], 7, 3)
    assert (made.folder, made.again, made.optim) == (folder, "resume=True", settings.optim)
    assert [scorer.name for scorer in made.scorers] == ["first_number"]
    assert made.rounds == RoundSettings(prompts=6, group_size=5, redraws=4, prompts_at_once=2)
    assert made.evaluation == EvalSettings(prompts[2:3], 9, 8, 11, 12, 13, {"more": prompts[3:]})
    loss = made.loss
    texts = [one.text for one in (loss.objective, loss.aggregation, loss.mismatch, *loss.terms, loss.off_policy)]
    assert texts == ["gspo(low=0.1, high=0.1)", "per_decision", "tis(cap=3.0)", "kl_velocity(coef=0.1)", "luffy"]
    assert made.recipe.baseline.text == "leave_one_out"
    kept = made.checkpoints
    assert (kept.folder, kept.every, kept.every_minutes, kept.keep) == (folder, 14, 15.0, 16)
    assert kept.run == Identity.read(folder).run != ""
    groups = made.groups
    assert (groups.folder, groups.kept, groups.steps, groups.per_round) == (folder, 17, 7, 6)
    assert made.write_samples(folder / "after", SimpleNamespace()) is None  # no family knows how


def test_a_run_of_a_handmade_policy_has_no_family_no_path_and_any_device():
    assert Handmade() == Handmade(family="", path="", device="auto")


class Started:
    """What ``run`` asks of a trainer."""

    def __init__(self, folder, checkpoint: bool) -> None:
        self.folder, self.policy, self.checkpoint = folder, toy_policy(), checkpoint
        self.checkpoints = SimpleNamespace(run="5f0c")
        self.step, self.seconds, self.skipped, self.nonfinite_steps = 4, 1.23456, 2, 1
        self.resumed = []

    def resume(self, last):
        self.resumed.append(last)
        return self.checkpoint

    def fit(self, model):
        self.step = 7
        return {"model": str(model)}


def ran(settings, monkeypatch, checkpoint=True, owner=None, main=True):
    """``run`` of a trainer that is none, between 2 s and 5.45678 s."""
    folder = api.run_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    clock = iter([2.0, 5.45678])
    monkeypatch.setattr(api, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    trainer, begun, reports = Started(folder, checkpoint), [], []
    monkeypatch.setattr(api, "make_trainer", lambda *_: trainer)
    monkeypatch.setattr(api.tracking, "begin", lambda accelerator, config, step: begun.append((config, step)))
    monkeypatch.setattr("mmgrpo.report.html.write_report", reports.append)
    monkeypatch.setattr(Accelerator, "is_main_process", main)
    accelerator, ended = Accelerator(cpu=True), []
    monkeypatch.setattr(accelerator, "end_training", lambda: ended.append(True))
    result = api.run(settings, owner, lambda _: pytest.fail("not asked"), [first_number], accelerator, "again")
    assert begun == [(settings, 4)] and ended == [True]
    assert (result.folder, result.policy) == (folder, trainer.policy)
    return result.summary, trainer.resumed, reports


def test_the_summary_is_what_the_run_was(tmp_path, monkeypatch):
    settings = config(tmp_path)
    summary, resumed, reports = ran(settings, monkeypatch)
    folder = tmp_path / "mine"
    assert summary == {
        **{"run": "5f0c", "modality": "", "family": "", "preset": "grpo", "steps": 7, "seed": 3},
        **{"seconds": 1.235, "wall_seconds": 3.457, "skipped_steps": 2, "nonfinite_steps": 1},
        **{"model": str(folder / "model"), "alarms": []},
    }
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (resumed, reports) == ([], [folder])


def test_another_process_of_the_run_writes_neither_summary_nor_report(tmp_path, monkeypatch):
    summary, _, reports = ran(config(tmp_path), monkeypatch, main=False)
    assert "alarms" not in summary and reports == [] and list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "last"), [({"resume": True}, None), ({"resume_from": "step-000040"}, 40), ({}, "nothing")]
)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_goes_on_where_it_is_told_to(changes, last, checkpoint, tmp_path, monkeypatch, capsys):
    _, resumed, _ = ran(config(tmp_path, **changes), monkeypatch, checkpoint)
    assert resumed == ([] if last == "nothing" else [last])
    told = "has no checkpoint yet; starting from the beginning" in capsys.readouterr().out
    assert told == (not checkpoint and last != "nothing")


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("threads", [0, 3])
def test_threads_seed_and_kernels_are_set_before_anything_is_made(deterministic, threads, tmp_path, monkeypatch):
    seen, numbers = [], []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)

    def look(*given):
        seen.append((torch.initial_seed(), torch.are_deterministic_algorithms_enabled()))
        return api.Result(tmp_path, {}, toy_policy())

    monkeypatch.setattr(api, "run", look)
    settings = config(tmp_path, threads=threads, deterministic=deterministic)
    before = torch.are_deterministic_algorithms_enabled()
    api.execute(settings, None, lambda _: pytest.fail("not asked"), [first_number], "again")
    assert seen == [(3, deterministic or before)] and numbers == [threads] * bool(threads)


def test_what_cannot_start_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "run", lambda *_: pytest.fail("it runs"))
    for changes, message in (({"steps": 0}, "steps: got 0"), ({"resume_from": "step-000001"}, "contains no run")):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            api.execute(config(tmp_path, **changes), None, lambda _: pytest.fail("it loads"), [first_number], "again")
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_is_checked_by_its_family_and_told_how_to_go_on(tmp_path, monkeypatch):
    class Checked:
        def check(self, config):
            asked.append(config)

    asked, executed = [], []
    monkeypatch.setattr(api, "family", lambda name: Checked())
    monkeypatch.setattr(
        api, "execute", lambda *given: (executed.append(given), api.Result(tmp_path, {}, toy_policy()))[1]
    )
    settings = config(tmp_path)
    api.run_config(settings)
    assert asked == [settings] and executed[0][3] == ["first_number"]
    assert executed[0][4] == f"mmgrpo train --config {tmp_path / 'mine' / 'config.yaml'} --resume"
