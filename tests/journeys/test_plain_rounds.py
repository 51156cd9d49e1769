"""A plain run meets none of a method: its rounds execute few files of ours, and it imports no method for nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.cli.questions import main as write_questions
from tests.processes import anew

SMALL = ("--steps", "2", "--data.heldout", "", "--threads", "1", "--groups-kept", "1")


def executed(recipe: str, folder: Path, *options: object) -> tuple[list[str], set[str]]:
    """Files that rounds of a small run of a recipe execute, and the methods that it imports (``tests.executed``)."""
    printed = anew("tests.executed", ["--recipe", recipe, "--output-dir", folder, *SMALL, *options])
    lists = json.loads(printed.splitlines()[-1])
    return lists["files"], {name.removeprefix("mmgrpo.rounds.") for name in lists["methods"][1:]}


def core(files: list[str]) -> list[str]:
    return [name for name in files if name.startswith("mmgrpo/")]


@pytest.mark.slow
def test_a_round_of_images_executes_little(tmp_path):
    files, methods = executed("visual/demo", tmp_path, "--data.prompts-per-step", 4, "--data.group-size", 4)
    assert len(core(files)) <= 40 and len(files) <= 48, files
    assert methods == {"callback", "moving_average"}
    assert not {"mmgrpo/policies/image_tokens.py", "pipelines/visual/janus.py"} & {*files}


@pytest.mark.slow
def test_a_round_of_questions_executes_little(tmp_path):
    write_questions(["--output", str(tmp_path), "--train", "16", "--tune", "1", "--heldout", "1"])
    data = ("--data.train", tmp_path / "train.jsonl", "--data.prompts-per-step", 16, "--data.group-size", 2)
    files, methods = executed("vlm/demo", tmp_path, *data)
    assert len(core(files)) <= 40 and len(files) <= 50, files
    assert methods == {"callback", "moving_average"}
