"""What is on the disk at every moment of writing a checkpoint, and which folders and headers are one."""

from __future__ import annotations

import errno
import json
import math
import os
import stat

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from mmgrpo.runtime import checkpoint
from mmgrpo.runtime.checkpoint import (
    Damaged,
    abandon_after,
    checkpoints,
    flatten_optimizer,
    load_checkpoint,
    restore_optimizer,
    save_checkpoint,
)

TENSORS = {"network": {"w": torch.ones(3)}}


def names(folder):
    return sorted(os.listdir(folder))


def test_two_checkpoints_of_no_named_run_are_kept_unless_told_otherwise(tmp_path):
    folder = tmp_path / "not" / "yet" / "there"
    for step in (1, 2, 3):
        path = save_checkpoint(folder, step, TENSORS, {})
    assert names(folder) == ["step-000002", "step-000003"] and load_checkpoint(path).run == ""


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


def test_weights_may_be_read_by_all_and_written_by_their_owner(tmp_path):
    path = save_checkpoint(tmp_path, 1, TENSORS, {}) / "network.safetensors"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_with_the_size_of_the_checkpoint(number, tmp_path, monkeypatch):
    def full(path, group):
        raise OSError(number, "full")

    monkeypatch.setattr(checkpoint, "_write_tensors", full)
    mebibyte = torch.zeros(2**18)
    tensors = {"network": {"a": mebibyte, "b": mebibyte}, "optimizer": {"c": mebibyte}}
    with pytest.raises(OSError, match=r"full.*3\.0 MiB"):
        save_checkpoint(tmp_path, 1, tensors, {})


def test_an_error_of_safetensors_that_is_not_the_disks_stays_what_it_is(tmp_path, monkeypatch):
    def refuse(tensors, path):
        raise SafetensorError("invalid header")

    monkeypatch.setattr(checkpoint, "save_file", refuse)
    with pytest.raises(SafetensorError, match="invalid header"):
        save_checkpoint(tmp_path, 1, TENSORS, {})


def test_a_state_with_a_nan_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        save_checkpoint(tmp_path, 1, TENSORS, {"loss": math.nan})
    assert names(tmp_path) == []


def test_a_checkpoint_of_nowhere_is_told_as_one_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load_checkpoint(tmp_path / "nowhere" / "step-000001")
    assert checkpoints(tmp_path / "nowhere") == []


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


def test_the_numbers_of_an_optimizer_are_kept_apart_from_its_tensors():
    """SGD without momentum keeps a ``momentum_buffer`` of None for every parameter that it has moved."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {"momentum_buffer": None, "count": 4}
    tensors, state = flatten_optimizer(optimizer)
    assert (tensors, state["numbers"]) == ({}, {"0.momentum_buffer": None, "0.count": 4})
    fresh = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    restore_optimizer(fresh, tensors, state)
    assert fresh.state_dict()["state"] == {0: {"momentum_buffer": None, "count": 4}}


def test_the_state_of_a_vector_of_another_length_is_refused_too():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    with pytest.raises(ValueError, match=r"'exp_avg'.*\[4\].*0.*\[3\]"):
        state = {"groups": optimizer.state_dict()["param_groups"], "numbers": {}}
        restore_optimizer(optimizer, {"0.exp_avg": torch.zeros(4)}, state)
