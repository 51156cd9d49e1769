"""Inputs of blocks that wait on the host for the backward pass, on a simulated device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.train import counted_in
from mmgrpo.runtime.memory import read_folder
from pipelines.training import offload_inputs
from tests.libraries.families.test_battery import config_of
from tests.processes import Forked
from tests.tiny import maker, tiny_checkpoint

NAMES = ["sd3", "flux", "wan", "qwen_vl"]
SHARED = ("flux", "wan")
"""Families whose blocks are all given the same noise level or words, with a gradient: copied, and still there."""


@pytest.fixture(scope="module")
def found(tmp_path_factory, collected):
    out = tmp_path_factory.mktemp("offloading") / "found.json"
    several = [f"{name}:{tiny_checkpoint(maker(name))}" for name in collected("name")]
    worker = Forked("tests.libraries.placement.offloading", [out, *several], {})
    printed, _ = worker.communicate(1000)
    worker.kill()
    if "NotImplementedError" in printed and "backend" in printed:
        pytest.skip("this version of torch has no backends in Python")
    assert worker.returncode == 0, printed[-3000:]
    return json.loads(out.read_text())


def test_a_network_that_recomputes_in_a_way_of_its_own_is_refused():
    with pytest.raises(ValueError, match="model.offload_activations.*true.*Linear"):
        offload_inputs(torch.nn.Linear(2, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_blocks_on_the_host_leave_the_gradients_and_give_their_memory_back(name, found):
    plain, offloaded = found[name]
    assert offloaded["gradients"] == plain["gradients"] and any(plain["gradients"])
    assert plain["moved"] == 0 < offloaded["moved"]
    freed = (plain["held"] - offloaded["held"]) / offloaded["moved"]
    assert (0.3 if name in SHARED else 0.9) < freed <= 1


def kept(**model: bool) -> float:
    """Bytes that a micro batch of six keeps for the backward pass, as they are counted."""
    path = tiny_checkpoint(maker("sd3"))
    config, folder = config_of("sd3", str(path), gradient_checkpointing=True, **model), read_folder(Path(path))
    return 6 * 4 * counted_in(config, folder)["counts"].kept


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sd3"])
def test_the_dry_run_leaves_out_the_inputs_of_all_blocks(name, found):
    assert kept() - kept(offload_activations=True) == pytest.approx(found[name][1]["moved"], rel=0.02)
