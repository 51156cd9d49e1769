"""Small things that choose and speak, for tests: a table of logits, and an engine that hums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mmgrpo.types import Output, Prompt, Reference, Text
from pipelines.speech.renderers import SpeedRenderer
from pipelines.training import FrozenCopy

RATE = 8_000


class TableModel:
    """A row of logits for every prompt (its id is the row), no renderer: what is chosen is the output."""

    def __init__(self, prompts: int, classes: int, seed: int = 0) -> None:
        self.network: nn.Module = nn.Embedding(prompts, classes)
        with torch.no_grad():
            self.network.weight.copy_(torch.randn(prompts, classes, generator=torch.Generator().manual_seed(seed)))
        self.reference: Reference = FrozenCopy(self.network)
        self.reference.keep()
        self.rendered = 0

    def logits(self, network: nn.Module, prompts: Sequence[Prompt]) -> Tensor:
        return network(torch.tensor([int(prompt.id) for prompt in prompts]))

    def render(self, prompt: Prompt, choice: int) -> Output:
        self.rendered += 1
        return Text(str(choice))

    def save(self, folder: Path, network: nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def table_prompts(count: int) -> list[Prompt]:
    return [Prompt(f"prompt {number}", str(number), answer=(3 * number + 2) % 7) for number in range(count)]


def near_answer(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Reward: minus the distance of the chosen class from the prompt's answer."""
    return [-abs(int(output.text) - prompt.answer) for prompt, output in zip(prompts, outputs, strict=True)]  # type: ignore[union-attr]


def hum(text: str, speed: float) -> np.ndarray:
    """A tone of a fifteenth of a second for every character, with silence around it."""
    tone = np.sin(np.arange(int(len(text) * RATE / 15 / speed)) * 0.3) * 0.5
    return np.pad(tone, 400)


def hummer() -> SpeedRenderer:
    """A renderer that needs nothing, with the speeds of hibari."""
    return SpeedRenderer(hum, RATE, 0.5, 2.0)
