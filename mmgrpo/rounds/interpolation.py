"""Weights between the initial and the trained ones, which are evaluated and saved (``optim.interpolation``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from mmgrpo.rounds.callback import Callback, Choices, Run
from mmgrpo.runtime.averaging import temporary


class WeightInterpolation:
    """Interpolation between initial and trained weights, initial + fraction (trained - initial), which retains more
    of the initial network's abilities (WiSE-FT, arXiv:2109.01903).

    LoRA adapters change a weight by the product B A. Only B is interpolated, towards its initial value (zero for new
    adapters), so the product, and not each of its factors, is scaled by the fraction.
    """

    def __init__(self, trained: Mapping[str, nn.Parameter], fraction: float) -> None:
        self.parameters = [parameter for name, parameter in trained.items() if ".lora_A." not in name]
        self.fraction = fraction
        self.initial = [parameter.detach().clone() for parameter in self.parameters]

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Replace the weights by the interpolated ones within a ``with`` block."""
        with temporary(self.parameters, self.interpolate()):
            yield

    @torch.no_grad()
    def interpolate(self) -> list[Tensor]:
        """initial + fraction (trained - initial), per parameter."""
        return [
            initial.lerp(parameter.detach(), self.fraction)
            for initial, parameter in zip(self.initial, self.parameters, strict=True)
        ]


class Interpolation(Callback):
    """Keeps the initial weights of a run, towards which the present ones (or their average) are interpolated."""

    def __init__(self, fraction: float) -> None:
        self.weights = WeightInterpolation({}, fraction)

    def attach(self, run: Run) -> None:
        self.weights = WeightInterpolation(run.trained, self.weights.fraction)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        return self.weights.apply()


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [Interpolation(choices.optim.interpolation)]
