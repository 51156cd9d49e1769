"""Calls of a sharded network that differ between processes, agreed on one by one.

A unit of FSDP gathers its weights in a collective operation, so all processes must call the same units in the same
order, or they wait for each other forever. What a language model calls depends on its rows: a batch of texts has no use
for the vision tower, prompts that share a prefix take two passes, completions end at different lengths. Here every
process asks before each call, by one small message over the CPU (gloo), so the device's queue is not stalled:

    process 0   vision   language    backward             end
    process 1   (spare)  language    backward   language  end
    process 2   (spare)  (spare)     (spare)    (spare)   end

The first call in the order of the network that any process asks for is made by all. One that does not need it makes a
spare call, which gathers the same weights and computes nothing. A backward pass begins when nobody asks for a call any
more; spare calls are in it, with gradients of zero. The phase ends when nobody has anything left to do.

Calls are counted in chains, the blocks of one list (the layers of a decoder, the blocks of a vision tower), which run
from the first to the last; only the first of them asks. All calls of a backward pass are tied to each other, so
autograd takes them in the reverse order of the calls, which is the same everywhere.

Where other values take the place of the trained ones (a moving reference), a call is of one version of the weights, and
whoever makes it for another process puts its shards of that version in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def chains_of(network: nn.Module, units: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """The units in chains: those of one ``nn.ModuleList`` in its order, and every other one alone."""
    chosen, taken, chains = {id(unit) for unit in units}, set(), []
    for module in network.modules():
        chain = [unit for unit in module if id(unit) in chosen] if isinstance(module, nn.ModuleList) else [module]
        chain = [unit for unit in chain if id(unit) in chosen and id(unit) not in taken]
        taken |= {id(unit) for unit in chain}
        chains += [chain] if chain else []
    return chains


class AgreedCalls:
    """The calls of the chains of a network and its copies while ``active``."""

    def __init__(
        self, chains: Sequence[Sequence[nn.Module]], device: torch.device, put: Callable[[int], None] = lambda _: None
    ) -> None:
        self.chains = chains
        self.put = put
        """Put the shards of a version in place; 0 is the trained one."""
        self.version = 0
        """That of this process's calls."""
        self.versions = 1
        self.device = device
        self.active = False
        self.place = {unit: (number, i) for number, chain in enumerate(chains) for i, unit in enumerate(chain)}
        self.trains = [any(p.requires_grad for unit in chain for p in unit.parameters()) for chain in chains]
        self.next: tuple[int, int] | None = None
        """The unit that is to follow within the chain that is being called."""
        self.learns = False
        """A backward pass will follow from it."""
        self.spare = self.backwards = False
        """A spare call, or a backward pass, is running."""
        self.passes = 0
        """Backward passes so far."""
        self.tie = self._loose()
        self.group = torch.distributed.new_group(backend="gloo")
        for unit in self.place:
            unit.register_forward_pre_hook(self._before, prepend=True, with_kwargs=True)
            unit.register_forward_hook(self._after)

    def begin(self, versions: int = 1) -> None:
        """Begin to agree on calls of so many versions of the weights."""
        self.active, self.next, self.tie = True, None, self._loose()
        self.version, self.versions = 0, versions

    def end(self) -> None:
        """Take part in the calls of the other processes until none has any left."""
        self._agree(self._kinds + 1)
        self.put(0)
        self.active = False

    @property
    def _kinds(self) -> int:
        return 2 * len(self.chains) * self.versions

    def backward(self, loss: Tensor, run: Callable[[Tensor], None]) -> None:
        """``run(loss)``, when all processes are ready for it or have nothing left to do."""
        self._agree(self._kinds)
        self._run(loss, run)

    def _agree(self, turn: int) -> None:
        """Return when it is the turn of ``turn``: twice a chain's number, and one more where a backward pass follows
        from it, for each version; then a backward pass; then the end."""
        while (chosen := self._first(turn)) != turn:
            if chosen < self._kinds:
                version, kind = divmod(chosen, 2 * len(self.chains))
                self.put(version)
                self._call_spare(self.chains[kind // 2], learns=bool(kind % 2))
            else:
                self._run(torch.zeros((), device=self.device), torch.autograd.backward)

    def _first(self, turn: int) -> int:
        row = torch.tensor([turn])
        torch.distributed.all_reduce(row, torch.distributed.ReduceOp.MIN, group=self.group)
        return int(row)

    def _run(self, loss: Tensor, run: Callable[[Tensor], Any]) -> None:
        self.put(0)
        self.backwards = True
        try:
            run(loss + self.tie)
        finally:
            self.backwards, self.tie = False, self._loose()
            self.passes += 1

    def _before(self, unit: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if not self.active or self.spare:
            return None
        number, index = self.place[unit]
        if self.backwards:  # recomputed from a checkpoint, which must keep the same tensors as before
            tied = index == 0 and torch.is_grad_enabled()
            return _first_changed(inputs, named, _needing_gradient) if tied else None
        if (number, index) != (self.next or (number, 0)):
            raise RuntimeError(
                f"{type(unit).__name__}: got the call of block {index}, expected the blocks of "
                f"{type(self.chains[number][0]).__name__} in their order; a family whose networks call them otherwise "
                "cannot be sharded (distributed.shard=none)"
            )
        if index == 0:
            given = [value for value in [*inputs, *named.values()] if isinstance(value, Tensor)]
            wanted = self.trains[number] or any(tensor.requires_grad for tensor in given)
            self.learns = torch.is_grad_enabled() and wanted
            self._agree(2 * (self.version * len(self.chains) + number) + self.learns)
            self.put(self.version)
        self.next = (number, index + 1) if index + 1 < len(self.chains[number]) else None
        if index == 0 and self.learns:
            return _first_changed(inputs, named, lambda tensor: _Tied.apply(tensor, self.tie))
        return None

    def _after(self, unit: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self.active and not self.spare and not self.backwards and self.next is None and self.learns:
            first = (
                output
                if isinstance(output, Tensor)
                else next(tensor for tensor in output if isinstance(tensor, Tensor))
            )
            self.tie = _End.apply(first)

    def _call_spare(self, chain: Sequence[nn.Module], learns: bool) -> None:
        self.spare = True
        try:
            with torch.set_grad_enabled(learns):
                value = self.tie if learns else torch.zeros((), device=self.device)
                for unit in chain:
                    value = _pass_through(unit, value)
            if learns:
                self.tie = value
        finally:
            self.spare = False

    def _loose(self) -> Tensor:
        return torch.zeros((), device=self.device, requires_grad=True)


def _pass_through(unit: Any, value: Tensor) -> Tensor:
    """A value through a unit whose hooks run and which computes nothing; its weights have a gradient of zero."""
    forward = vars(unit).get("forward")
    unit.forward = lambda given: _Spare.apply(given, *[weight for weight in unit.parameters() if weight.requires_grad])
    try:
        return nn.Module.__call__(unit, value)  # not its own, which may checkpoint it
    finally:
        del unit.forward
        if forward is not None:
            unit.forward = forward


def _first_changed(inputs: tuple[Any, ...], named: dict[str, Any], change: Callable[[Tensor], Tensor]) -> Any:
    """The inputs of a call with the first of their tensors of fractions, the hidden states, changed."""
    arguments = [*enumerate(inputs), *named.items()]
    key = next(key for key, value in arguments if isinstance(value, Tensor) and value.is_floating_point())
    if isinstance(key, int):
        return (*inputs[:key], change(inputs[key]), *inputs[key + 1 :]), named
    return inputs, {**named, key: change(named[key])}


def _needing_gradient(value: Tensor) -> Tensor:
    return value if value.requires_grad else value.detach().requires_grad_()


class _Tied(torch.autograd.Function):
    """A value as it is, behind whose gradient that of an earlier call waits."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, tie: Tensor) -> Tensor:
        ctx.tie = tie.dtype, tie.device
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        dtype, device = ctx.tie
        return gradients[0], torch.zeros((), dtype=dtype, device=device)


class _End(torch.autograd.Function):
    """Zero, which depends on the output of a call."""

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.like = output.shape, output.dtype, output.device
        return torch.zeros((), device=output.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        shape, dtype, device = ctx.like
        return torch.zeros(shape, dtype=dtype, device=device)


class _Spare(torch.autograd.Function):
    """A value as it is, and gradients of zero for the weights."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *weights: Tensor) -> Tensor:
        ctx.like = [(weight.shape, weight.dtype, weight.device) for weight in weights]
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], *[torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.like]
