"""Runs that are cut off: killed, out of disk, or stopped and gone on with."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file

from tests.journeys.cli import quick
from tests.journeys.cli.running import COMMAND, call, environment, kill_at, metrics, run, summary
from tests.unit.runtime.trees import tree


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_numbers_of_an_uninterrupted_one(
    visual_run, words_folder, tmp_path
):
    options = quick.visual(words_folder, tmp_path)
    folder = tmp_path / "run"
    kill_at(1, folder, *options)  # before the first checkpoint
    kill_at(1, folder, *options, "--resume")  # while it starts: the line of before is still there
    kill_at(6, folder, *options, "--resume")
    assert (folder / "checkpoints" / "step-000004").is_dir() and not (folder / "summary.json").exists()
    call("train", *options, "--resume")
    assert metrics(folder) == metrics(visual_run)
    assert summary(folder)["eval"] == summary(visual_run)["eval"]
    for name in ("weights", "optimizer", "ema"):
        file = f"checkpoints/step-000012/{name}.safetensors"
        assert (folder / file).read_bytes() == (visual_run / file).read_bytes()


@pytest.mark.slow
def test_a_run_that_cannot_write_its_checkpoint_says_so_and_resumes_from_the_last(visual_run, words_folder, tmp_path):
    shutil.copytree(visual_run, tmp_path / "run")
    options = [*quick.visual(words_folder, tmp_path), "--resume", "--steps", 14]
    process = run(COMMAND, "train", *options, ok=False, limit=100_000)
    assert process.returncode == 2 and "Traceback" not in process.stderr
    assert process.stderr.strip().splitlines()[-1].startswith("error: ")
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-000008", "step-000012"]
    call("train", *options)
    assert metrics(tmp_path / "run")[:12] == metrics(visual_run)
    assert [line["step"] for line in metrics(tmp_path / "run")] == list(range(1, 15))


@pytest.mark.slow
def test_a_run_of_a_model_that_looks_resumes_to_the_numbers_of_an_uninterrupted_one(
    vlm_run, qwen_folder, media, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = quick.vlm_run(qwen_folder, media, tmp_path)
    folder = tmp_path / "run"
    call("train", *options, "--steps", 4)
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000002", "step-000004"]
    call("train", *options, "--resume")
    assert metrics(folder) == metrics(vlm_run)
    assert summary(folder)["eval"] == summary(vlm_run)["eval"]
    assert summary(folder)["blind"] == summary(vlm_run)["blind"]
    file = "checkpoints/step-000006/weights.safetensors"
    assert (folder / file).read_bytes() == (vlm_run / file).read_bytes()


@pytest.mark.slow
def test_tensorboard_has_every_step_once_after_a_resume(words_folder, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = [*quick.visual(words_folder, tmp_path), "--trackers", "tensorboard", "--save-every", 4]
    call("train", *options, "--steps", 6)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000006")
    call("train", *options, "--steps", 9, "--resume")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard" / "mmgrpo"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 10))
    assert any(name.startswith("eval/") for name in events.Tags()["scalars"])
    assert [event.step for event in events.Images("eval/samples")] == [0, 9]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_on_resume_and_the_result_is_that_of_an_undamaged_run(
    visual_run, words_folder, tmp_path, capsys
):
    shutil.copytree(visual_run, tmp_path / "run")
    path = tmp_path / "run" / "checkpoints" / "step-000012" / "ema.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    call("train", *quick.visual(words_folder, tmp_path), "--resume")
    assert "step-000012/ema.safetensors is damaged" in capsys.readouterr().out
    assert metrics(tmp_path / "run") == metrics(visual_run)
    assert summary(tmp_path / "run")["eval"] == summary(visual_run)["eval"]


@pytest.mark.slow
@pytest.mark.nightly  # in small: tests/unit/runtime/test_lock.py
def test_two_runs_never_write_into_one_folder(words_folder, tmp_path):
    options = quick.visual(words_folder, tmp_path, "--steps", 10**6)  # it goes on until it is stopped
    quiet = subprocess.DEVNULL
    first = subprocess.Popen([*COMMAND, "train", *map(str, options)], env=environment(), stdout=quiet, stderr=quiet)
    try:
        while not (tmp_path / "run" / "metrics.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        for how in ("--resume", "--overwrite"):
            with pytest.raises(OSError, match=f"process {first.pid}"):
                call("train", *options, how)
    finally:
        first.terminate()
    assert first.wait() == 143
    before = len(metrics(tmp_path / "run"))
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert saved == f"step-{before:06d}" and not (tmp_path / ".run.lock").exists()


@pytest.mark.slow
def test_changed_prompts_weights_and_settings_are_noticed_on_resume(words_folder, tmp_path):
    prompts = tmp_path / "prompts.txt"
    words = ("cat", "dog", "fish", "hat", "key", "map", "moon", "circle")
    prompts.write_text("".join(f"a red {word}\n" for word in words))
    model = shutil.copytree(words_folder, tmp_path / "model")
    options = [*quick.visual(model, tmp_path, "--data.train", prompts), "--steps", 2, "--eval.prompts", 1]
    call("train", *options)
    before = tree(tmp_path / "run")
    again = [*options, "--resume", "--steps", 4]

    def refused(message, *more):
        with pytest.raises(ValueError, match=message):
            call("train", *again, *more)

    refused("data.group_size", "--data.group-size", 8)
    prompts.write_text(prompts.read_text().replace("red fish", "blue fish"))
    refused("prompts.*'train'")
    prompts.write_text(prompts.read_text().replace("blue fish", "red fish"))
    file = next(model.rglob("transformer/*.safetensors"))
    content = file.read_bytes()
    file.write_bytes(content[:-2000] + bytes(2000))
    refused("model.path")
    file.write_bytes(content)
    after = tree(tmp_path / "run")
    assert after == before
    call("train", *again)
    assert len(metrics(tmp_path / "run")) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["continue", pytest.param("merge", marks=pytest.mark.nightly)])
def test_a_run_that_begins_with_existing_adapters_resumes_to_the_numbers_of_an_uninterrupted_one(
    mode, words_folder, tmp_path
):
    def options(name, steps, *more):
        return [*quick.visual(words_folder, tmp_path), "--name", name, "--steps", steps, *more]

    call("train", *options("first", 2, "--model.lora-rank", 2))
    given = ["--model.lora-path", tmp_path / "first" / "model", "--model.lora-mode", mode, "--model.lora-rank", 3]
    given += ["--algorithm.terms", "kl_velocity(coef=0.1)", "--save-every", 2]
    call("train", *options("whole", 4, *given))
    call("train", *options("parts", 2, *given))
    call("train", *options("parts", 4, *given, "--resume"))
    assert metrics(tmp_path / "parts") == metrics(tmp_path / "whole")
    kl = [line["kl"] for line in metrics(tmp_path / "whole")]
    assert kl[0] == 0 < kl[-1]  # the reference has the given adapters
    for file in ("model/pytorch_lora_weights.safetensors", "checkpoints/step-000004/weights.safetensors"):
        parts, whole = (load_file(tmp_path / run / file) for run in ("parts", "whole"))  # a header has no order
        assert parts.keys() == whole.keys() and all(torch.equal(value, whole[name]) for name, value in parts.items())
