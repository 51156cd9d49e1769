"""Placement on a device without one: every family runs on a simulated device, without a tensor on the wrong side."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.family import families
from pipelines.denoising import DECISIONS
from tests.processes import Forked
from tests.tiny import maker, tiny_checkpoint

FAULTS = ["mask", "noise", "index", "embedding", "array", "generator", "write"]
QUICK = ["sd3", "causal_lm"]
POLICIES = [f"sd3 sampling.policy={name}" for name in DECISIONS if name not in ("transitions", "gradients")]
"""Gradients are of rewards that say so, whose values are looked at in every part."""
COUPLED = "causal_lm algorithm.objective=gspo"
MOST = {"decision": 0, "update": 1, "part": 0, "round": 30, "evaluation": 20}
"""How often the project itself may let the host wait: for a denoising step, a further update of a round, a further
micro-batch, and the rest of a round, whose numbers come to the host at once, and of an evaluation."""
ADDED = {"decision": 2, "update": 6, "part": 2}
"""The same of diffusers and transformers, most where a network itself reads every prompt: two for each."""


def on_device(names: list[str], place: Path) -> dict[str, Any]:
    """What the worker found, in a process of its own: the device changes how torch moves modules."""
    out = place / "found.json"
    several = [f"{name}:{tiny_checkpoint(maker(name.split()[0]))}" for name in names]
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


def check_waits(found: dict[str, Any], row: str) -> None:
    """Waits of the project are at most ``MOST``, and what libraries add at most ``ADDED``."""
    waits, name = found[row]["waits"], row.split()[0]
    sampling = {one.name for one in fields(families()[name].sections.sampling)}
    most = MOST | {"decision": int("max_tokens" in sampling)} | ({"update": 2} if row == COUPLED else {})
    for kind, limit in most.items():
        assert 0 <= waits[f"own {kind}"] <= limit, (kind, waits)
    for kind, limit in ADDED.items():
        assert waits[kind] - waits[f"own {kind}"] <= (0 if name in QUICK else limit), (kind, waits)


@pytest.mark.nightly
def test_families_run_on_a_device_without_mixing_and_hardly_wait(tmp_path):
    found = on_device(QUICK, tmp_path)
    assert found["mixed"] == FAULTS  # the device refuses what a GPU refuses
    assert found["fetched"] == [1, True]
    for name in QUICK:
        check_runs(found, name)
        check_waits(found, name)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*families()} - {*QUICK}))
def test_every_family_runs_on_a_device_without_mixing_and_hardly_waits(name, tmp_path):
    found = on_device([name], tmp_path)
    check_runs(found, name)
    check_waits(found, name)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("row", [*POLICIES, COUPLED])
def test_policies_and_objectives_of_samples_hardly_wait(row, tmp_path):
    check_waits(on_device([row], tmp_path), row)
