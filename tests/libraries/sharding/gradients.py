"""Gradients of one loss, by one process alone and by all that divide its rows, their tokens and weights.

RANK=0 WORLD_SIZE=2 ... python -m tests.libraries.sharding.gradients FOLDER SHARD REPLICATE SEQUENCE CASE...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from accelerate import Accelerator

from mmgrpo.config.settings import Config
from mmgrpo.family import families
from mmgrpo.policies.token_model import next_position
from mmgrpo.runtime.distributed import TOGETHER, DataRank, scoring_weights, whole
from mmgrpo.runtime.sharding import mesh_of, sequences_of, shard
from mmgrpo.types import Prompt
from tests.libraries.families.examples import EXAMPLES
from tests.libraries.sharding.worker import config_of

ROWS = 8


def perturbed(network: torch.nn.Module, draw: torch.Generator) -> None:
    """An adapter begins as zero, and its other half would have no gradient."""
    for one in network.parameters():
        if one.requires_grad:
            one.data += 0.05 * torch.randn(one.shape, generator=draw)


def noisy(model: Any, prompts: Sequence[Prompt], dtype: torch.dtype) -> Callable[[Any, slice], torch.Tensor]:
    """The velocity that a network predicts for some of the rows."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(len(prompts), *model.shape, generator=draw, dtype=torch.float64).to(dtype)
    time = torch.rand(len(prompts), generator=draw, dtype=torch.float64).to(dtype)
    words = [one.to(dtype) if one.is_floating_point() else one for one in model.encode(prompts).tensors]
    return lambda network, own: model.architecture.velocity(
        network, x[own], time[own], tuple(one[own] for one in words)
    ).flatten(1)


def answered(model: Any, prompts: Sequence[Prompt]) -> Callable[[Any, slice], torch.Tensor]:
    """The logits behind some of the prompts, and behind each token of an answer that reads what was kept of these."""
    answers = torch.randint(5, 20, (len(prompts), 3), generator=torch.Generator().manual_seed(0))
    context = model.encode(prompts)

    def logits(network: Any, own: slice) -> torch.Tensor:
        rows = range(*own.indices(len(prompts)))
        here, ids = context.take(rows), answers[own]
        features, places = model.features(network, here), next_position(here)[:, None] + torch.arange(ids.shape[1])
        positions = places[:, None].expand(-1, here.positions.shape[1], -1)
        real = torch.cat([here.real, torch.ones_like(ids, dtype=torch.bool)], 1)
        if model.checkpointing:  # which keeps nothing of prompts
            whole = torch.cat([here.ids, ids], 1), real, torch.cat([here.positions, positions], 2)
            states = model.hidden(network, *whole, features, None)[0][:, -ids.shape[1] - 1 :]
        else:
            state, cache = model.hidden(network, here.ids, here.there, here.positions, features, None)
            spread = model.spread(cache, torch.arange(len(rows)))
            behind, _ = model.hidden(network, ids, real, positions, (), spread)
            states = torch.cat([state[:, -1:], behind], 1)
        return model.logits(network, states.flatten(0, 1)).unflatten(0, states.shape[:2]).flatten(1)

    return logits


def gradients(predict: Callable[[Any, slice], torch.Tensor], network: Any, own: slice) -> Mapping[str, torch.Tensor]:
    """Those of a sum over rows of the squares of a prediction, of which every entry counts differently."""
    predicted = predict(network, own)
    (predicted.square() * torch.linspace(-1, 2, predicted.shape[1], dtype=predicted.dtype)).sum().backward()
    trained = {name: one for name, one in network.named_parameters() if one.requires_grad}
    found = {name: torch.zeros_like(one) if one.grad is None else one.grad for name, one in trained.items()}
    for one in trained.values():
        one.grad = None
    return {name: one.to_dense() if one.is_sparse else one for name, one in found.items()}


@dataclass(frozen=True)
class Divided:
    """How processes divide weights and tokens."""

    mode: str
    replicate: int
    sequence: int


def compare(config: Config, accelerator: Accelerator, way: Divided, dtype: torch.dtype) -> list[float]:
    """The largest difference between the gradients by this process alone and by all, over the largest of these, and
    how many tokens come out of a block by each."""
    owner, prompts = families()[config.model.family], EXAMPLES[config.model.family].prompts
    model: Any = owner.policy(config, "cpu", prompts).model  # type: ignore[attr-defined]
    network, tokens = model.network.to(dtype), list[int]()
    perturbed(network, torch.Generator().manual_seed(0))
    rows = [prompts[row % len(prompts)] for row in range(ROWS)]
    predict = answered(model, rows) if owner.modality == "vlm" else noisy(model, rows, dtype)
    *_, block = (one for one in network.modules() if any(fnmatchcase(type(one).__name__, b) for b in owner.blocks))
    block.register_forward_hook(
        lambda _, __, made: tokens.append((made[-1] if isinstance(made, tuple) else made).shape[1])
    )
    alone = gradients(predict, network, slice(0, ROWS))
    assert owner.divide is not None
    owner.divide(network, sequences_of("cpu", way.sequence))
    if way.mode == "full":
        shard([network], owner.blocks, mesh_of("cpu", way.replicate), in_step=owner.in_step, agree=False)
    rank = DataRank.of(accelerator)
    own = slice(rank.index * ROWS // rank.count, (rank.index + 1) * ROWS // rank.count)
    with scoring_weights(network):
        together = {name: whole(one) for name, one in gradients(predict, network, own).items()}
    if way.mode != "full" or not owner.in_step:  # else they are sums already
        for one in together.values():
            torch.distributed.all_reduce(one)
    gap = max(float((together[name] - one).abs().max()) for name, one in alone.items())
    return [gap / max(float(one.abs().max()) for one in alone.values()), tokens[0], tokens[-1]]


@contextmanager
def doubled() -> Iterator[None]:
    """Float64 where networks compute in float32 by themselves: the norms of Wan and of Z-Image."""
    to: Any = torch.Tensor.to

    def stays(value: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        wide = value.dtype == torch.float64
        return to(value, *(torch.float64 if wide and one is torch.float32 else one for one in given), **named)

    replaced = {"float": torch.Tensor.double, "to": stays}
    with mock.patch.multiple(torch.Tensor, **replaced):
        yield


def run(folder: Path, way: Divided, cases: Sequence[str]) -> None:
    """Compare every case in both precisions, and leave what this process found in the folder."""
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    TOGETHER[accelerator] = way.sequence
    configs = {case: config_of(case, folder, "none", 1) for case in cases}
    found = {case: {"float32": compare(one, accelerator, way, torch.float32)} for case, one in configs.items()}
    with doubled():
        for case, one in configs.items():
            found[case]["float64"] = compare(one, accelerator, way, torch.float64)
    (folder / f"gradients-{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()


if __name__ == "__main__":
    run(Path(sys.argv[1]), Divided(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])), sys.argv[5:])
