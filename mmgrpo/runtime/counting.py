"""What one pass of a network computes and keeps, counted by running it once on torch's device without storage.

Nothing is computed and no weight is read, so a network of any size takes a second or two, whatever its weights are
called: operations are those of torch's own formulas for products and convolutions, and what is alive at a time are the
tensors that exist. Attention counts as one operation that keeps no probabilities, as on a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_flop_count
from torch.utils.weak import WeakTensorKeyDictionary

from mmgrpo.runtime.memory import Pass

FLASH: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Attention that keeps no probabilities, and runs without storage."""
ROWS = 32
"""Samples of a pass, beside which what there is once for all of them, and a weight's new gradient, are little."""
INDEXED = {torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_}
"""Operations whose second argument may be masks."""


def cut_stacks(network: nn.Module) -> dict[nn.ModuleList, int]:
    """Leave three of the blocks of each stack of equal ones; the stacks, and how many blocks they had."""
    stacks = {}
    for stack in network.modules():
        if isinstance(stack, nn.ModuleList) and len(stack) > 3 and len({form_of(block) for block in stack}) == 1:
            stacks[stack] = len(stack)
            stack._modules = dict(list(stack._modules.items())[:3])
    return stacks


def form_of(block: nn.Module) -> tuple[Any, ...]:
    """What equal blocks have in common."""
    return type(block), *((name, weight.shape) for name, weight in block.named_parameters())


def count(
    network: nn.Module, run: Callable[[], Any], offloaded: bool = False, stacks: Mapping[nn.ModuleList, int] = {}
) -> Pass:
    """Run a network on the device ``meta`` forth and back; ``run`` calls it with ``ROWS`` samples and returns what it
    predicts.

    Tensors count as numbers of fp32. ``offloaded``: the inputs of blocks that are computed again wait elsewhere.
    ``stacks``: those that are cut (``cut_stacks``), of which each block that is left out takes as much as the third.
    What the libraries raise where a network cannot run without values is passed on.
    """
    for module in network.modules() if offloaded else ():
        if (checkpoint := getattr(module, "_gradient_checkpointing_func", None)) is not None:
            module._gradient_checkpointing_func = offload_inputs(checkpoint)  # type: ignore[assignment]
    total = base = count_once(network, run)
    for stack, depth in stacks.items():
        blocks = stack._modules
        stack._modules = dict(list(blocks.items())[:2])
        less, times = count_once(network, run), depth - 3
        stack._modules = blocks
        total = Pass(
            total.operations + times * (base.operations - less.operations),
            total.kept + times * (base.kept - less.kept),
            total.most + times * (base.most - less.most),
        )
    return total


def count_once(network: nn.Module, run: Callable[[], Any]) -> Pass:
    """A pass of the network as it is."""
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None  # as in a second micro batch
    with attend_at_once(), Alive() as alive:
        out = [leaf for leaf in tree_leaves(run()) if isinstance(leaf, Tensor) and leaf.requires_grad]
        operations, kept = alive.operations, alive.bytes
        torch.autograd.backward([tensor.sum() for tensor in out])
    return Pass(operations / ROWS, kept / 4 / ROWS, alive.most / 4 / ROWS)


class Alive(TorchDispatchMode):
    """Counts operations, and the bytes of the tensors that are made and not gone.

    Tensors on the CPU have values, as masks whose lengths decide what is computed; together with one without storage
    they give one without. Whether all values of that are true is answered by yes: libraries ask so whether anything is
    padded or packed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.bytes, self.most = 0.0, 0, 0
        self.known: dict[int, Any] = {}
        """Storages that are counted, and those of before, which stay."""
        self.alike = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet, kwargs = function._overloadpacket, kwargs or {}
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if len({leaf.device.type for leaf in leaves}) > 1:
            if packet in INDEXED:
                args = args[0], number_masks(args[1]), *args[2:]
            args, kwargs = tree_map_only(Tensor, drop_values, (args, kwargs))
        if packet is torch.ops.aten._local_scalar_dense and args[0] in self.alike:
            return True  # without storage
        for tensor in leaves:
            self.known.setdefault(key_of(tensor), tensor.untyped_storage())  # what was there before
        result = function(*args, **kwargs)
        if packet is torch.ops.aten.all and result.device.type == "meta":
            self.alike[result] = True
        if packet is FLASH:
            pairs = 0.5 if any(args[4:5]) else 1.0  # a token attends to those before it, which are half
            self.operations += pairs * sdpa_flop_count(*(tuple(tensor.shape) for tensor in args[:3]))
        elif packet in flop_registry:
            self.operations += flop_registry[packet](*args, **kwargs, out_val=result)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.keep(tensor)
        return result

    def keep(self, tensor: Tensor) -> None:
        """Count a tensor's storage for as long as it lives."""
        storage, key = tensor.untyped_storage(), key_of(tensor)
        if key not in self.known:
            self.known[key] = None
            weakref.finalize(storage, self.drop, key, storage.nbytes())
            self.bytes += storage.nbytes()
            self.most = max(self.most, self.bytes)

    def drop(self, key: int, size: int) -> None:
        """Count a storage no longer."""
        del self.known[key]
        self.bytes -= size


def key_of(tensor: Tensor) -> int:
    """What tells a tensor's storage from the others that are alive."""
    return id(tensor.untyped_storage())


def drop_values(tensor: Tensor) -> Tensor:
    """The same on the device without storage."""
    return tensor if tensor.device.type == "meta" else torch.empty_like(tensor, device="meta")


def number_masks(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices, with the numbers of what masks select in place of masks that have values."""
    numbers: list[Tensor | None] = []
    for index in indices:
        known = index is not None and index.dtype == torch.bool and index.device.type == "cpu"
        numbers.extend(index.nonzero(as_tuple=True) if known and index is not None else [index])
    return numbers


@contextmanager
def attend_at_once() -> Iterator[None]:
    """A ``with`` block in which attention is one operation. A mode of torch would not reach what is computed again in
    the backward pass."""
    functional: Any = nn.functional
    before = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = before


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What ``scaled_dot_product_attention`` is given."""
    groups = query.shape[-3] // key.shape[-3]
    if groups > 1:
        key, value = (states.repeat_interleave(groups, -3) for states in (key, value))
    return FLASH(query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def offload_inputs(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    """The function that checkpoints a block, whose inputs are nowhere until they are needed."""

    def leave(value: Tensor) -> Any:
        return (value.shape, value.stride(), value.dtype) if value.device.type == "meta" else value

    def bring(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        shape, stride, dtype = kept
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    def run(forward: Callable[..., Any], *inputs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(leave, bring):
            return checkpoint(forward, *inputs)

    return run
