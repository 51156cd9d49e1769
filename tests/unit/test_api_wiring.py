"""Every setting of a run reaches what it is for, and what a run was is in its summary."""

from __future__ import annotations

import json
import traceback
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from mmgrpo import api
from mmgrpo.advantages.estimate import AdvantageRecipe
from mmgrpo.api import PLAIN, Handmade
from mmgrpo.config.reading import build
from mmgrpo.config.settings import Algorithm, Data, Eval, Optim, Sections, config_class
from mmgrpo.data.splits import Splits
from mmgrpo.evaluation import EvalSettings
from mmgrpo.family import Settings, family
from mmgrpo.inputs import RunInputs
from mmgrpo.prompts.drawing import Sampling
from mmgrpo.rollout import RoundSettings
from mmgrpo.runtime.identity import Identity
from mmgrpo.runtime.progress import Checkpoints
from mmgrpo.scoring import Scorer
from mmgrpo.trainer import Trainer
from tests.building import first_number
from tests.toys import toy_policy, toy_prompts

SETTINGS = {"name": "mine", "steps": 7, "seed": 3, "trackers": [], "rewards": ["first_number"]}


def config(folder, **changes):
    return replace(config_class(PLAIN)(), output_dir=str(folder), **{**SETTINGS, **changes})


OFF_POLICY = "mmgrpo.objectives.surrogates:importance"


def test_every_setting_reaches_the_trainer(tmp_path, capsys):
    settings = config(
        tmp_path,
        algorithm=Algorithm(
            objective="gspo(low=0.1, high=0.1)",
            aggregation="per_decision",
            mismatch="tis(cap=3.0)",
            terms=["kl_velocity(coef=0.1)"],
            off_policy=OFF_POLICY,
            baseline="leave_one_out",
            sampler=["dynamic_sampling(rounds=4)"],
        ),
        optim=Optim(lr=0.5, updates=2, epochs=3),
        data=Data(prompts_per_step=6, group_size=5, prompts_at_once=2),
        eval=Eval(
            every=9,
            samples=8,
            seed=11,
            batch_size=12,
            prompts=1,
            groups=["level"],
            patience=18,
            patience_reward="first_number",
        ),
        steps=190,
        samples_shown=13,
        save_every=14,
        save_every_minutes=15.0,
        keep=16,
        groups_kept=17,
    )
    policy, prompts = toy_policy(), toy_prompts(4)
    splits = Splits(prompts[:2], prompts[2:3], {"more": prompts[3:]})
    accelerator = Accelerator(cpu=True)
    inputs = RunInputs(policy, splits, keys={"level": 4, "voice": 4}, rows=4)
    made: Any = api.make_trainer(settings, None, lambda _: inputs, [first_number], accelerator)
    out = capsys.readouterr().out
    assert "'voice'" in out and "'level'" not in out, "a column that divides the evaluation is read"
    folder = tmp_path / "mine"
    assert (made.policy, made.prompts, made.steps, made.seed) == (policy, prompts[:2], 190, 3)
    assert (made.folder, made.record.again, made.optim) == (folder, "resume=True", settings.optim)
    assert [scorer.name for scorer in made.scorers] == ["first_number"]
    sampling = Sampling.of(["dynamic_sampling(rounds=4)"])
    assert made.rounds == RoundSettings(prompts=6, group_size=5, prompts_at_once=2, samplers=sampling)
    stops = (18, "first_number")
    assert made.evaluation == EvalSettings(prompts[2:3], 9, 8, 11, 12, 13, {"more": prompts[3:]}, ["level"], *stops)
    loss = made.loss
    texts = [one.text for one in (loss.objective, loss.aggregation, loss.mismatch, *loss.terms, loss.off_policy)]
    assert texts == ["gspo(low=0.1, high=0.1)", "per_decision", "tis(cap=3.0)", "kl_velocity(coef=0.1)", OFF_POLICY]
    assert made.recipe.baseline.text == "leave_one_out"
    kept = made.checkpoints
    assert (kept.folder, kept.every, kept.every_minutes, kept.keep) == (folder, 14, 15.0, 16)
    identity = Identity.read(folder)
    assert identity and kept.run == identity.run != ""
    groups = made.record.groups
    assert (groups.folder, groups.kept, groups.steps, groups.per_round) == (folder, 17, 190, 6)
    assert made.record.write_samples(folder / "after", SimpleNamespace()) is None  # no family knows how


