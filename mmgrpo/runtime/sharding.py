"""Weights, gradients and optimizer divided among the processes of a run: FSDP2 of torch (``fully_shard``).

    shard(networks, blocks, mesh)      after adapters are added, before the optimizer is made
    whole(tensor), like(value, shard)  a shard made whole, and a whole tensor as a shard
    whole_weights(network)             a phase in which every process holds the whole weights
    in_step(network, parts, spare)     equally many parts on every process
    whole_state(network)               the whole state dict, for what saves a network

Every block of a network is one unit: its weights are gathered before it computes and freed afterwards, so that all
processes must compute equally many blocks, or they wait for each other forever. Denoising models do: the calls of a
rollout are equally many everywhere, and those of an update are filled up with parts that do not count. What a language
model calls depends on its rows (lengths, media, shared prefixes), so that its weights are whole during each rollout,
each batch of an evaluation and each update, and divided between them, as its optimizer always is.

Gradients are summed and not averaged, in fp32: the weights of the loss sum to one over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Part = TypeVar("Part")


@dataclass(frozen=True)
class Sharding:
    """How a network is sharded."""

    in_step: bool
    """Weights are gathered block by block, by calls that are equally many on all processes; else for whole phases."""
    units: tuple[Any, ...]
    """The units of the network and of its frozen copies."""


SHARDED: WeakKeyDictionary[nn.Module, Sharding] = WeakKeyDictionary()
"""The networks that are sharded, copies included."""


def mesh_of(device: str, replicate: int = 1) -> DeviceMesh:
    """The processes as one line of shards, or with ``replicate`` above 1 as so many lines that each hold everything
    (HSDP), neighbours in one line. ValueError where lines would have no two processes or not equally many."""
    from torch.distributed.device_mesh import init_device_mesh

    world = torch.distributed.get_world_size()
    if world % replicate or world == replicate:
        raise ValueError(
            f"distributed.replicate: got {replicate} with {world} processes, expected a divisor of {world} below it: "
            "each copy of the model is divided among at least two processes"
        )
    if replicate == 1:
        return init_device_mesh(device, (world,), mesh_dim_names=("shard",))
    return init_device_mesh(device, (replicate, world // replicate), mesh_dim_names=("replicate", "shard"))


def shard(
    networks: Sequence[nn.Module],
    blocks: Sequence[str],
    mesh: DeviceMesh,
    *,
    in_step: bool,
    compute: torch.dtype = torch.float32,
) -> None:
    """Shard the trained network (the first one) and its frozen copies, in place; names of parameters stay.

    ``blocks`` are those of the family (``mmgrpo.family.Blocks``); ValueError where the network has none of them. Where
    all weights are fp32 and ``compute`` is a lower precision, blocks are gathered in it; gradients are reduced in fp32
    all the same, and what the network is given (timesteps) is not rounded.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    lower = in_step and compute != torch.float32 and all(p.dtype == torch.float32 for p in networks[0].parameters())
    precision = MixedPrecisionPolicy(compute, torch.float32) if lower else MixedPrecisionPolicy()
    precision = MixedPrecisionPolicy(precision.param_dtype, precision.reduce_dtype, cast_forward_inputs=False)
    units: list[Any] = []
    for network in networks:
        parts = list(network.modules())[:0:-1]  # inner ones first
        chosen = [one for one in parts if any(fnmatchcase(type(one).__name__, name) for name in blocks)]
        if not chosen:
            raise ValueError(
                f"distributed.shard: got full, but {type(network).__name__} has none of the blocks that its family "
                f"names ({', '.join(blocks)}); name those of this network, or set distributed.shard=none"
            )
        for unit in [*chosen, network]:
            name = type(unit).__name__
            # Also the outermost unit frees its weights after a forward pass: left whole, they would go on computing
            # where an average is put in the place of the shards.
            fully_shard(unit, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
            type(unit).__name__ = name  # diffusers writes it into configurations
            assert isinstance(unit, FSDPModule)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # without it only NCCL takes the factor
            units.append(unit)
    for network in networks:
        SHARDED[network] = Sharding(in_step, tuple(units))


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor; one that is not sharded as it is."""
    return tensor.to_local() if is_shard(tensor) else tensor  # type: ignore[operator]


def whole(tensor: Tensor) -> Tensor:
    """A tensor made whole; where it is a shard, all processes must call."""
    return tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[operator]


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, equal on all processes, as the shard that this process has of a parameter of the same shape."""
    if not is_shard(parameter) or is_shard(value) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    given: Any = parameter
    return distribute_tensor(value.detach().to(given.device), given.device_mesh, given.placements)


def stored(parameter: Tensor, network: nn.Module) -> Tensor:
    """A copy of a parameter as further networks keep it: as this process's shard, or whole, where the weights of the
    ``network`` are whole when it computes. All processes must call."""
    sharding = SHARDED.get(network)
    value = parameter.detach()
    return value.clone() if sharding is None or sharding.in_step else whole(value).clone()


def stored_like(value: Tensor, parameter: Tensor, network: nn.Module) -> Tensor:
    """A whole tensor, equal on all processes, as ``stored`` would keep it."""
    sharding = SHARDED.get(network)
    return value if sharding is None or not sharding.in_step else like(value, parameter)


def collected(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The tensors by name, shards made whole one by one and moved to the CPU; none where ``keep`` is false, so that
    only the process that writes them holds them. All processes must call."""
    values = ((name, whole(one.detach()).cpu() if is_shard(one) else one) for name, one in tensors.items())
    return {name: value for name, value in values if keep}


def everywhere(flag: bool, tensors: Iterable[Tensor]) -> bool:
    """Whether a flag about tensors is true on all processes where one of them is a shard, which others do not see."""
    shards = [one for one in tensors if is_shard(one)]
    if not shards:
        return flag
    return _reduced([int(flag)], local(shards[0]).device, torch.distributed.ReduceOp.MIN) == [1]


def anywhere(flags: Sequence[bool], network: nn.Module) -> list[bool]:
    """For each flag whether it is true on some process, where the network is a sharded one; else the flags."""
    if not SHARDED:
        return list(flags)
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(network, FSDPModule) or not is_shard(next(network.parameters())):
        return list(flags)
    device = local(next(network.parameters())).device
    return [bool(one) for one in _reduced([int(one) for one in flags], device, torch.distributed.ReduceOp.MAX)]


def in_step(network: nn.Module, parts: Iterable[Part], spare: Callable[[], Part]) -> Iterator[tuple[Part, bool]]:
    """The parts of this process, and whether each counts. Where the network gathers its blocks call by call, processes
    with fewer parts than another compute one of ``spare()``, which does not count, as often as is missing."""
    sharding = SHARDED.get(network)
    if sharding is None or not sharding.in_step or not is_shard(next(network.parameters())):
        yield from ((part, True) for part in parts)
        return
    own, device = list(parts), local(next(network.parameters())).device
    most = _reduced([len(own)], device, torch.distributed.ReduceOp.MAX)[0]
    yield from ((part, True) for part in own)
    yield from ((spare(), False) for _ in range(most - len(own)))


@contextmanager
def whole_weights(network: nn.Module, uneven: bool = False) -> Iterator[None]:
    """A ``with`` block in which the weights of a network and of its copies are whole on every process, so that it may
    be called in any way and any number of times; afterwards gradients are summed over processes and divided.

    Nothing changes within another such block, for a network that is not sharded, and for one that gathers its blocks
    call by call, unless its calls are ``uneven``, more on one process than on another; equal on all processes.
    The weights must not be replaced inside.
    """
    sharding = SHARDED.get(network)
    trained = {name: one for name, one in network.named_parameters() if one.requires_grad} if sharding else {}
    if sharding is None or (sharding.in_step and not uneven) or not all(map(is_shard, trained.values())):
        yield
        return
    for unit in sharding.units:
        _free_after_calls(unit, False)
        unit.unshard()
    try:
        yield
    finally:
        gradients: dict[str, Tensor] = {}
        for name, parameter in network.named_parameters():
            if parameter.grad is not None and name in trained:
                gradients[name], parameter.grad = parameter.grad, None
        for unit in sharding.units:
            unit.reshard()
            _free_after_calls(unit, True)
        _add_sums(trained, gradients)


def _free_after_calls(unit: Any, free: bool) -> None:
    """Whether a unit divides its weights and gradients after each call of it."""
    unit.set_reshard_after_forward(free, recurse=False)
    unit.set_reshard_after_backward(free, recurse=False)
    unit.set_requires_gradient_sync(free, recurse=False)


@torch.no_grad()
def _add_sums(trained: Mapping[str, Tensor], gradients: dict[str, Tensor]) -> None:
    """Add the sums over processes of whole gradients to those of the shards; one that a process lacks is zero there,
    and one that all lack stays absent."""
    from torch.distributed.tensor import DTensor, Partial

    device = local(next(iter(trained.values()))).device
    counts = _reduced([int(name in gradients) for name in trained], device, torch.distributed.ReduceOp.MAX)
    for (name, parameter), count in zip(trained.items(), counts, strict=True):
        if count:
            given: Any = parameter
            own = gradients.pop(name, None)
            own = torch.zeros(given.shape, device=device) if own is None else own.float()
            partial = DTensor.from_local(own, given.device_mesh, [Partial("sum")] * given.device_mesh.ndim)
            total = partial.redistribute(placements=given.placements).to(given.dtype)
            parameter.grad = total if parameter.grad is None else parameter.grad + total


@contextmanager
def whole_state(network: nn.Module, write: bool) -> Iterator[None]:
    """A ``with`` block in which ``state_dict()`` of a sharded network and of its parts is whole where ``write`` is
    true; all processes must enter it. Where adapters train, it has them alone, which is what is saved."""
    if network not in SHARDED:
        yield
        return
    named = dict(network.named_parameters(remove_duplicate=False))
    adapters = any(".lora_" in name for name, one in named.items() if one.requires_grad)
    named = {name: one for name, one in named.items() if not adapters or ".lora_" in name}
    once: dict[int, Tensor] = {}  # tied weights stay one tensor
    for parameter in {id(one): one for one in named.values()}.values():
        value = whole(parameter.detach())
        once[id(parameter)] = value.cpu() if write else value.new_empty(0)
    state = {name: once[id(one)] for name, one in named.items()}
    parts = [(f"{name}." if name else "", one) for name, one in network.named_modules()]
    for prefix, part in parts:
        stored = {n: one for n, one in part.named_buffers(recurse=False) if n not in part._non_persistent_buffers_set}
        state |= {f"{prefix}{name}": one.detach().cpu() for name, one in stored.items() if not adapters}

    def given(prefix: str) -> Any:
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        return lambda *_, **__: dict(own)

    changed = [(prefix, part) for prefix, part in parts if part in SHARDED or list(part.children())]
    for prefix, part in changed:
        part.state_dict = given(prefix)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for _, part in changed:
            del part.__dict__["state_dict"]


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is one of the shards of a larger one."""
    if not SHARDED:  # without the import, which takes a second
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _reduced(numbers: Sequence[int], device: torch.device, operation: Any) -> list[int]:
    """Numbers reduced over all processes."""
    row = torch.tensor(numbers, device=device)
    torch.distributed.all_reduce(row, operation)
    return row.tolist()
