"""What the optimizer is given, and what a stop leaves behind: the values in use, not those that are reported."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from types import SimpleNamespace

import pytest
from accelerate import Accelerator

from mmgrpo.runtime.finite import NotFinite
from mmgrpo.runtime.progress import Interrupted, Interruption, before_start
from pipelines.options import ModelOptions
from pipelines.training import Training
from tests.building import trainer
from tests.toys import toy_policy, toy_prompts


def test_the_optimizer_steps_at_the_rate_of_the_schedule(tmp_path):
    made = trainer(toy_policy(steps=5), tmp_path, toy_prompts(2), steps=4, lr=8e-3, decay="linear")
    rates, step = [], made.optimizer.step

    def noted(*arguments):
        rates.append([group["lr"] for group in made.optimizer.param_groups])
        return step(*arguments)

    made.optimizer.step = noted
    made.fit()
    assert rates == [pytest.approx([rate]) for rate in (8e-3, 6e-3, 4e-3, 2e-3)]


def test_metrics_are_on_the_disk_before_the_checkpoint_that_follows_them(tmp_path):
    made, order = trainer(toy_policy(), tmp_path, toy_prompts(2)), []
    assert made.at_boundary, "the weights before the first round may be saved"
    made.record.log = SimpleNamespace(flush=lambda: order.append("metrics"))
    made.checkpoints = SimpleNamespace(save=lambda step, *_: order.append(("checkpoint", step)))
    made.save()
    assert order == ["metrics", ("checkpoint", 0)]


@pytest.mark.parametrize(
    ("error", "at_boundary", "ranks", "saved"),
    [
        (RuntimeError("a reward"), True, 1, [3]),
        (NotFinite("the loss"), True, 1, []),  # weights that have diverged are not kept
        (RuntimeError("a reward"), False, 1, []),  # nor those of half a round
        (RuntimeError("a reward"), True, 2, []),  # nor without the other ranks
    ],
)
def test_what_can_be_saved_is_saved_before_an_error_ends_the_run(
    error, at_boundary, ranks, saved, tmp_path, monkeypatch, capsys
):
    made, found = trainer(toy_policy(), tmp_path, toy_prompts(2)), []
    made.step, made.at_boundary, made.record.again = 3, at_boundary, "mmgrpo train"
    made.save = lambda: found.append(made.step)
    monkeypatch.setattr(Accelerator, "num_processes", ranks)
    made._rescue(error)
    assert found == saved and capsys.readouterr().out == ""
    made.checkpoints.saved = 3
    made._rescue(error)
    assert found == saved, "what is saved already is not saved again"
    assert "step-000003 is the newest checkpoint; resume with: mmgrpo train" in capsys.readouterr().out


@pytest.mark.parametrize(("step", "told"), [(0, True), (3, False)])
def test_a_stop_before_a_step_says_that_nothing_is_lost_and_how_to_go_on(step, told, tmp_path, monkeypatch, capsys):
    made = trainer(toy_policy(), tmp_path, toy_prompts(2))
    made.step, made.record.again = step, "mmgrpo train --resume"
    monkeypatch.setattr(Accelerator, "num_processes", 2)  # where no rank saves by itself
    made._rescue(Interrupted(signal.SIGINT))
    assert capsys.readouterr().out.rstrip().endswith("mmgrpo train --resume") == told


def test_a_stop_while_a_run_is_loaded_says_that_nothing_is_lost():
    with pytest.raises(KeyboardInterrupt, match="nothing is lost"), before_start():
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="^as it is$"), before_start():
        raise ValueError("as it is")


@pytest.mark.parametrize("every", [1, 100])
def test_a_stop_saves_the_step_that_it_reached_once(every, tmp_path):
    made = trainer(toy_policy(steps=5), tmp_path, toy_prompts(2), steps=4, save_every=every)
    saved, save, step = [], made.save, made.optimizer.step
    made.optimizer.step = lambda *arguments: (signal.raise_signal(signal.SIGTERM), step(*arguments))[1]
    made.save = lambda: (saved.append(made.step), save())[1]
    with pytest.raises(Interrupted):
        made.fit()
    assert saved == [1]


def test_work_that_may_be_left_anywhere_does_not_begin_after_a_signal():
    asked, begun = Interruption(), []
    asked.requested = signal.SIGINT
    with pytest.raises(Interrupted) as stop, asked.at_once():
        begun.append(True)
    assert stop.value.status == 130 and begun == []


def test_every_option_of_a_model_reaches_its_training():
    changed = {"lora_rank": 3, "lora_alpha": 5.0, "lora_targets": ["to_q"], "dtype": "bfloat16", "quantize": "4bit"}
    changed["allow_pickle"] = True
    again = {"gradient_checkpointing": True, "offload_activations": True}
    options = ModelOptions(**changed, **again)
    training = Training.of(options, seed=7, device="cuda:1", weights="w")
    assert {f.name: getattr(training, f.name) for f in fields(Training)} == {
        **changed,
        "lora_targets": ("to_q",),
        **again,
        "lora_seed": 7,
        "device": "cuda:1",
        "weights": "w",
        "sharded": False,
        "lora": None,
    }
    sampling = Training.of(options, seed=7, device="cpu", training=False)
    assert not sampling.gradient_checkpointing and not sampling.offload_activations


def test_handlers_of_signals_come_back_and_nothing_ends_a_process_that_went_on():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interruption(grace=600.0) as asked:
        assert asked.requested == 0
        asked.check()
        signal.raise_signal(signal.SIGTERM)
        assert asked.requested == signal.SIGTERM and asked._timer is not None
        assert asked._timer.interval == 600.0 and asked._timer.daemon and asked._timer.is_alive()
        with pytest.raises(Interrupted, match="SIGTERM") as stop:
            asked.check()
    assert stop.value.status == 143
    asked._timer.join(30)
    assert not asked._timer.is_alive()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_after_work_that_may_be_left_anywhere_a_signal_waits_again():
    with Interruption() as asked:
        with asked.at_once():
            pass
        signal.raise_signal(signal.SIGINT)  # raises nothing here
        assert asked.requested == signal.SIGINT


def test_outside_of_the_main_thread_nothing_is_noted():
    before = signal.getsignal(signal.SIGTERM)

    def enter():
        with Interruption() as asked:
            return asked._before, signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enter).result() == ({}, before)
