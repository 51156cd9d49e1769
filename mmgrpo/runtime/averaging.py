"""Whether trained weights have moved at all, and other weights in their place for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mmgrpo.runtime.distributed import everywhere, local


class InitialWeights:
    """What tells whether trained weights are those from before training, without a copy of them.

    Of every tensor two sums of its bits are kept. The matrix A of an adapter does not count where the matrix B is zero,
    since their product is.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter]) -> None:
        self.trained = trained
        self.sums = {name: bit_sums(parameter) for name, parameter in trained.items()}

    def is_unchanged(self) -> bool:
        """Whether the present weights compute what the initial ones do; where they are shards, on all processes."""
        moved = [name for name, parameter in self.trained.items() if bit_sums(parameter) != self.sums[name]]
        return everywhere(all(self._product_is_zero(name) for name in moved), self.trained.values())

    def _product_is_zero(self, name: str) -> bool:
        other = self.trained.get(name.replace(".lora_A.", ".lora_B."))
        return ".lora_A." in name and other is not None and not bool(local(other.detach()).any())


@torch.no_grad()
def bit_sums(tensor: Tensor, chunk: int = 1 << 22) -> tuple[int, int]:
    """The sum of a tensor's bit patterns, and the sum weighted by place, both modulo 2^64; of a shard, its own."""
    tensor = local(tensor)
    patterns = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    plain, weighted = 0, 0
    for start, part in enumerate(tensor.detach().reshape(-1).split(chunk)):
        bits = part.contiguous().view(patterns).to(torch.int64)
        plain += int(bits.sum())
        weighted += int((bits * (torch.arange(len(bits), device=bits.device) + 1)).sum()) * (start + 1)
    return plain % 2**64, weighted % 2**64


@contextmanager
def temporary(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> Iterator[None]:
    """Replace the weights by ``values`` within a ``with`` block."""
    original = [parameter.detach().clone() for parameter in parameters]
    try:
        assign(parameters, values)
        yield
    finally:
        assign(parameters, original)


@torch.no_grad()
def assign(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Copy values into parameters, in place."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