def test_six_frames_lead_from_train_to_the_first_backward(tmp_path, monkeypatch):
    def backward(self, loss):
        rooms = [frame for frame in traceback.extract_stack() if f"{Path(api.__file__).parent}/" in frame.filename]
        raise ZeroDivisionError(" ".join(frame.name for frame in rooms))

    monkeypatch.setattr(Accelerator, "backward", backward)
    options = {"steps": 1, "prompts_per_step": 2, "trackers": [], "output_dir": str(tmp_path)}
    with pytest.raises(ZeroDivisionError, match="^train execute fit run_round _step accumulate_gradients backward$"):
        api.train(toy_policy(), toy_prompts(2), [first_number], preset="flow_grpo", **options)


def test_the_metrics_of_a_run_are_those_of_its_file(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    assert [line["loss"] for line in api.Result(tmp_path, {}, toy_policy()).metrics] == [0.5, 0.25]


def test_a_run_of_a_handmade_policy_has_no_family_no_path_and_any_device():
    assert Handmade() == Handmade(family="", path="", device="auto")


def owner(**given):
    """A family of images, but for what is given."""
    return replace(family("sd3"), name="mine", **given)


def test_a_run_of_a_family_is_written_and_refused_as_the_family_says(tmp_path):
    def made(kind, preset="grpo"):
        theirs = owner(
            decisions=lambda config: kind,
            displayed=lambda: lambda medium: ("small", medium),
            write_samples=lambda stem, shown: (stem, shown),
        )
        settings, accelerator = config(tmp_path, algorithm=Algorithm(preset=preset)), Accelerator(cpu=True)
        inputs = RunInputs(toy_policy(), Splits(toy_prompts(2)))
        return api.make_trainer(settings, theirs, lambda _: inputs, [first_number], accelerator, "say it again")

    found: Any = made("gaussian")
    assert found.record.groups.displayed("an image") == ("small", "an image")
    assert found.record.write_samples(tmp_path, "shown") == (tmp_path, "shown") and found.record.again == "say it again"
    with pytest.raises(ValueError, match="'gfpo'"):
        made("gaussian", "gfpo")


@pytest.mark.parametrize(("terms", "kept"), [([], []), (["kl_velocity(coef=0.1)"], [True])])
def test_the_network_is_kept_for_a_term_that_compares_with_it_and_for_no_other(terms, kept, tmp_path, monkeypatch):
    policy, noted = toy_policy(), []
    keep = policy.keep_reference
    monkeypatch.setattr(policy, "keep_reference", lambda: (noted.append(True), keep())[1])
    settings = config(tmp_path, algorithm=Algorithm(terms=terms))
    inputs = RunInputs(policy, Splits(toy_prompts(2)))
    api.make_trainer(settings, None, lambda _: inputs, [first_number], Accelerator(cpu=True))
    assert noted == kept


class Started(Trainer):
    """What ``execute`` asks of a trainer."""

    def __init__(self, folder, checkpoint: bool) -> None:
        self.folder, self.policy, self.checkpoint = folder, toy_policy(), checkpoint
        self.checkpoints = Checkpoints(folder, Accelerator(cpu=True), run="5f0c")
        self.step, self.seconds, self.skipped, self.nonfinite_steps = 4, 1.23456, 2, 1
        self.resumed, self.scorers, self.recipe = [], [], AdvantageRecipe.of(Algorithm())

    def resume(self, last=None):
        self.resumed.append(last)
        return self.checkpoint

    def fit(self, model=None):
        self.step = 7
        return {"model": str(model)}


def ran(settings, monkeypatch, checkpoint=True, owner=None, main=True):
    """``execute`` with a trainer that is none, between 2 s and 5.45678 s."""
    folder = api.run_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    clock = iter([2.0, 5.45678])
    monkeypatch.setattr(
        "mmgrpo.report.hacking.alarms", lambda measured: [SimpleNamespace(as_dict=lambda: {"of": "it"})]
    )
    monkeypatch.setattr(api, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    trainer, begun, reports = Started(folder, checkpoint), [], []
    monkeypatch.setattr(api, "make_trainer", lambda *_: trainer)
    monkeypatch.setattr(api.tracking, "begin", lambda accelerator, config, step: begun.append((config, step)))
    monkeypatch.setattr("mmgrpo.report.html.write_report", reports.append)
    monkeypatch.setattr(Accelerator, "is_main_process", main)
    accelerator, ended = Accelerator(cpu=True), []
    monkeypatch.setattr(accelerator, "end_training", lambda: ended.append(True))
    monkeypatch.setattr(api, "begin", lambda config: (config, accelerator))
    monkeypatch.setattr(api, "claim", lambda config, accelerator: nullcontext())
    result = api.execute(settings, owner, lambda _: pytest.fail("not asked"), [first_number], "again")
    assert begun == [(settings, 4)] and ended == [True]
    assert (result.folder, result.policy) == (folder, trainer.policy)
    return result.summary, trainer.resumed, reports


def test_the_summary_is_what_the_run_was(tmp_path, monkeypatch):
    settings = config(tmp_path)
    summary, resumed, reports = ran(settings, monkeypatch)
    folder = tmp_path / "mine"
    assert summary == {
        **{"run": "5f0c", "modality": "", "family": "", "preset": "grpo", "preset_settings": {}},
        **{"steps": 7, "seed": 3},
        **{"seconds": 1.235, "wall_seconds": 3.457, "skipped_steps": 2, "nonfinite_steps": 1, "trained": {}},
        **{"model": str(folder / "model"), "alarms": [{"of": "it"}]},
    }
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (resumed, reports) == ([], [folder])


def test_a_family_says_its_modality_and_adds_to_the_summary(tmp_path, monkeypatch):
    theirs = owner(summary=lambda config, trainer: {"sum": trainer.step + config.seed})
    summary, _, _ = ran(config(tmp_path), monkeypatch, owner=theirs)
    assert (summary["modality"], summary["sum"]) == ("visual", 7 + 3)
    with pytest.raises(ValueError, match="JSON"):
        ran(config(tmp_path), monkeypatch, owner=owner(summary=lambda config, trainer: {"sum": float("nan")}))


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
        raise ZeroDivisionError

    monkeypatch.setattr(api, "make_trainer", look)
    settings = config(tmp_path, threads=threads, deterministic=deterministic)
    before = torch.are_deterministic_algorithms_enabled()
    with pytest.raises(ZeroDivisionError):
        api.execute(settings, None, lambda _: pytest.fail("not asked"), [first_number], "again")
    assert seen == [(3, deterministic or before)] and numbers == [threads] * bool(threads)


def test_the_accelerator_of_a_run_has_its_device_its_trackers_and_its_folder(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(api.devices, "accelerator", lambda *given, **more: asked.append((given, more)) or 1 / 0)
    for trackers, told in (([], None), (["tensorboard"], ["tensorboard"])):
        settings = config(tmp_path, trackers=trackers, model=Handmade(device="cpu"))
        with pytest.raises(ZeroDivisionError):
            api.execute(settings, None, lambda _: pytest.fail("it loads"), [first_number], "again")
        assert asked.pop() == (("cpu",), {"log_with": told, "project_dir": str(tmp_path)})


def test_a_folder_of_something_else_is_refused_before_there_is_an_accelerator(tmp_path, monkeypatch):
    monkeypatch.setattr(api.devices, "accelerator", lambda *_, **__: pytest.fail("it is made"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(FileExistsError, match="folder of a run"):
        api.execute(config(tmp_path), None, lambda _: pytest.fail("it loads"), [first_number], "again")


def test_what_cannot_start_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(api, "make_trainer", lambda *_: pytest.fail("it runs"))
    for changes, message in (({"steps": 0}, "steps.*0"), ({"resume_from": "step-000001"}, "step-000001")):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            api.execute(config(tmp_path, **changes), None, lambda _: pytest.fail("it loads"), [first_number], "again")
    assert list(tmp_path.iterdir()) == []


def test_groups_and_rewards_that_cannot_train_are_refused_before_a_model_is_loaded(tmp_path):
    settings = config(tmp_path)
    alone, unloaded = replace(settings, data=replace(settings.data, group_size=1)), lambda _: pytest.fail("it loads")
    with pytest.raises(ValueError, match=r"data\.group_size 1"):
        api.execute(alone, None, unloaded, [first_number], "again")
    with pytest.raises(ValueError, match="rewards: .* 0"):
        api.execute(settings, None, unloaded, [Scorer("first", first_number, weight=0.0)], "again")


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
    assert asked == [settings] and executed[0][3:] == (["first_number"], "", [])
    assert api.resume_command(settings) == f"mmgrpo train --config {tmp_path / 'mine' / 'config.yaml'} --resume"


@pytest.mark.parametrize(
    ("world", "here", "command"), [("4", "4", "mmgrpo launch --processes 4 "), ("8", "4", "mmgrpo train ")]
)
def test_a_run_goes_on_in_as_many_processes(world, here, command, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert api.resume_command(config(tmp_path)).startswith(command)


def executed(monkeypatch, prompts: Any = ("a", "b"), rewards: Any = (first_number,), policy: Any = None, **options):
    """What ``train`` executes: configuration, family, start, rewards, how to go on, and callbacks."""
    asked: list[Any] = []
    result = api.Result(Path(), {}, policy or toy_policy())
    monkeypatch.setattr(api, "execute", lambda *given: (asked.append(given), result)[1])
    assert api.train(result.policy, prompts, rewards, **options) is result
    return asked[0]


def test_a_call_without_settings_is_a_hundred_steps_of_grpo_in_groups_of_eight(monkeypatch):
    made, owner, _, rewards, again, callbacks = executed(monkeypatch)
    expected = config_class(PLAIN)(
        algorithm=build(Algorithm, {"preset": "grpo"}, "the test"),
        steps=100,
        data=Data(prompts_per_step=8, group_size=8),
        rewards=["first_number"],
    )
    assert (made, owner, rewards) == (expected, None, (first_number,))
    assert again == "the same call with resume=True, name='{name}'" and callbacks == ()


def test_every_argument_of_a_call_has_its_place_in_the_configuration(monkeypatch):
    made, *_ = executed(
        monkeypatch,
        prompts="train.jsonl",
        rewards=["task", first_number, Scorer("mine", first_number)],
        preset="rloo",
        steps=3,
        heldout=Path("held out"),
        group_size=5,
        prompts_per_step=6,
        algorithm={"scale": "group_std(ddof=0, eps=1e-4)"},
        optim={"lr": 0.5},
        evaluation={"every": 7},
        data={"extra_train": ["more.jsonl"], "prompts_at_once": 2},
        seed=4,
        name="mine",
    )
    assert made.data == Data(
        train="train.jsonl",
        extra_train=["more.jsonl"],
        heldout="held out",
        prompts_per_step=6,
        group_size=5,
        prompts_at_once=2,
    )
    assert (made.algorithm.preset, made.algorithm.baseline) == ("rloo", "leave_one_out")
    assert made.algorithm.scale == "group_std(ddof=0, eps=1e-4)"
    assert (made.optim, made.eval) == (Optim(lr=0.5), Eval(every=7))
    assert made.rewards == ["task", "first_number", "reward"]
    assert (made.steps, made.seed, made.name) == (3, 4, "mine")


@pytest.mark.parametrize("name", ["prompts", "heldout"])
@pytest.mark.parametrize("given", ["a.jsonl", "embedded:visual/scenes/train", "hf:folder@train", Path("folder/file")])
def test_the_path_of_a_file_is_written_down_and_leaves_no_rows(name, given, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(api, "load", lambda config, owner, make, rows: seen.append(rows))
    made, _, start, *_ = executed(monkeypatch, **{"prompts": ["a"], "heldout": ["b"], name: given})
    start(Accelerator(cpu=True))
    files = {"prompts": made.data.train, "heldout": made.data.heldout}
    rows = {"prompts": ["a"], "heldout": ["b"]}
    assert files == {**dict.fromkeys(files, ""), name: str(given)}
    assert seen == [{other: value for other, value in rows.items() if other != name}]


@pytest.mark.parametrize("name", ["prompts", "heldout"])
def test_a_text_that_is_no_path_is_one_prompt_in_place_of_a_list(name, monkeypatch):
    with pytest.raises(ValueError, match=f"^{name}.*'a red circle'"):
        executed(monkeypatch, **{name: "a red circle"})


@pytest.mark.parametrize("key", [*api.ELSEWHERE, "data.group_size", "algorithm.preset"])
def test_a_setting_that_has_another_place_is_refused_with_it(key, monkeypatch):
    section, _, name = key.rpartition(".")
    given: Any = {section: {name: 1}} if section else {name: 1}
    with pytest.raises(ValueError, match=f"^mmgrpo.train.*'{key}' {api.ELSEWHERE[key].partition(',')[0]}"):
        executed(monkeypatch, **given)


@pytest.mark.parametrize("section", ["algorithm", "optim", "evaluation"])
def test_a_setting_that_is_not_there_is_refused_with_its_section(section, monkeypatch):
    written = "eval" if section == "evaluation" else section
    with pytest.raises(ValueError, match=f"^mmgrpo.train.*'{written}.no_such'"):
        executed(monkeypatch, **{section: {"no_such": 1}})


def test_a_policy_of_a_family_brings_its_model_its_sampling_and_its_sections(monkeypatch):
    sections = Sections(model=Handmade, sampling=Handmade, rewards=("theirs",), samples_shown=3)
    kept = replace(config_class(sections)(), model=Handmade("mine", "there"), sampling=Handmade("fine"))
    policy, theirs = toy_policy(), owner(sections=sections)
    policy.settings = Settings(theirs, kept)
    made, of, start, *_ = executed(monkeypatch, policy=policy)
    assert (made.model, made.sampling, of) == (kept.model, kept.sampling, theirs)
    assert isinstance(made, config_class(sections)) and made.samples_shown == 3
    seen: list[Any] = []
    monkeypatch.setattr(api, "load", lambda config, owner, make, rows: seen.append((config, owner, make([]))))
    start(Accelerator(cpu=True))
    assert seen == [(made, theirs, policy)]


def test_a_command_loads_the_policy_that_its_family_makes_on_the_runs_device(tmp_path, monkeypatch):
    class Maker:
        def check(self, config):
            pass

        def policy(self, *given):
            made.append(given)
            return policy

    policy, owner, settings = toy_policy(), Maker(), config(tmp_path)
    asked: list[Any] = []
    made: list[Any] = []
    loaded: list[Any] = []

    def load(config, owner, make, inherited):
        loaded.append((config, owner, make(["p"])))
        return RunInputs(policy, Splits([]))

    monkeypatch.setattr(api, "family", lambda name: owner)
    monkeypatch.setattr(api, "execute", lambda *given: (asked.append(given), api.Result(tmp_path, {}, policy))[1])
    monkeypatch.setattr(api, "load", load)
    assert api.run_config(settings).folder == tmp_path
    assert asked[0][:2] == (settings, owner) and asked[0][2](Accelerator(cpu=True)).policy is policy
    assert (loaded, made) == ([(settings, owner, policy)], [(settings, "cpu", ["p"])])
