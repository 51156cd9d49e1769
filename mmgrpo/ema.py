"""Exponential moving average of the trained weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """Average with decay min((1 + s) / (10 + s), decay) at optimizer step s (as Flow-GRPO's evaluation weights)."""

    def __init__(self, parameters: Sequence[nn.Parameter], decay: float, every: int) -> None:
        if not 0 < decay < 1:
            raise ValueError(f"ema must lie between 0 and 1 (0 in the config keeps no average), got {decay}")
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
        kept = [parameter.detach().clone() for parameter in self.parameters]
        self._fill(self.shadow)
        try:
            yield
        finally:
            self._fill(kept)

    @torch.no_grad()
    def _fill(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
