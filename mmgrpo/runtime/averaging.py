"""Weights for evaluation and saving: averages over optimizer steps, interpolation towards the initial weights, and
whether they have moved at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mmgrpo.runtime.sharding import everywhere, local


class Ema:
    """Exponential moving average of the weights, with decay min((1 + s) / (10 + s), decay) at optimizer step s.

    The decay grows with s, so that the initial weights do not dominate a short run. Flow-GRPO evaluates such weights.

    With ``every`` above 1 the steps after the last update are not lost: where the average is used, the present weights
    enter it once more, with the decay of the (n + 1)-th update, min((2 + n) / (11 + n), decay), n the number of updates
    before. This does not change the average that later updates start from.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float, every: int) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.every = every
        self.shadow = [parameter.detach().clone() for parameter in self.parameters]
        self.step = 0
        """Optimizer steps so far; a resumed run sets it."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after optimizer step ``step`` (counted from one)."""
        self.step = step
        if step % self.every:
            return
        decay = min((1 + step) / (10 + step), self.decay)
        for average, parameter in zip(self.shadow, self.parameters, strict=True):
            average.lerp_(parameter.detach(), 1 - decay)

    @torch.no_grad()
    def current(self) -> list[Tensor]:
        """The average, which the present weights have entered."""
        updates, since = divmod(self.step, self.every)
        if not since:
            return self.shadow
        decay = min((2 + updates) / (11 + updates), self.decay)
        pairs = zip(self.shadow, self.parameters, strict=True)
        return [average.lerp(parameter.detach(), 1 - decay) for average, parameter in pairs]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by their average within a ``with`` block."""
        with temporary(self.parameters, self.current()):
            yield


class InitialWeights:
    """What tells whether trained weights are those from before training, without a copy of them.

    Of every tensor two sums of its bits are kept. The matrix A of an adapter does not count where the matrix B is zero,
    since their product is.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter]) -> None:
        self.trained = trained
        self.sums = {name: bit_sums(parameter) for name, parameter in trained.items()}

    def unchanged(self) -> bool:
        """Whether the present weights compute what the initial ones do; where they are shards, on all processes."""
        moved = [name for name, one in self.trained.items() if bit_sums(one) != self.sums[name]]
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


class WeightInterpolation:
    """Interpolation between initial and trained weights, initial + fraction (trained - initial), which retains more
    of the initial network's abilities (WiSE-FT, arXiv:2109.01903).

    LoRA adapters change a weight by the product B A. Only B is interpolated, towards its initial value (zero for new
    adapters), so that the product, and not each of its factors, is scaled by the fraction.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter], fraction: float) -> None:
        self.parameters = [parameter for name, parameter in trained.items() if ".lora_A." not in name]
        self.fraction = fraction
        self.initial = [parameter.detach().clone() for parameter in self.parameters]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by the interpolated ones within a ``with`` block."""
        with temporary(self.parameters, self.interpolated()):
            yield

    @torch.no_grad()
    def interpolated(self) -> list[Tensor]:
        """initial + fraction (trained - initial), per parameter."""
        return [
            initial.lerp(parameter.detach(), self.fraction)
            for initial, parameter in zip(self.initial, self.parameters, strict=True)
        ]


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
