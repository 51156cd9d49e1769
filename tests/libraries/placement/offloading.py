"""Bytes that a simulated device holds for the backward pass, with the inputs of blocks on it and on the host.

python -m tests.libraries.placement.offloading OUT FAMILY:FOLDER ...
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks import simulated


def held() -> int:
    """Bytes of the tensors of the device, each storage once."""
    alive = [one for one in gc.get_objects() if type(one) is simulated.SimTensor]
    storages = {one.held.untyped_storage().data_ptr(): one.held.untyped_storage().nbytes() for one in alive}
    return sum(storages.values())


def backward(name: str, folder: str, offloaded: bool) -> dict[str, Any]:
    """Gradients of a micro batch of six, and bytes that its graph holds on the device and gives to the host."""
    import pipelines.training as training
    from mmgrpo.family import families
    from tests.libraries.families.examples import EXAMPLES
    from tests.libraries.families.test_battery import config_of, rollout_of

    given = {"device": "sim:0", "gradient_checkpointing": True, "offload_activations": offloaded}
    policy = families()[name].policy(config_of(name, folder, **given), "sim:0", EXAMPLES[name].prompts)
    rollout = rollout_of(name, policy)
    part = next(rollout.steps.split(rollout.decisions.loss_mask, 6))
    moved, to_host = list[int](), training.to_host

    def counted(value: torch.Tensor) -> Any:
        kept = to_host(value)
        moved.append(0 if isinstance(kept, torch.Tensor) else kept[1].nbytes)
        return kept

    training.to_host = counted
    before = held()
    loss = policy.score(rollout, part, frozenset({"log_probs"}))["log_probs"].sum()
    within = held() - before
    loss.backward()
    training.to_host = to_host
    gradients = [one.grad.cpu().flatten() for one in policy.network.parameters() if one.grad is not None]
    return {"held": within, "moved": sum(moved), "gradients": torch.cat(gradients).tolist()}


def main(out: Path, several: list[str]) -> None:
    torch.set_num_threads(1)
    simulated.install()
    pairs = [text.split(":", 1) for text in several]
    found = {name: [backward(name, folder, offloaded) for offloaded in (False, True)] for name, folder in pairs}
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
