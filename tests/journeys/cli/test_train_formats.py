"""Runs on files as other projects lay them out, and on prompts that stay in their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.journeys.cli import quick
from tests.journeys.cli.running import call, metrics, read_lines, summary
from tests.unit.data.layouts import shard


@pytest.mark.nightly
def test_a_run_whose_prompts_stay_in_their_files_is_the_same_run_also_across_a_resume(
    vlm_run, qwen_folder, media, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    options = quick.vlm_run(qwen_folder, media, tmp_path)
    folder = tmp_path / "run"
    call("train", *options, "--data.stream", "--steps", 3)
    assert yaml.safe_load((folder / "config.yaml").read_text())["data"]["stream"] is True
    call("train", *options, "--data.stream", "--resume", "--steps", 4)
    call("train", *options, "--resume")
    assert metrics(folder) == metrics(vlm_run)
    assert summary(folder)["eval"] == summary(vlm_run)["eval"]
    file = "checkpoints/step-000006/weights.safetensors"
    assert (folder / file).read_bytes() == (vlm_run / file).read_bytes()


def shards(folder: Path, media: Path, name: str, numbers: range) -> None:
    """One shard of WebDataset per number, with the columns of nobody else."""
    for number in numbers:
        row = {"ask": f"which box is red? {number}", "label": {"colour": "red"}}
        members = {"0.png": (media / f"{number}.png").read_bytes(), "0.json": json.dumps(row).encode()}
        shard(folder, members, f"{name}-{number:03d}.tar")


@pytest.mark.slow
def test_shards_with_columns_of_their_own_are_trained_on_and_evaluated(qwen_folder, media, tmp_path):
    shards(tmp_path, media, "train", range(4))
    shards(tmp_path, media, "heldout", range(4, 6))
    options = quick.vlm(
        qwen_folder, media, tmp_path, "--model.family", "qwen_vl", "--rewards", "exact", "--name", "run"
    )
    options += [
        "--data.train",
        tmp_path / "train-{000..003}.tar",
        "--data.heldout",
        tmp_path / "heldout-{004..005}.tar",
    ]
    options += ["--data.columns", "ask=problem,label.colour=answer", "--data.stream"]
    options += ["--data.prompts-per-step", 2, "--data.group-size", 2]
    call("train", *options)
    folder = tmp_path / "run"
    data = yaml.safe_load((folder / "config.yaml").read_text())["data"]
    assert data["columns"] == "ask=problem,label.colour=answer"
    assert [line["step"] for line in metrics(folder)] == [1, 2]
    shown = read_lines(folder / "samples" / "after.jsonl")
    assert [row["prompt"] for row in shown] == ["[image] which box is red? 4", "[image] which box is red? 5"]
    call("evaluate", "--run", folder, "--no-blind")
    values = json.loads((folder / "evaluation.json").read_text())["values"]
    assert [row["id"] for row in values] == ["heldout-004.tar:0", "heldout-005.tar:0"]
