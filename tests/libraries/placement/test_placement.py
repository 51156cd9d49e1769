"""Placement on a device without one: every family runs on a simulated device, without a tensor on the wrong side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.family import families
from tests.building import module
from tests.processes import Forked
from tests.tiny import tiny_checkpoint

FAULTS = ["mask", "noise", "index", "embedding", "array", "generator", "write"]
QUICK = ["sd3", "causal_lm"]
SPEAKING = ["causal_lm", "whisper", "qwen_vl"]


def on_device(names: list[str], place: Path) -> dict[str, Any]:
    """What the worker found, in a process of its own: the device changes how torch moves modules."""
    out = place / "found.json"
    several = [f"{name}:{tiny_checkpoint(module(name).tiny)}" for name in names]
    worker = Forked("tests.libraries.placement.worker", [out, *several], {})
    printed, _ = worker.communicate(1000)
    worker.kill()
    if "NotImplementedError" in printed and "backend" in printed:
        pytest.skip("this version of torch has no backends in Python")
    assert worker.returncode == 0, printed[-3000:]
    return json.loads(out.read_text())


def check_runs(found: dict[str, Any], name: str) -> None:
    """Three updates, the last after a resume: numbers of the device are the CPU's."""
    cpu, sim = found[name]["runs"]
    assert len(cpu) == len(sim) == 3
    for one, other in zip(cpu, sim, strict=True):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_families_run_on_a_device_without_mixing_and_wait_once_a_token(tmp_path):
    found = on_device(QUICK, tmp_path)
    assert found["mixed"] == FAULTS  # the device refuses what a GPU refuses
    for name in QUICK:
        check_runs(found, name)
    for name in set(QUICK) & set(SPEAKING):
        waits = found[name]["waits"]
        assert waits["own per token"] <= 1, waits
        assert waits["all per token"] <= 3, waits  # what transformers itself asks, of masks
        assert waits["update in 4"] == waits["update in 1"] == 1, waits  # that of the tally, however many parts
        assert waits["update of samples in 4"] == 2, waits  # and which decisions have a gradient
        assert waits["finite"] == 1, waits


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*families()} - {*QUICK}))
def test_every_family_runs_on_a_device_without_mixing(name, tmp_path):
    check_runs(on_device([name], tmp_path), name)
