"""Gradients in float64 of one loss, by one process alone and by all that divide its rows, their tokens and weights.

RANK=0 WORLD_SIZE=2 ... python -m tests.libraries.sharding.gradients FOLDER SHARD REPLICATE SEQUENCE CASE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mmgrpo.config.settings import Config
from mmgrpo.family import families
from mmgrpo.runtime.distributed import TOGETHER, DataRank
from mmgrpo.runtime.sharding import mesh_of, sequences_of, shard, whole
from tests.libraries.families.examples import EXAMPLES
from tests.libraries.sharding.worker import config_of

ROWS = 8


def perturbed(network: torch.nn.Module, draw: torch.Generator) -> None:
    """An adapter begins as zero, and its other half would have no gradient."""
    for one in network.parameters():
        if one.requires_grad:
            one.data += 0.05 * torch.randn(one.shape, generator=draw)


def gradients(model: Any, network: Any, batch: Sequence[torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Those of a sum over rows of the squares of the predicted velocity, in which every entry counts differently."""
    x, time, *words = batch
    predicted = model.architecture.velocity(network, x, time, tuple(words))
    weight = torch.linspace(-1, 2, predicted[0].numel(), dtype=predicted.dtype).view_as(predicted[0])
    (predicted.square() * weight).sum().backward()
    trained = {name: one for name, one in network.named_parameters() if one.requires_grad}
    found = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in trained.items()}
    for one in trained.values():
        one.grad = None
    return found


def compare(config: Config, accelerator: Accelerator, mode: str, replicate: int, sequence: int) -> list[float]:
    """The largest difference between the gradients by this process alone and by all, over the largest of these, and
    how many tokens come out of a block by each."""
    owner, prompts = families()[config.model.family], EXAMPLES[config.model.family].prompts
    model: Any = owner.policy(config, "cpu", prompts).model  # type: ignore[attr-defined]
    network, draw = model.network.double(), torch.Generator().manual_seed(0)
    perturbed(network, draw)
    x = torch.randn(ROWS, *model.shape, generator=draw, dtype=torch.float64)
    time = torch.rand(ROWS, generator=draw, dtype=torch.float64)
    words = model.encode([prompts[row % len(prompts)] for row in range(ROWS)]).tensors
    batch = [x, time, *(one.double() if one.is_floating_point() else one for one in words)]
    tokens: list[int] = []
    *_, block = (one for one in network.modules() if any(fnmatchcase(type(one).__name__, b) for b in owner.blocks))
    block.register_forward_hook(
        lambda _, __, made: tokens.append((made[0] if isinstance(made, tuple) else made).shape[1])
    )
    alone = gradients(model, network, batch)
    assert owner.divide is not None
    owner.divide(network, sequences_of("cpu", sequence))
    if mode == "full":
        shard([network], owner.blocks, mesh_of("cpu", replicate), in_step=owner.in_step, agree=False)
    rank = DataRank.of(accelerator)
    own = slice(rank.index * ROWS // rank.count, (rank.index + 1) * ROWS // rank.count)
    together = {name: whole(one) for name, one in gradients(model, network, [one[own] for one in batch]).items()}
    if mode != "full":
        for one in together.values():
            torch.distributed.all_reduce(one)
    gap = max(float((together[name] - one).abs().max()) for name, one in alone.items())
    return [gap / max(float(one.abs().max()) for one in alone.values()), tokens[0], tokens[-1]]


def run(folder: Path, mode: str, replicate: int, sequence: int, cases: Sequence[str]) -> None:
    """Compare every case, and leave what this process found in the folder."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    TOGETHER[accelerator] = sequence
    configs = {case: config_of(case, folder, "none", 1) for case in cases}
    found = {case: compare(config, accelerator, mode, replicate, sequence) for case, config in configs.items()}
    (folder / f"gradients-{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
