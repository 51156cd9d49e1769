"""A short form of ``make faults``, and its instruments: a fault that does nothing would find nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest

from tests import ROOT
from tests.faults.damages import DAMAGES
from tests.faults.trials import Fault, in_child
from tests.journeys.cli.running import environment
from tests.unit.runtime.trees import tree


def writes(folder):
    def work():
        folder.mkdir(exist_ok=True)
        for number in range(3):
            (folder / "writing").write_text(str(number))
            os.replace(folder / "writing", folder / f"{number}")

    return work


@pytest.mark.parametrize(("at", "written"), [(0, "012"), (1, ""), (2, ""), (4, "0"), (6, "01"), (7, "01"), (8, "012")])
def test_a_child_is_killed_before_the_operation_that_is_named(at, written, tmp_path):
    """The operations: mkdir, then (open, rename) three times."""
    folder = tmp_path / "run"
    ended = in_child(writes(folder), folder, Fault(at))
    assert ended.status == (-signal.SIGKILL if 0 < at < 8 else 0)
    assert "".join(sorted(name for name in tree(folder) if name != "writing")) == written
    assert ended.operations == (at if 0 < at < 8 else 7)


def test_a_disk_that_is_full_from_an_operation_on_is_an_error_of_one_line(tmp_path):
    ended = in_child(writes(tmp_path / "run"), tmp_path / "run", Fault(4, "ENOSPC"))
    assert ended.status == 2 and not ended.traceback and "No space left on device" in ended.output
    assert tree(tmp_path / "run").keys() == {"0"}


def test_an_error_of_the_program_is_seen_as_a_traceback(tmp_path):
    ended = in_child(lambda: {}["key"], tmp_path / "run")
    assert ended.traceback and ended.status not in (0, 2)


@pytest.mark.parametrize("name", DAMAGES)
def test_every_damage_changes_a_checkpoint(name, tmp_path):
    import torch

    from mmgrpo.runtime.checkpoint import Damaged, load_checkpoint, save_checkpoint

    state = dict.fromkeys(("step", "round", "cursor", "seconds", "seed"), 1)
    for step in (1, 2):
        tensors = {group: {"w": torch.full((9,), float(step))} for group in ("weights", "ema")}
        tensors["ema"]["w"] += 1
        save_checkpoint(tmp_path, step, tensors, state)
    before = tree(tmp_path)
    DAMAGES[name](tmp_path / "step-000002", tmp_path / "step-000001", random.Random(0))
    assert tree(tmp_path) != before
    with pytest.raises(Damaged):
        load_checkpoint(tmp_path / "step-000002")


@pytest.mark.slow
@pytest.mark.nightly
def test_the_campaign_in_short():
    """One trial of each kind; the whole is ``make faults``."""
    command = [sys.executable, "-m", "tests.faults.campaign", "--scale", "0.01", "--only", "draws, 2", "--seed", "1"]
    process = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    assert process.stdout.count(": 1 trials in") == 9
