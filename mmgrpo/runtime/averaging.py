"""What becomes of the weights that training makes: averages over steps, and interpolation towards those before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """Average with decay min((1 + s) / (10 + s), decay) at optimizer step s (as Flow-GRPO's evaluation weights)."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float, every: int) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"optim.ema must lie between 0 and 1 (0 keeps no average), got {decay}")
        self.parameters = list(parameters)
        self.decay = decay
        self.every = every
        self.shadow = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after optimizer step ``step`` (counted from one)."""
        if step % self.every:
            return
        decay = min((1 + step) / (10 + step), self.decay)
        for average, parameter in zip(self.shadow, self.parameters, strict=True):
            average.lerp_(parameter.detach(), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average in the place of the weights for the length of a ``with`` block."""
        with replaced(self.parameters, self.shadow):
            yield


class WeightInterpolation:
    """Weights between those before and those now, before + fraction (now - before), which forget less of what the
    network could do before (WiSE-FT, arXiv:2109.01903).

    Adapters change a weight by a product B A. Only B is moved back, to zero where they are new, so that the
    fraction is one of that product.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter], fraction: float) -> None:
        if not 0 < fraction < 1:
            raise ValueError(
                f"optim.interpolation must lie above 0 and at most at 1, which keeps all of the change; got {fraction}"
            )
        self.parameters = [parameter for name, parameter in trained.items() if ".lora_A." not in name]
        self.fraction = fraction
        self.before = [parameter.detach().clone() for parameter in self.parameters]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the weights between in the place of the weights for the length of a ``with`` block."""
        with replaced(self.parameters, self.interpolated()):
            yield

    @torch.no_grad()
    def interpolated(self) -> list[Tensor]:
        """The weights between."""
        return [
            b.lerp(parameter.detach(), self.fraction) for b, parameter in zip(self.before, self.parameters, strict=True)
        ]


@contextmanager
def replaced(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> Iterator[None]:
    """Other values in the place of the weights for the length of a ``with`` block."""
    kept = [parameter.detach().clone() for parameter in parameters]
    fill(parameters, values)
    try:
        yield
    finally:
        fill(parameters, kept)


@torch.no_grad()
def fill(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    """Copy values into weights."""
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value)
