"""Weights, gradients and optimizer divided among the processes of a run: FSDP2 of torch (``fully_shard``).

    shard(networks, blocks, mesh)      after adapters are added, before the optimizer is made
    like(value, shard)                 a whole tensor as a shard
    Sharding                           what ``mmgrpo.runtime.distributed`` asks of a sharded network in a round
    whole_state(network)               the whole state dict, for what saves a network

Every block of a network is one unit: its weights are gathered before it computes and freed afterwards, so all
processes must compute equally many blocks, or they wait for each other forever. Denoising models do: the calls of a
rollout are equally many everywhere, and those of an update are filled up with parts that do not count. What a language
model calls depends on its rows (lengths, media, shared prefixes): its processes agree on every call
(``mmgrpo.runtime.agreed_calls``), while what belongs to no block (embeddings, head) is whole for the phase. Rollouts
may also hold all weights whole, which gathers them once and not for every token.

Gradients are summed and not averaged, in fp32: the weights of the loss sum to one over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmgrpo.config.settings import Distributed
from mmgrpo.runtime.agreed_calls import AgreedCalls, chains_of
from mmgrpo.runtime.distributed import SHARDED, Part, is_shard, local, reduce_numbers, whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass
class Versions:
    """What takes the place of a network's trained weights within a phase in which processes agree on calls."""

    network: nn.Module
    others: Callable[[], Sequence[Mapping[str, Tensor]]]
    """Whole values by the names of parameters, in one order on all processes; version n is the n-th of them."""
    current: int = 0
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The trained shards while others are in their place."""

    @torch.no_grad()
    def put(self, version: int) -> None:
        """Put the shards of a version in place."""
        if version == self.current:
            return
        shards = {
            name: parameter
            for name, parameter in self.network.named_parameters()
            if parameter.requires_grad and is_shard(parameter)
        }
        if not self.current:
            self.kept = {name: parameter.detach().clone() for name, parameter in shards.items()}
        values = self.others()[version - 1] if version else self.kept
        for name, weight in shards.items():
            if name in values:
                weight.copy_(like(values[name].to(weight.dtype), weight))
        self.current = version
        self.kept = self.kept if version else {}


@dataclass
class Sharding:
    """How a network is sharded beside its frozen copies, and what a round does with it (``distributed.Sharded``)."""

    network: nn.Module
    in_step: bool
    """Weights are gathered block by block, by calls that are equally many on all processes."""
    units: tuple[Any, ...]
    """All units, those of the whole networks included."""
    networks: tuple[Any, ...]
    whole_rollouts: bool
    """All weights are whole during a rollout or an evaluation."""
    versions: Versions
    calls: AgreedCalls | None = None
    """Of networks that are not called in step; without it all weights are whole also during an update."""
    open: bool = False
    """A phase has begun."""

    def drawing(self, uneven: bool) -> AbstractContextManager[None]:
        return self._phase(self.whole_rollouts or (uneven and self.in_step))

    def scoring(self) -> AbstractContextManager[None]:
        return self._phase(not self.in_step and not self.calls)

    def pad_parts(self, parts: Iterable[Part], spare: Callable[[], Part]) -> Iterator[tuple[Part, bool]]:
        first = next(self.network.parameters())
        if not self.in_step or not is_shard(first):
            yield from ((part, True) for part in parts)
            return
        mine = list(parts)
        most = reduce_numbers([len(mine)], local(first).device, torch.distributed.ReduceOp.MAX)[0]
        yield from ((part, True) for part in mine)
        yield from ((spare(), False) for _ in range(most - len(mine)))

    def backward(self, loss: Tensor, backward: Callable[[Tensor], None]) -> None:
        if self.calls is not None and self.calls.active:
            self.calls.backward(loss, backward)
        else:
            backward(loss)

    @contextmanager
    def _phase(self, whole: bool) -> Iterator[None]:
        """Gather the units that are to be whole, all or those outside of blocks; at the end divide them and the sums of
        their gradients over processes. The weights must not be replaced in place inside."""
        if self.open or not (whole or self.calls):
            yield
            return
        trained = {name: parameter for name, parameter in self.network.named_parameters() if parameter.requires_grad}
        for (
            network
        ) in self.networks:  # the order of earlier calls, by which FSDP gathers ahead, differs between processes
            network.reset_iter_state()
        gathered = self.units if whole else self.networks
        for unit in gathered:
            _free_after_calls(unit, False)
            unit.unshard()
        calls = None if whole else self.calls
        self.open, finished = True, False
        try:
            if calls:
                calls.begin(1 + len(self.versions.others()))
            yield
            if calls:
                calls.end()
            finished = True
        finally:
            self.open = False
            gradients: dict[str, Tensor] = {}
            for name, parameter in self.network.named_parameters():
                if parameter.grad is not None and not is_shard(parameter):
                    gradients[name], parameter.grad = parameter.grad, None
            for unit in gathered:
                unit.reshard()
                _free_after_calls(unit, True)
            if calls:
                calls.active = False
            if finished:  # else the other processes are elsewhere, and would be waited for forever
                _add_sums(trained, gradients)


def sharding_of(network: nn.Module) -> Sharding | None:
    """How a network is sharded; None for one that is not."""
    sharding = SHARDED.get(network)
    return sharding if isinstance(sharding, Sharding) else None


def mesh_of(device: str, replicate: int = 1) -> DeviceMesh:
    """The processes as one line of shards, or with ``replicate`` above 1 as so many lines that each hold everything
    (HSDP), neighbours in one line. ValueError where lines would have no two processes or not equally many."""
    from torch.distributed.device_mesh import init_device_mesh

    world = torch.distributed.get_world_size()
    Distributed("full", replicate).check(world)
    if replicate == 1:
        return init_device_mesh(device, (world,), mesh_dim_names=("shard",))
    return init_device_mesh(device, (replicate, world // replicate), mesh_dim_names=("replicate", "shard"))


def sequences_of(device: str, together: int) -> DeviceMesh:
    """The processes as lines of ``together`` neighbours that divide the tokens of their samples (``ulysses``); the
    dimension ``ring`` is of one."""
    from torch.distributed.device_mesh import init_device_mesh

    lines = torch.distributed.get_world_size() // together
    return init_device_mesh(device, (lines, 1, together), mesh_dim_names=("data", "ring", "ulysses"))


def shard(
    networks: Sequence[nn.Module],
    blocks: Sequence[str],
    mesh: DeviceMesh,
    *,
    in_step: bool,
    agree: bool = True,
    whole_rollouts: bool | None = None,
    compute: torch.dtype = torch.float32,
    others: Callable[[], Sequence[Mapping[str, Tensor]]] = list,
) -> None:
    """Shard the trained network (the first one) and its frozen copies, in place; names of parameters stay.

    ``blocks`` are those of the family (``mmgrpo.family.Blocks``); ValueError where the network has none of them. Where
    calls are not ``in_step``, processes agree on them, or hold whole weights in every phase (without ``agree``).
    ``whole_rollouts``: by default where calls are not in step. ``others`` are the values that may take the place of the
    trained ones.

    Where all weights are fp32 and ``compute`` is a lower precision, blocks are gathered in it; gradients are reduced in
    fp32 all the same, and what the network is given (timesteps) is not rounded.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    agree = agree and not in_step
    fp32 = compute != torch.float32 and all(p.dtype == torch.float32 for p in networks[0].parameters())
    lower = compute if fp32 and (in_step or agree) else None
    units: list[Any] = []
    chains: list[list[nn.Module]] = []
    for network in networks:
        parts = list(network.modules())[:0:-1]  # inner ones first
        chosen = [unit for unit in parts if any(fnmatchcase(type(unit).__name__, name) for name in blocks)]
        if not chosen:
            raise ValueError(
                f"distributed.shard: got full, but {type(network).__name__} has none of the blocks that its family "
                f"names ({', '.join(blocks)}); name those of this network, or set distributed.shard=none"
            )
        if agree:  # a unit within another one would be gathered within its call
            inside = {id(part) for unit in chosen for part in list(unit.modules())[1:]}
            chosen = [unit for unit in chosen if id(unit) not in inside]
            chains += chains_of(network, chosen)
        for unit in [*chosen, network]:
            name = type(unit).__name__
            # Gradients of what is whole for a phase are added up there, which must not happen in a lower precision.
            reduced = None if agree and unit is network else lower
            precision = MixedPrecisionPolicy(reduced, reduced and torch.float32, cast_forward_inputs=False)
            # Also the outermost unit frees its weights after a forward pass: left whole, they would go on computing
            # where an average is put in the place of the shards.
            fully_shard(unit, mesh=mesh, reshard_after_forward=True, mp_policy=precision)
            type(unit).__name__ = name  # diffusers writes it into configurations
            assert isinstance(unit, FSDPModule)
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)  # without it only NCCL takes the factor
            units.append(unit)
        # FSDP takes what is called first for the whole network, also where its parts are called one by one.
        given: Any = network
        given.called_first = lambda: None
        register_fsdp_forward_method(network, "called_first")
        given.called_first()
        del given.called_first
    versions = Versions(networks[0], others)
    calls = AgreedCalls(chains, torch.device(mesh.device_type), versions.put) if agree else None
    rollouts = not in_step if whole_rollouts is None else whole_rollouts or not (in_step or agree)
    for network in networks:
        SHARDED[network] = Sharding(network, in_step, tuple(units), tuple(networks), rollouts, versions, calls)


