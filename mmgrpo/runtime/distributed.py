"""Communication between ranks: gathered rows and summed gradients, and the phases of a sharded network.

Networks are not wrapped (no DDP): each rank accumulates the gradient of its own micro-batches, whose number may differ
between ranks, and gradients are reduced once per optimizer step. The loss weights sum to one over all ranks, so
gradients are summed, never averaged.

Neighbouring ranks that divide the tokens of their samples (``distributed.sequence``) are one data rank: they work on
the same rows and compute the same numbers, and what is gathered or summed is that of the first of them, so all
have the same round to the bit. Gradients alone are parts, of which each rank has its own.

A network whose weights are divided among ranks (``mmgrpo.runtime.sharding``) is listed in ``SHARDED``; for any other
its phases are plain blocks:

    drawing_weights(network)           a phase of rollouts or of an evaluation
    scoring_weights(network)           a phase of an update, whose gradients come from backward(loss, network, ...)
    in_step(network, parts, spare)     equally many parts on every process
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import gather
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from mmgrpo.runtime.devices import fetch
from mmgrpo.scoring import RewardScores
from mmgrpo.types import Decisions

NODES_PER_RANK = 1 << 40
"""Offset between the node numbers of ranks and draws, larger than any rank's number of nodes, so they differ."""


Processes = Accelerator | PartialState
"""Rank, world size and device of this process."""


TOGETHER: WeakKeyDictionary[Processes, int] = WeakKeyDictionary()
"""How many neighbouring ranks are one data rank, where that is more than one."""


