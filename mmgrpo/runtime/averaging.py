"""Weights for evaluation and saving: averages over optimizer steps, and interpolation towards the initial weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """Exponential moving average of the weights, with decay min((1 + s) / (10 + s), decay) at optimizer step s.

    The decay grows with s, so that the initial weights do not dominate a short run. Flow-GRPO evaluates such weights.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float, every: int) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.every = every
        self.shadow = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average with the weights after optimizer step ``step`` (counted from one)."""
        if step % self.every:
            return
        decay = min((1 + step) / (10 + step), self.decay)
        for average, parameter in zip(self.shadow, self.parameters, strict=True):
            average.lerp_(parameter.detach(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by their average within a ``with`` block."""
        with temporary(self.parameters, self.shadow):
            yield


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
