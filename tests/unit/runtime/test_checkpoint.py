from __future__ import annotations

import copy
import errno
import math
import os
import shutil
import stat

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from mmgrpo.runtime import checkpoint
from mmgrpo.runtime.checkpoint import (
    Damaged,
    abandon_after,
    flatten_optimizer,
    latest_checkpoint,
    load_checkpoint,
    load_intact,
    restore_network,
    restore_optimizer,
    save_checkpoint,
    step_of,
    trained_tensors,
)
from mmgrpo.runtime.finite import NotFinite


def save(folder, step, keep=2, value=1.0, run=""):
    return save_checkpoint(folder, step, {"network": {"w": torch.full((3,), value)}}, {"round": step}, keep, run)


def names(folder):
    return sorted(os.listdir(folder))


def test_tensors_and_state_come_back_exactly(tmp_path):
    tensors = {
        "network": {"w": torch.randn(3, 4), "half": torch.randn(5).bfloat16()},
        "optimizer": {"0.step": torch.tensor(7.0), "ids": torch.arange(3)},
    }
    state = {"round": 3, "seed": 2**62, "lr": 0.1, "names": ["a", "ü"], "best": None}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 12, tensors, state))
    assert (loaded.step, loaded.state) == (12, state)
    for file, group in tensors.items():
        assert loaded.tensors[file].keys() == group.keys()
        for name, tensor in group.items():
            assert loaded.tensors[file][name].dtype == tensor.dtype and loaded.tensors[file][name].equal(tensor)


def test_tensors_that_share_memory_or_have_gaps_are_saved_each_for_itself(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    group = {"base": base, "same": base, "turned": base.T, "column": base[:, 1]}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"network": group}, {})).tensors["network"]
    assert all(loaded[name].equal(tensor) for name, tensor in group.items())


def test_a_group_without_tensors_is_saved_too(tmp_path):
    assert load_checkpoint(save_checkpoint(tmp_path, 1, {"optimizer": {}}, {})).tensors == {"optimizer": {}}


def test_the_newest_checkpoints_are_kept(tmp_path):
    for step in (1, 2, 10):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000002", "step-000010"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000010"


def test_the_checkpoint_just_written_stays_even_if_its_step_is_lower(tmp_path):
    for step in (5, 6, 2):
        save(tmp_path, step)
    assert names(tmp_path) == ["step-000002", "step-000006"]
    with pytest.raises(ValueError, match="keep.*1"):
        save(tmp_path, 7, keep=0)


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1000000"


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 1, value=1.0)
    path = save(tmp_path, 1, value=2.0)
    assert names(tmp_path) == ["step-000001"]
    assert load_checkpoint(path).tensors["network"]["w"].tolist() == [2.0, 2.0, 2.0]


def test_files_are_readable_as_other_files_are(tmp_path):
    path = save(tmp_path, 1)
    assert [stat.S_IMODE((path / name).stat().st_mode) & 0o044 for name in names(path)] == [0o044, 0o044]
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_nothing_to_resume_from_is_none(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "nowhere") is None


def test_a_missing_checkpoint_is_an_error_that_lists_what_is_there(tmp_path):
    save(tmp_path, 3)
    with pytest.raises(FileNotFoundError, match="contains.*step-000003"):
        load_checkpoint(tmp_path / "step-000007")


def flip(path, place=-3):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def in_state(old, new):
    def change(path):
        text = (path / "state.json").read_text()
        assert old in text
        (path / "state.json").write_text(text.replace(old, new))

    return change


