"""A moving average of the trained weights, which is evaluated and saved in their place (``optim.ema``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from mmgrpo.rounds.callback import Callback, Choices, Numbers, Run
from mmgrpo.runtime.averaging import temporary
from mmgrpo.runtime.sharding import like


class Ema:
    """Exponential moving average of the weights, with decay min((1 + s) / (10 + s), decay) at optimizer step s.

    The decay grows with s, so the initial weights do not dominate a short run. Flow-GRPO evaluates such weights.

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
    def apply(self) -> Iterator[None]:
        """Replace the weights by their average within a ``with`` block."""
        with temporary(self.parameters, self.current()):
            yield


class MovingAverage(Callback):
    """Keeps the ``Ema`` of a run; a checkpoint has it as ``ema``."""

    key: ClassVar[str] = "ema"

    def __init__(self, decay: float, every: int) -> None:
        self.decay, self.every = decay, every
        self.names: list[str] = []
        self.average = Ema([], decay, every)

    def attach(self, run: Run) -> None:
        self.names = [*run.trained]
        self.average = Ema([*run.trained.values()], self.decay, self.every)

    def on_step_end(self, run: Run, metrics: Numbers) -> None:
        self.average.update(run.step)

    def evaluated_weights(self) -> AbstractContextManager[None]:
        return self.average.apply()

    def tensors(self) -> Mapping[str, Tensor]:
        return dict(zip(self.names, self.average.shadow, strict=True))

    def load(self, state: Any, tensors: Mapping[str, Tensor], step: int) -> None:
        named = zip(self.names, self.average.parameters, strict=True)
        self.average.shadow = [like(tensors[name].to(value.device), value.detach()) for name, value in named]
        self.average.step = step


def callbacks(choices: Choices) -> list[Callback]:
    """What the settings ask for."""
    return [MovingAverage(choices.optim.ema, choices.optim.ema_every)]
