"""When a checkpoint is due, what it holds, and from which one a run goes on, on the main process and on others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from mmgrpo.config.settings import Run
from mmgrpo.runtime import progress
from mmgrpo.runtime.checkpoint import checkpoints
from mmgrpo.runtime.progress import Checkpoints


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """What ``time.monotonic`` says."""
    made = SimpleNamespace(now=0.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(progress, "time", made)
    return made


def kept(folder, **settings) -> Checkpoints:
    return Checkpoints(folder, Accelerator(cpu=True), clock=0.0, **settings)


def trained(value: float) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network and its optimizer."""
    network = nn.Linear(2, 1)
    nn.init.constant_(network.weight, value), nn.init.constant_(network.bias, -value)
    return network, torch.optim.SGD(network.parameters(), lr=value)


def test_checkpoints_are_by_default_those_of_a_run_without_settings(tmp_path):
    plain, run = Checkpoints(tmp_path, Accelerator(cpu=True)), Run()
    assert (plain.every, plain.every_minutes, plain.keep) == (run.save_every, run.save_every_minutes, run.keep)
    assert (plain.run, plain.saved) == ("", 0)


@pytest.mark.parametrize(
    ("before", "step", "minutes", "due"),
    [
        (0, 9, 0, False),
        (0, 10, 0, True),
        (9, 11, 0, True),  # a round of several steps passes the multiple
        (10, 19, 0, False),
        (10, 20, 0, True),
        (94, 95, 0, True),  # the last
        (94, 97, 0, True),
        (1, 2, 29.9, False),
        (1, 2, 30, True),
    ],
)
def test_a_checkpoint_is_due_by_steps_by_time_and_at_the_end(before, step, minutes, due, tmp_path, clock):
    clock.now = 60.0 * minutes
    assert kept(tmp_path, every=10, every_minutes=30.0).is_due(before, step, 95) == due
    assert kept(tmp_path, every=10, every_minutes=0.0).is_due(before, step, 95) == (due and minutes == 0)


def test_the_time_counts_from_the_newest_checkpoint_also_from_one_that_was_restored(tmp_path, clock):
    made, later = kept(tmp_path, every=100, every_minutes=1.0), kept(tmp_path, every=100, every_minutes=1.0)
    clock.now = 90.0
    assert made.is_due(1, 2, 9)
    made.save(2, *trained(1.0), {})
    later.restore(*trained(2.0))
    for one in (made, later):
        assert not one.is_due(2, 3, 9) and one.saved == 2 and one.latest == tmp_path / "checkpoints" / "step-000002"


def test_weights_optimizer_and_state_come_back(tmp_path):
    made = kept(tmp_path, run="5f0c", keep=1)
    made.save(3, *trained(1.0), {"round": 2})
    made.save(4, *trained(2.0), {"round": 3})
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000004"]
    network, optimizer = trained(5.0)
    state = kept(tmp_path, run="5f0c").restore(network, optimizer)
    assert state is not None and state["round"] == 3 and optimizer.param_groups[0]["lr"] == 2.0
    assert (network.weight.tolist(), network.bias.tolist()) == ([[2, 2]], [-2])
    with pytest.raises(ValueError, match="'5f0c'.*'b'"):
        kept(tmp_path, run="b").restore(network, optimizer)


def test_a_plain_run_has_three_files_in_its_checkpoints(tmp_path):
    network, optimizer = trained(1.0)
    kept(tmp_path).save(0, network, optimizer, {})
    assert sorted(path.stem for path in (tmp_path / "checkpoints" / "step-000000").iterdir()) == [
        *("optimizer", "state", "weights")
    ]
    assert kept(tmp_path).restore(network, optimizer) is not None, "step 0 is a checkpoint too"


def test_further_tensors_are_files_of_their_own_and_come_back(tmp_path):
    network, optimizer = trained(1.0)
    kept(tmp_path).save(1, network, optimizer, {}, {"ledger": {"visits": torch.tensor([2, 0])}, "empty": {}})
    assert not (tmp_path / "checkpoints" / "step-000001" / "empty.safetensors").exists()
    later = kept(tmp_path)
    later.restore(network, optimizer)
    assert {name: list(table) for name, table in later.tables.items()} == {"ledger": ["visits"]}
    assert later.tables["ledger"]["visits"].tolist() == [2, 0]


def test_later_checkpoints_are_set_aside_and_where_there_is_none_nothing_changes(tmp_path):
    made = kept(tmp_path, keep=9)
    network, optimizer = trained(5.0)
    assert made.restore(network, optimizer) is None and network.weight.tolist() == [[5, 5]]
    for step in (2, 4):
        made.save(step, *trained(float(step)), {})
    again = kept(tmp_path)
    assert again.restore(network, optimizer, last=2) is not None
    assert again.saved == 2 and network.weight.tolist() == [[2, 2]]
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["abandoned-step-000004", "step-000002"]


def test_a_saved_model_is_not_replaced_by_a_run_that_begins_again_for_want_of_a_checkpoint(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.md").write_text("a user's file, and no model")
    assert kept(tmp_path).restore(*trained(5.0)) is None
    (tmp_path / "model" / "run.json").touch()
    with pytest.raises(ValueError, match="checkpoints.*--overwrite"):
        kept(tmp_path).restore(*trained(5.0))


def test_what_the_main_process_cannot_use_is_an_error_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    monkeypatch.setattr(progress, "gather_texts", lambda texts, accelerator: ["step-000004 is damaged", *texts])
    with pytest.raises(ValueError, match="step-000004 is damaged"):
        kept(tmp_path).restore(*trained(5.0))


def test_another_process_reads_what_the_main_one_chose_and_renames_and_writes_nothing(tmp_path, monkeypatch):
    made = kept(tmp_path, keep=9)
    for step in (2, 4):
        made.save(step, *trained(float(step)), {"step": step})
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    monkeypatch.setattr(progress, "largest", lambda value, accelerator: 2.0)
    other = kept(tmp_path, run="unseen")
    network, optimizer = trained(5.0)
    state = other.restore(network, optimizer)
    assert state is not None and state["step"] == 2 and network.weight.tolist() == [[2, 2]]
    other.save(6, network, optimizer, {})
    assert other.saved == 6
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000002", "step-000004"]


def test_the_first_checkpoint_ends_the_replacement_of_an_earlier_run(tmp_path):
    aside = tmp_path / ".run.replaced-1"
    aside.mkdir()
    kept(tmp_path / "run").save(1, *trained(1.0), {})
    assert not aside.exists()