DAMAGES = {
    "a flipped bit of a weight": lambda path: flip(path / "network.safetensors"),
    "a flipped bit of a header": lambda path: flip(path / "network.safetensors", 12),
    "a file that ends too soon": lambda path: (path / "network.safetensors").write_bytes(
        (path / "network.safetensors").read_bytes()[:-4]
    ),
    "a zeroed end": lambda path: (path / "network.safetensors").write_bytes(
        (path / "network.safetensors").read_bytes()[:-12] + bytes(12)
    ),
    "an empty file": lambda path: (path / "network.safetensors").write_bytes(b""),
    "a file of an older step": lambda path: shutil.copy(
        path.with_name("step-000001") / "network.safetensors", path / "network.safetensors"
    ),
    "the state of an older step": lambda path: shutil.copy(path.with_name("step-000001") / "state.json", path),
    "no file": lambda path: (path / "network.safetensors").unlink(),
    "no state": lambda path: (path / "state.json").unlink(),
    "an empty state": lambda path: (path / "state.json").write_text(""),
    "half a state": lambda path: (path / "state.json").write_text((path / "state.json").read_text()[:40]),
    "another number in the state": in_state('"round": 2', '"round": 3'),
    "another step in the state": in_state('"step": 2', '"step": 3'),
    "another run in the state": in_state('"run": "a"', '"run": "b"'),
    "a list as state": lambda path: (path / "state.json").write_text("[]"),
    "a state that is not text": lambda path: (path / "state.json").write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(damage, tmp_path, capsys):
    for step in (1, 2):
        save(tmp_path, step, value=float(step), keep=9, run="a")
    DAMAGES[damage](tmp_path / "step-000002")
    with pytest.raises(Damaged, match="step-000002"):
        load_checkpoint(tmp_path / "step-000002")
    loaded = load_intact(tmp_path, "a")
    assert loaded.step == 1 and loaded.tensors["network"]["w"].tolist() == [1.0, 1.0, 1.0]
    told = capsys.readouterr().out
    assert "step-000002" in told and "it is renamed to damaged-step-000002" in told
    assert names(tmp_path) == ["damaged-step-000002", "step-000001"]


def test_without_an_intact_checkpoint_nothing_is_started_from_the_beginning(tmp_path):
    assert load_intact(tmp_path, "a") is None
    flip(save(tmp_path, 1, run="a") / "network.safetensors")
    for _ in range(2):  # nor where a job tries again: the first attempt has renamed it
        with pytest.raises(ValueError, match="intact"):
            load_intact(tmp_path, "a")


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    save(tmp_path, 1, run="b")
    with pytest.raises(ValueError, match="step-000001.*'b'.*'a'"):
        load_intact(tmp_path, "a")


def test_weights_that_are_not_finite_are_neither_written_nor_read(tmp_path, monkeypatch):
    with pytest.raises(NotFinite, match="step-000001.*written.*1.*1.*'w'"):
        save(tmp_path, 1, value=math.nan)
    assert names(tmp_path) == []
    monkeypatch.setattr(checkpoint, "refuse_tensors", lambda tensors, what: None)
    path = save(tmp_path, 2, value=math.inf)
    monkeypatch.undo()
    with pytest.raises(NotFinite, match="network.safetensors"):
        load_checkpoint(path)


def test_going_back_to_a_step_sets_the_later_ones_aside(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, keep=9, run="a")
    assert load_intact(tmp_path, "a", last=2).step == 2
    abandon_after(tmp_path, 2)
    assert names(tmp_path) == ["abandoned-step-000003", "step-000001", "step-000002"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000002"
    with pytest.raises(ValueError, match="step 3.*step-000001.*step-000002"):
        load_intact(tmp_path, "a", last=3)


@pytest.mark.parametrize(("name", "step"), [("step-000040", 40), ("40", 40), ("runs/a/checkpoints/step-000007/", 7)])
def test_a_checkpoint_is_named_by_its_folder_or_its_step(name, step):
    assert step_of(name) == step


@pytest.mark.parametrize("name", ["latest", "step-", "-3", "step-4x"])
def test_any_other_name_of_a_checkpoint_is_refused(name):
    with pytest.raises(ValueError, match="step-000040"):
        step_of(name)


def test_a_full_disk_leaves_the_earlier_checkpoint_whole_and_no_rest(tmp_path, monkeypatch):
    save(tmp_path, 1, keep=1)

    def half_written(tensors, path):
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(checkpoint, "save_file", half_written)
    with pytest.raises(OSError, match="the disk is full") as caught:
        save(tmp_path, 2, keep=1)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == ["step-000001"]
    assert load_checkpoint(tmp_path / "step-000001").state == {"round": 1}


def test_an_error_while_writing_the_state_leaves_the_earlier_checkpoint_whole_too(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def refuse(path, text):
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(checkpoint, "_write_durably", refuse)
    with pytest.raises(OSError, match="broken disk"):
        save(tmp_path, 1)
    assert names(tmp_path) == ["step-000001"]
    assert load_checkpoint(tmp_path / "step-000001").state == {"round": 1}


def test_a_state_that_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 1, {}, {"device": torch.device("cpu")})
    assert names(tmp_path) == []


def test_what_a_killed_run_left_is_swept_by_the_next_save(tmp_path):
    (tmp_path / ".writing-dead").mkdir()
    (tmp_path / ".writing-dead" / "network.safetensors").write_bytes(b"half")
    save(tmp_path, 1)
    assert names(tmp_path) == ["step-000001"]


def a_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def an_optimizer(network):
    first, second = network[0].parameters(), network[2].parameters()
    return torch.optim.AdamW([{"params": first}, {"params": second, "lr": 0.03, "weight_decay": 0.0}], lr=0.01)


def train(network, optimizer, steps, seed):
    inputs = torch.randn(steps, 5, 3, generator=torch.Generator().manual_seed(seed))
    for batch in inputs:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()


def test_a_resumed_adamw_goes_on_as_if_it_had_never_stopped(tmp_path):
    network = a_network()
    optimizer = an_optimizer(network)
    train(network, optimizer, 3, seed=0)
    optimizer.param_groups[0]["lr"] = 0.005
    tensors, state = flatten_optimizer(optimizer)
    path = save_checkpoint(
        tmp_path, 3, {"network": trained_tensors(network), "optimizer": tensors}, {"optimizer": state}
    )

    loaded = load_checkpoint(path)
    resumed = a_network()
    fresh = an_optimizer(resumed)
    restore_network(resumed, loaded.tensors["network"])
    restore_optimizer(fresh, loaded.tensors["optimizer"], loaded.state["optimizer"])
    assert fresh.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]
    train(network, optimizer, 3, seed=1)
    train(resumed, fresh, 3, seed=1)
    assert all(a.equal(b) for a, b in zip(network.parameters(), resumed.parameters(), strict=True))


def test_the_tensors_of_an_adamw_state_are_named_by_parameter_number(tmp_path):
    network = a_network()
    optimizer = an_optimizer(network)
    assert flatten_optimizer(optimizer)[0] == {}
    train(network, optimizer, 1, seed=0)
    tensors, _ = flatten_optimizer(optimizer)
    assert sorted(tensors) == [f"{n}.{name}" for n in range(4) for name in ("exp_avg", "exp_avg_sq", "step")]


def test_restored_state_is_a_copy(tmp_path):
    network = a_network()
    optimizer = an_optimizer(network)
    train(network, optimizer, 1, seed=0)
    tensors, state = flatten_optimizer(optimizer)
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    kept = copy.deepcopy(tensors)
    other = a_network()
    fresh = an_optimizer(other)
    restore_optimizer(fresh, tensors, state)
    train(other, fresh, 2, seed=1)
    assert all(tensors[name].equal(kept[name]) for name in kept)


def test_an_optimizer_of_other_parameters_is_refused():
    network = a_network()
    optimizer = an_optimizer(network)
    train(network, optimizer, 1, seed=0)
    tensors, state = flatten_optimizer(optimizer)
    with pytest.raises(ValueError, match=r"\[2, 2\] parameters.*\[4\]"):
        restore_optimizer(torch.optim.AdamW(network.parameters()), tensors, state)
    wider = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    with pytest.raises(ValueError, match=r"'exp_avg'.*\[4, 3\].*0.*\[5, 3\]"):
        restore_optimizer(an_optimizer(wider), tensors, state)


def test_a_network_of_other_parameters_is_refused_and_left_as_it_was():
    network = a_network()
    before = copy.deepcopy(trained_tensors(network))
    with pytest.raises(ValueError, match=r"1.*\['2.bias'\].*1.*\['x'\]"):
        restore_network(network, {"x" if n == "2.bias" else n: torch.zeros_like(t) for n, t in before.items()})
    with pytest.raises(ValueError, match=r"'2.bias'.*\[3\].*\[2\]"):
        restore_network(network, {n: torch.zeros(3) if n == "2.bias" else t + 1 for n, t in before.items()})
    assert all(before[name].equal(tensor) for name, tensor in trained_tensors(network).items())


def test_frozen_parameters_are_not_part_of_a_checkpoint():
    network = a_network()
    network[0].requires_grad_(False)
    assert sorted(trained_tensors(network)) == ["2.bias", "2.weight"]
