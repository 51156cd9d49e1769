"""What is on the disk at every moment of writing a checkpoint, and which folders and headers are one."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from mmgrpo.runtime import checkpoint
from mmgrpo.runtime.checkpoint import (
    Damaged,
    abandon_after,
    load_checkpoint,
    save_checkpoint,
)

TENSORS = {"network": {"w": torch.ones(3)}}


def names(folder):
    return sorted(os.listdir(folder))


def test_a_checkpoint_is_written_beside_its_place_after_the_rest_of_a_killed_one_is_gone(tmp_path, monkeypatch):
    (tmp_path / ".writing-dead").mkdir()
    seen = []

    def look(tensors, path):
        seen.append((path.parent.parent, path.parent.name[:9], names(tmp_path)))
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", look)
    save_checkpoint(tmp_path, 1, TENSORS, {})
    [(parent, prefix, present)] = seen
    assert (parent, prefix, len(present)) == (tmp_path, ".writing-", 1) and present != [".writing-dead"]


def test_a_process_that_is_killed_while_it_removes_a_checkpoint_leaves_no_damaged_one(tmp_path, monkeypatch):
    def killed(path):
        (path / "state.json").unlink()
        raise KeyboardInterrupt

    for step in (1, 2):
        save_checkpoint(tmp_path, step, TENSORS, {})
    with monkeypatch.context() as dying:
        dying.setattr(checkpoint.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 3, TENSORS, {})
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-000002", "step-000003"]
    save_checkpoint(tmp_path, 4, TENSORS, {})
    assert names(tmp_path) == ["step-000003", "step-000004"]


def test_every_file_and_the_folder_are_flushed_to_the_disk_whole(tmp_path, monkeypatch):
    flushed, fsync = {}, os.fsync

    def note(descriptor):
        found = os.fstat(descriptor)
        flushed[found.st_ino] = found.st_size
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    path = save_checkpoint(tmp_path, 1, TENSORS, {})
    sizes = {found.st_ino: found.st_size for found in (file.stat() for file in path.iterdir())}
    assert len(sizes) == 2 and sizes.items() <= flushed.items() and tmp_path.stat().st_ino in flushed


def test_a_checkpoint_that_was_copied_under_another_name_or_rewritten_in_another_order_is_the_same(tmp_path):
    copy = save_checkpoint(tmp_path, 3, TENSORS, {"b": 1, "a": 2}).rename(tmp_path / "best")
    header = json.loads((copy / "state.json").read_text())
    (copy / "state.json").write_text(json.dumps(dict(reversed(header.items()))))
    assert load_checkpoint(copy).step == 3
    copy.rename(tmp_path / "step-000004")
    with pytest.raises(Damaged, match="of another step"):
        load_checkpoint(tmp_path / "step-000004")


def test_a_step_may_be_set_aside_twice(tmp_path):
    for run in ("first", "second"):
        save_checkpoint(tmp_path, 2, TENSORS, {}, run=run)
        abandon_after(tmp_path, 1)
    assert names(tmp_path) == ["abandoned-step-000002"]
    assert load_checkpoint(tmp_path / "abandoned-step-000002").run == "second"