def like(value: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor, equal on all processes, as the shard that this process has of a parameter of the same shape."""
    if not is_shard(parameter) or is_shard(value) or value.shape != parameter.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    given: Any = parameter
    # No process asks another for its part, so one alone may call.
    return distribute_tensor(value.detach().to(given.device), given.device_mesh, given.placements, src_data_rank=None)


def stored_copy(parameter: Tensor, network: nn.Module) -> Tensor:
    """A copy of a parameter as further networks keep it: as this process's shard, or whole, where the weights of the
    ``network`` are whole when it computes. All processes must call."""
    sharding = sharding_of(network)
    value = parameter.detach()
    return value.clone() if sharding is None or sharding.in_step else whole(value).clone()


def stored_like(value: Tensor, parameter: Tensor, network: nn.Module) -> Tensor:
    """A whole tensor, equal on all processes, as ``stored_copy`` would keep it."""
    sharding = sharding_of(network)
    return value if sharding is None or not sharding.in_step else like(value, parameter)


def collect_whole(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """The tensors by name, shards made whole one by one and moved to the CPU; none where ``keep`` is false, so
    only the process that writes them holds them. All processes must call."""
    values = ((name, whole(tensor.detach()).cpu() if is_shard(tensor) else tensor) for name, tensor in tensors.items())
    return {name: value for name, value in values if keep}


@contextmanager
def swap_weights(network: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """The parameters of the network hold ``values``, whole ones by their names, within a ``with`` block; no memory is
    copied, but for shards."""
    parameters = {name: parameter for name, parameter in network.named_parameters() if name in values}
    shards = {
        name: parameter for name, parameter in parameters.items() if is_shard(parameter)
    }  # gathered from a place of their own
    held = {name: parameter.data for name, parameter in parameters.items() if name not in shards}
    sharding = sharding_of(network)
    calls = sharding.calls if sharding and sharding.calls and sharding.calls.active else None
    before: dict[str, Tensor] = {}
    if calls and sharding:
        known = [number for number, version in enumerate(sharding.versions.others()) if version is values]
        if not known:
            raise ValueError(
                "distributed.rollout_weights: got blocks where another network than the trained one draws, expected "
                "whole; set it, or leave that network out"
            )
        calls.version = 1 + known[0]
    else:
        before = {name: weight.detach().clone() for name, weight in shards.items()}
        _assign(shards, {name: like(values[name], weight) for name, weight in shards.items()})
    try:
        for name, data in held.items():
            parameters[name].data = values[name].to(data.dtype)
        yield
    finally:
        for name, data in held.items():
            parameters[name].data = data
        if calls:
            calls.version = 0
        else:
            _assign(shards, before)


@torch.no_grad()
def _assign(parameters: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


def anywhere(flags: Sequence[bool], network: nn.Module) -> list[bool]:
    """For each flag whether it is true on some process, where the network is a sharded one; else the flags."""
    if not SHARDED:
        return list(flags)
    from torch.distributed.fsdp import FSDPModule

    if not isinstance(network, FSDPModule) or not is_shard(next(network.parameters())):
        return list(flags)
    device = local(next(network.parameters())).device
    return [
        bool(flag) for flag in reduce_numbers([int(flag) for flag in flags], device, torch.distributed.ReduceOp.MAX)
    ]


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

    if not trained:
        return
    device = local(next(iter(trained.values()))).device
    counts = reduce_numbers([int(name in gradients) for name in trained], device, torch.distributed.ReduceOp.MAX)
    for (name, parameter), count in zip(trained.items(), counts, strict=True):
        if count:
            given: Any = parameter
            gradient = gradients.pop(name, None)
            gradient = torch.zeros(given.shape, device=device) if gradient is None else gradient.float()
            partial = DTensor.from_local(gradient, given.device_mesh, [Partial("sum")] * given.device_mesh.ndim)
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
    adapters = any(".lora_" in name for name, parameter in named.items() if parameter.requires_grad)
    named = {name: parameter for name, parameter in named.items() if not adapters or ".lora_" in name}
    once: dict[int, Tensor] = {}  # tied weights stay one tensor
    for parameter in {id(tensor): tensor for tensor in named.values()}.values():
        value = whole(parameter.detach())
        once[id(parameter)] = value.cpu() if write else value.new_empty(0)
    state = {name: once[id(parameter)] for name, parameter in named.items()}
    parts = [(f"{name}." if name else "", module) for name, module in network.named_modules()]
    for prefix, part in parts:
        stored = {
            n: buffer for n, buffer in part.named_buffers(recurse=False) if n not in part._non_persistent_buffers_set
        }
        state |= {f"{prefix}{name}": buffer.detach().cpu() for name, buffer in stored.items() if not adapters}

    def state_of(prefix: str) -> Any:
        entries = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        return lambda *_, **__: dict(entries)

    changed = [(prefix, part) for prefix, part in parts if part in SHARDED or list(part.children())]
    for prefix, part in changed:
        part.state_dict = state_of(prefix)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for _, part in changed:
            del part.__dict__["state_dict"]
