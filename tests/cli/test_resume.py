"""Runs that are cut off: killed, out of disk, or stopped and gone on with."""

from __future__ import annotations

import shutil

import pytest

from tests.cli import quick
from tests.cli.running import COMMAND, call, kill_at, metrics, run, summary


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_numbers_of_an_uninterrupted_one(
    visual_run, words_folder, tmp_path
):
    options = quick.visual(words_folder, tmp_path)
    folder = tmp_path / "run"
    kill_at(1, folder, *options)  # before the first checkpoint, unless the process outran the kill
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
