"""Communication between ranks: gathered rows and summed gradients.

Networks are not wrapped (no DDP): each rank accumulates the gradient of its own micro-batches, whose number may differ
between ranks, and gradients are reduced once per optimizer step. The loss weights sum to one over all ranks, so
gradients are summed, never averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import gather
from torch import Tensor, nn

from mmgrpo.runtime.devices import fetched
from mmgrpo.runtime.sharding import is_shard
from mmgrpo.scoring import RewardScores
from mmgrpo.types import Decisions

NODES_PER_RANK = 1 << 40
"""Offset between the node numbers of ranks and draws, larger than any rank's number of nodes, so that they differ."""


Processes = Accelerator | PartialState
"""Rank, world size and device of this process."""


@dataclass(frozen=True)
class RankSlice:
    """The contiguous range of ``count`` items that this rank works on; equally long on all ranks."""

    start: int
    stop: int

    @staticmethod
    def of(count: int, accelerator: Accelerator, what: str) -> RankSlice:
        world = accelerator.num_processes
        if count % world:
            raise ValueError(
                f"{what} must divide evenly among {world} processes, got {count}; use a multiple of {world}"
            )
        each = count // world
        return RankSlice(accelerator.process_index * each, (accelerator.process_index + 1) * each)


def gather_rows(value: Tensor, accelerator: Processes) -> Tensor:
    """Concatenate the rows of all ranks, in rank order, on the device by which they communicate; the number of rows may
    differ between ranks. The rows of one process stay where they are."""
    if accelerator.num_processes == 1:
        return value
    value, counts = value.to(accelerator.device), row_counts(value, accelerator)
    longest = max(counts)
    padded = torch.cat([value, value.new_zeros((longest - len(value), *value.shape[1:]))])
    gathered = cast(Tensor, gather(padded))
    return torch.cat([gathered[rank * longest :][:count] for rank, count in enumerate(counts)])


def gather_texts(texts: Sequence[str], accelerator: Processes) -> list[str]:
    """Concatenate the texts of all ranks, in rank order; they are gathered as padded rows of length and UTF-8 bytes."""
    if accelerator.num_processes == 1:
        return list(texts)
    encoded = [text.encode() for text in texts]
    width = int(largest(float(max((len(one) for one in encoded), default=0)), accelerator))
    rows = torch.zeros((len(encoded), 1 + width), dtype=torch.int32)
    for row, one in zip(rows, encoded, strict=True):
        row[0] = len(one)
        row[1 : 1 + len(one)] = torch.tensor(list(one), dtype=torch.int32)
    gathered = gather_rows(rows, accelerator).cpu()
    return [bytes(row[1 : 1 + row[0]].tolist()).decode() for row in gathered]


def row_counts(value: Tensor, accelerator: Processes) -> list[int]:
    """The number of rows on each rank."""
    if accelerator.num_processes == 1:
        return [len(value)]
    return cast(Tensor, gather(torch.tensor([len(value)], device=accelerator.device))).tolist()


def largest(value: float, accelerator: Processes) -> float:
    """The maximum over ranks."""
    if accelerator.num_processes == 1:
        return value
    return float(gather_rows(torch.tensor([value]), accelerator).max())


def sum_by_name(values: Mapping[str, float], names: Sequence[str], accelerator: Accelerator) -> dict[str, float]:
    """Sums over ranks of numbers by name; a rank may lack some of ``names``, which are the same on all."""
    row = torch.tensor([values.get(name, 0.0) for name in names], dtype=torch.float64)
    if accelerator.num_processes > 1:
        row = sum_over_ranks(row.to(accelerator.device), accelerator).cpu()
    return dict(zip(names, row.tolist(), strict=True))


def total(number: float | int, accelerator: Accelerator) -> float:
    """The sum over ranks of a number."""
    return sum_by_name({"": float(number)}, [""], accelerator)[""]


def sum_over_ranks(value: Tensor, accelerator: Accelerator) -> Tensor:
    """The sum over ranks of a tensor of equal shape on all of them."""
    return value if accelerator.num_processes == 1 else cast(Tensor, accelerator.reduce(value, reduction="sum"))


def gather_decisions(decisions: Decisions, accelerator: Accelerator, draw: int) -> Decisions:
    """Concatenate the decisions of all ranks, padded to the rank with the most decisions per row, on the host."""
    longest = int(largest(float(decisions.loss_mask.shape[1]), accelerator))
    place = draw * accelerator.num_processes + accelerator.process_index
    local = pad_decisions(decisions, longest)
    local = replace(local, node=local.node + place * NODES_PER_RANK)
    return local.by(lambda tensors: fetched([gather_rows(one, accelerator) for one in tensors]))


def pad_decisions(decisions: Decisions, width: int) -> Decisions:
    """Pad the decision axis to ``width`` with positions whose masks are False."""

    def pad(value: Tensor) -> Tensor:
        if value.dim() != 2 or value.shape[1] == width:
            return value
        return nn.functional.pad(value, (0, width - value.shape[1]))

    return decisions.by(lambda tensors: [*map(pad, tensors)])


def join_decisions(draws: Sequence[Decisions]) -> Decisions:
    """Concatenate the rows of several draws of one round."""
    if len(draws) == 1:
        return draws[0]
    width = max(one.loss_mask.shape[1] for one in draws)
    padded = [pad_decisions(one, width) for one in draws]
    first = padded[0]
    return Decisions(
        log_probs=torch.cat([one.log_probs for one in padded]),
        loss_mask=torch.cat([one.loss_mask for one in padded]),
        decision_mask=torch.cat([one.decision_mask for one in padded]),
        node=torch.cat([one.node for one in padded]),
        origin=torch.cat([one.origin for one in padded]),
        keys={name: torch.cat([one.keys[name] for one in padded]) for name in first.keys},
        fields={name: torch.cat([one.fields[name] for one in padded]) for name in first.fields},
    )


def gather_reward_scores(reward_scores: RewardScores, accelerator: Accelerator) -> RewardScores:
    """Concatenate the reward scores of all ranks, on the host."""
    tensors = reward_scores.values, reward_scores.valid, reward_scores.abstentions
    return RewardScores(*fetched([gather_rows(one, accelerator) for one in tensors]))


def sum_gradients(parameters: Iterable[nn.Parameter], accelerator: Accelerator) -> None:
    """Sum gradients over ranks; a gradient of None counts as zero, on one rank as on many.

    AdamW treats the two differently: with a zero gradient its moments decay and still move the weights, and weight
    decay acts; with None it skips the parameter. Which of them a parameter has when nothing can be learned (all
    decisions clipped) depends on the objective and on the rows of this rank, and the step must depend on neither.
    The trainer skips a step that has no decision to train. Gradients of shards are sums already.
    """
    parameters = list(parameters)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    if accelerator.num_processes == 1 or is_shard(parameters[0]):
        return
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])  # type: ignore[union-attr]
    total = sum_over_ranks(flat, accelerator)
    offset = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.grad.copy_(total[offset : offset + size].view_as(parameter))  # type: ignore[union-attr,index]
        offset += size