@dataclass(frozen=True)
class DataRank:
    """The data rank of this process, of so many; ``first``: what it computes counts for all ranks that are this one."""

    index: int
    count: int
    first: bool

    @staticmethod
    def of(accelerator: Processes) -> DataRank:
        together = TOGETHER.get(accelerator, 1)
        index, place = divmod(accelerator.process_index, together)
        return DataRank(index, accelerator.num_processes // together, place == 0)


@dataclass(frozen=True)
class RankSlice:
    """The contiguous range of ``count`` items that this data rank works on; equally long on all of them."""

    start: int
    stop: int

    @staticmethod
    def of(count: int, accelerator: Accelerator, what: str) -> RankSlice:
        rank = DataRank.of(accelerator)
        if count % rank.count:
            raise ValueError(
                f"{what} must divide evenly among {rank.count} processes, got {count}; use a multiple of {rank.count}"
            )
        each = count // rank.count
        return RankSlice(rank.index * each, (rank.index + 1) * each)


def gather_rows(value: Tensor, accelerator: Processes) -> Tensor:
    """Concatenate the rows of all data ranks, in their order, on the device by which they communicate; the number of
    rows may differ between them. The rows of one process stay where they are."""
    if accelerator.num_processes == 1:
        return value
    value, counts = value.to(accelerator.device), row_counts(value, accelerator)
    longest = max(counts)
    padded = torch.cat([value, value.new_zeros((longest - len(value), *value.shape[1:]))])
    gathered, together = cast(Tensor, gather(padded)), TOGETHER.get(accelerator, 1)
    return torch.cat([gathered[rank * together * longest :][:count] for rank, count in enumerate(counts)])


def gather_texts(texts: Sequence[str], accelerator: Processes) -> list[str]:
    """Concatenate the texts of all data ranks, in their order; they are gathered as padded rows of length and UTF-8
    bytes."""
    if accelerator.num_processes == 1:
        return list(texts)
    encoded = [text.encode() for text in texts]
    width = int(largest(float(max((len(content) for content in encoded), default=0)), accelerator))
    rows = torch.zeros((len(encoded), 1 + width), dtype=torch.int32)
    for row, content in zip(rows, encoded, strict=True):
        row[0] = len(content)
        row[1 : 1 + len(content)] = torch.tensor(list(content), dtype=torch.int32)
    gathered = gather_rows(rows, accelerator).cpu()
    return [bytes(row[1 : 1 + row[0]].tolist()).decode() for row in gathered]


def gather_tables(tables: Sequence[Mapping[str, Tensor]], accelerator: Processes) -> list[dict[str, Tensor]]:
    """Concatenate the named tensors, of any shapes, of all data ranks, in their order and on the host; they travel as
    the bytes of safetensors, padded to the longest."""
    if accelerator.num_processes == 1:
        return [dict(table) for table in tables]
    blobs = [to_bytes({name: value.cpu().contiguous() for name, value in table.items()}) for table in tables]
    width = int(largest(float(max(map(len, blobs), default=0)), accelerator))
    rows = torch.zeros((len(blobs), width), dtype=torch.uint8)
    for row, blob in zip(rows, blobs, strict=True):
        row[: len(blob)] = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
    lengths = gather_rows(torch.tensor([len(blob) for blob in blobs], dtype=torch.long), accelerator).tolist()
    gathered = gather_rows(rows, accelerator).cpu()
    return [from_bytes(bytes(row[:length].tolist())) for row, length in zip(gathered, lengths, strict=True)]


def row_counts(value: Tensor, accelerator: Processes) -> list[int]:
    """The number of rows on each data rank."""
    if accelerator.num_processes == 1:
        return [len(value)]
    counts = cast(Tensor, gather(torch.tensor([len(value)], device=accelerator.device)))
    return counts[:: TOGETHER.get(accelerator, 1)].tolist()


def largest(value: float, accelerator: Processes) -> float:
    """The maximum over all ranks."""
    if accelerator.num_processes == 1:
        return value
    return float(cast(Tensor, gather(torch.tensor([value], device=accelerator.device))).max())


def sum_by_name(values: Mapping[str, float], names: Sequence[str], accelerator: Accelerator) -> dict[str, float]:
    """Sums over data ranks of numbers by name; a rank may lack some of ``names``, which are the same on all."""
    row = torch.tensor([values.get(name, 0.0) for name in names], dtype=torch.float64)
    if accelerator.num_processes > 1:
        row = sum_over_ranks(row.to(accelerator.device), accelerator).cpu()
    return dict(zip(names, row.tolist(), strict=True))


def total(number: float | int, accelerator: Accelerator) -> float:
    """The sum over data ranks of a number."""
    return sum_by_name({"": float(number)}, [""], accelerator)[""]


def sum_over_ranks(value: Tensor, accelerator: Accelerator) -> Tensor:
    """The sum over data ranks of a tensor of equal shape on all of them."""
    if accelerator.num_processes == 1:
        return value
    counted = value if DataRank.of(accelerator).first else torch.zeros_like(value)
    return cast(Tensor, accelerator.reduce(counted, reduction="sum"))


def gather_decisions(decisions: Decisions, accelerator: Accelerator, draw: int) -> Decisions:
    """Concatenate the decisions of all data ranks, padded to the longest row of any, on the host."""
    longest = int(largest(float(decisions.loss_mask.shape[1]), accelerator))
    place = draw * accelerator.num_processes + accelerator.process_index
    mine = pad_decisions(decisions, longest)
    mine = replace(mine, node=mine.node + place * NODES_PER_RANK)
    return mine.by(lambda tensors: fetch([gather_rows(tensor, accelerator) for tensor in tensors]))


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
    width = max(draw.loss_mask.shape[1] for draw in draws)
    padded = [pad_decisions(draw, width) for draw in draws]
    first = padded[0]
    return Decisions(
        log_probs=torch.cat([part.log_probs for part in padded]),
        loss_mask=torch.cat([part.loss_mask for part in padded]),
        decision_mask=torch.cat([part.decision_mask for part in padded]),
        node=torch.cat([part.node for part in padded]),
        origin=torch.cat([part.origin for part in padded]),
        keys={name: torch.cat([part.keys[name] for part in padded]) for name in first.keys},
        fields={name: torch.cat([part.fields[name] for part in padded]) for name in first.fields},
    )


def gather_reward_scores(reward_scores: RewardScores, accelerator: Accelerator) -> RewardScores:
    """Concatenate the reward scores of all data ranks, on the host."""
    tensors = reward_scores.values, reward_scores.valid, reward_scores.abstentions
    return RewardScores(*fetch([gather_rows(tensor, accelerator) for tensor in tensors]))


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
    total = cast(Tensor, accelerator.reduce(flat, reduction="sum"))  # also of ranks that are one data rank
    offset = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.grad.copy_(total[offset : offset + size].view_as(parameter))  # type: ignore[union-attr,index]
        offset += size


Part = TypeVar("Part")


@runtime_checkable
class Sharded(Protocol):
    """What divides the weights of a network among ranks does in a round, each as the function below that calls it."""

    def drawing(self, uneven: bool) -> AbstractContextManager[None]: ...
    def scoring(self) -> AbstractContextManager[None]: ...
    def pad_parts(self, parts: Iterable[Part], spare: Callable[[], Part]) -> Iterator[tuple[Part, bool]]: ...
    def backward(self, loss: Tensor, backward: Callable[[Tensor], None]) -> None: ...


SHARDED: WeakKeyDictionary[nn.Module, Sharded] = WeakKeyDictionary()
"""The networks that are sharded, copies included."""


def drawing_weights(network: nn.Module, uneven: bool = False) -> AbstractContextManager[None]:
    """A ``with`` block of rollouts or of an evaluation, without gradients. ``uneven``: processes may call a network
    more or less often, also one whose calls are otherwise in step. All processes must enter it.

    Nothing changes for a network that is not sharded, and within another such block.
    """
    return SHARDED[network].drawing(uneven) if network in SHARDED else nullcontext()


def scoring_weights(network: nn.Module) -> AbstractContextManager[None]:
    """A ``with`` block in which rows are scored, also with gradients, which are those of the shards afterwards, summed
    over processes. All processes must enter it; else as ``drawing_weights``."""
    return SHARDED[network].scoring() if network in SHARDED else nullcontext()


def in_step(network: nn.Module, parts: Iterable[Part], spare: Callable[[], Part]) -> Iterator[tuple[Part, bool]]:
    """The parts of this process, and whether each counts. Where the network gathers its blocks call by call, processes
    with fewer parts than another compute one of ``spare()``, which does not count, as often as is missing."""
    return SHARDED[network].pad_parts(parts, spare) if network in SHARDED else ((part, True) for part in parts)


def backward(loss: Tensor, network: nn.Module, accelerator: Accelerator) -> None:
    """The backward pass of a loss, when the other processes are ready for it."""
    if network in SHARDED:
        SHARDED[network].backward(loss, accelerator.backward)
    else:
        accelerator.backward(loss)


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is one of the shards of a larger one."""
    if not SHARDED:  # without the import, which takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor; one that is not sharded as it is."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """A tensor made whole; where it is a shard, all processes must call."""
    return tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[operator]


def clip_gradients(parameters: Sequence[nn.Parameter], most: float) -> Tensor:
    """Scale gradients down to a norm of ``most`` (0: of any size); their norm before, whole."""
    return whole(nn.utils.clip_grad_norm_(parameters, most or math.inf))


def everywhere(flag: bool, tensors: Iterable[Tensor]) -> bool:
    """Whether a flag about tensors is true on all processes where one of them is a shard, which others do not see."""
    shards = [tensor for tensor in tensors if is_shard(tensor)]
    if not shards:
        return flag
    return reduce_numbers([int(flag)], local(shards[0]).device, torch.distributed.ReduceOp.MIN) == [1]


def reduce_numbers(numbers: Sequence[int], device: torch.device, operation: Any) -> list[int]:
    """Numbers reduced over all processes."""
    row = torch.tensor(numbers, device=device)
    torch.distributed.all_reduce(row, operation)
    return row.tolist()
