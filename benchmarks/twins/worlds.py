"""The worlds of twins: a plane of points for denoising policies, words for language models, and a scale for choices.

Each is a tiny network that was pretrained, in a second, to do its task badly, with prompts to train on and others that
are held out:

    plane    a prompt names an angle; samples lie anywhere on a circle, and are to lie at that angle
    words    a prompt names two words; the network says the next word of the alphabet, and is to say the words
    scale    a prompt names an angle; one of nine classes is chosen, and is to be that of the angle

On the plane some prompts earn more than others whatever is drawn, as prompts do; within a group that is equal.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.schedules import GRIDS, Grid, ddim_grid, flow_grid
from mmgrpo.types import Image, Output, Prompt, Reference, Text
from pipelines.training import FrozenCopy

WIDTH = 64
"""Hidden width of the plane's network."""
WORDS = tuple("abcdefgh")
CLASSES = 9
SPREAD = 0.08
"""Std of the radius of pretraining."""
TRAIN_TIMES = 1000
"""Timesteps of the plane's diffusion process, with the betas of Stable Diffusion."""


def angles(shift: float) -> list[Prompt]:
    """Prompts for 24 angles, ``shift`` of a distance beyond the multiples of 15 degrees."""
    return [
        Prompt(
            f"the point at {15 * (number + shift):g} degrees",
            str(number + shift),
            answer=math.radians(15 * (number + shift)),
        )
        for number in range(24)
    ]


def sayings(held_out: bool) -> list[Prompt]:
    """Prompts of two words; every third pair is held out."""
    pairs = [(first, second) for first in WORDS for second in WORDS]
    chosen = [pair for number, pair in enumerate(pairs) if (number % 3 == 0) == held_out]
    return [Prompt(f"say {first} {second}", f"{first}{second}", answer=f"{first} {second}") for first, second in chosen]


@dataclass(frozen=True)
class Angles:
    """Encoded prompts: cosine, sine, and 1 for a prompt that is known (0 without, for guidance)."""

    given: Tensor

    def take(self, index: Tensor) -> Angles:
        return Angles(self.given[index])


class PlaneNetwork(nn.Module):
    """A perceptron of the point, the time in [0, 1] and the angle."""

    def __init__(self, numbers: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(numbers + 4, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, outputs)
        )

    def forward(self, x: Tensor, time: Tensor, given: Tensor) -> Tensor:
        made = self.layers(torch.cat([x.flatten(1), time[:, None].to(x.dtype), given], 1))
        return made.view(len(x), -1, *x.shape[2:])


class Plane:
    """A denoising model whose latents are points of the plane, one for each frame."""

    kind = "image"

    def __init__(self, prediction: str, frames: int = 1, levels: str = "checkpoint", guidance: float = 1.0) -> None:
        self.prediction, self.frames, self.levels, self.guidance = prediction, frames, levels, guidance
        self.network: nn.Module = copy.deepcopy(pretrained_plane(prediction, frames))
        kept = FrozenCopy(self.network)
        kept.keep()
        self.reference: Reference = kept

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    def variant(self, guidance: float) -> Plane:
        """The same network at another scale of guidance."""
        other = copy.copy(self)
        other.guidance = guidance
        return other

    def encode(self, prompts: Sequence[Prompt]) -> Angles:
        return Angles(torch.tensor([[math.cos(p.answer), math.sin(p.answer), 1.0] for p in prompts]))

    def latent_shape(self) -> tuple[int, ...]:
        return (2, self.frames, 1)

    def predict(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Angles) -> Tensor:
        time = time / TRAIN_TIMES if self.prediction == "epsilon" else time
        if self.guidance == 1:
            return network(x, time, conditioning.given)
        known, unknown = conditioning.given, torch.zeros_like(conditioning.given)
        both = network(torch.cat([x, x]), torch.cat([time, time]), torch.cat([known, unknown]))
        with_prompt, without = both.chunk(2)
        return without + self.guidance * (with_prompt - without)

    def decode(self, latents: Tensor, conditioning: Angles) -> list[Image]:
        return [Image(latent.detach()) for latent in latents]

    def grid(self, steps: int) -> Grid:
        if self.prediction == "epsilon":
            return ddim_grid(cumulative_alphas(), steps)
        return (
            flow_grid(steps)
            if self.levels == "checkpoint"
            else bind(self.levels, GRIDS, "sampling.grid")({"steps": steps})
        )

    def save(self, folder: Path, network: nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def cumulative_alphas() -> Tensor:
    """Cumulative alphas of Stable Diffusion's betas."""
    return (1 - torch.linspace(0.00085**0.5, 0.012**0.5, TRAIN_TIMES).square()).cumprod(0)


@functools.cache
def pretrained_plane(prediction: str, frames: int, steps: int = 700, rows: int = 256) -> PlaneNetwork:
    """A network that draws points anywhere on the circle, whatever the prompt."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = PlaneNetwork(2 * frames, (4 if prediction == "drawn" else 2) * frames)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        alphas = cumulative_alphas()
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 3e-3 * (1 - step / steps)
            angle = torch.rand(rows, 1) * 2 * math.pi
            radius = 1 + SPREAD * torch.randn(rows, frames)
            clean = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)[..., None]
            given = torch.rand(rows, 1) * 2 * math.pi
            given = torch.cat([given.cos(), given.sin(), torch.ones(rows, 1)], 1) * (torch.rand(rows, 1) > 0.1)
            noise = torch.randn_like(clean)
            if prediction == "epsilon":
                place = torch.randint(TRAIN_TIMES, (rows,))
                alpha = alphas[place].view(-1, 1, 1, 1)
                noisy, target, time = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise, noise, place / TRAIN_TIMES
            else:
                time = torch.rand(rows)
                level = time.view(-1, 1, 1, 1)
                noisy, target = (1 - level) * clean + level * noise, noise - clean
            made = network(noisy, time, given)
            if prediction == "drawn":  # a velocity and the ln std of its errors
                made, log_std = made.chunk(2, 1)
                error = (0.5 * ((made - target) / log_std.exp()).square() + log_std).mean()
            else:
                error = (made - target).square().mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
    return network


def near(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """3/4 exp(-2 d^2) with the mean square distance d^2 of the frames from the point at the angle, and by prompt up to
    1/4 more."""
    wanted = torch.tensor([[math.cos(p.answer), math.sin(p.answer)] for p in prompts])
    gap = torch.stack([output.pixels for output in outputs])[..., 0] - wanted[..., None]  # type: ignore[union-attr]
    gift = torch.tensor([(1 + math.sin(3 * p.answer)) / 8 for p in prompts])
    return (0.75 * (-2 * gap.square().sum(1).mean(1)).exp() + gift).tolist()


def close(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """A second, graded reward: 1 minus half the mean distance of the frames from the point at the angle."""
    wanted = torch.tensor([[math.cos(p.answer), math.sin(p.answer)] for p in prompts])
    gap = torch.stack([output.pixels for output in outputs])[..., 0] - wanted[..., None]  # type: ignore[union-attr]
    return (1 - gap.square().sum(1).sqrt().mean(1) / 2).tolist()


@functools.cache
def pretrained_words(steps: int = 120) -> Any:
    """A language model that says the next word of the alphabet for a word, and in 3 of 10 cases the word itself."""
    from pipelines.text.causal_lm import toy

    model = toy(["say", *WORDS], width=32, layers=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        prompts = sayings(False) + sayings(True)
        context = model.encode(prompts)
        optimizer = torch.optim.Adam(model.network.parameters(), lr=5e-3)
        number = {word: place for place, word in enumerate(WORDS)}
        for _ in range(steps):
            said = []
            for prompt in prompts:
                shifts = (torch.rand(2) > 0.3).long().tolist()
                words = [
                    WORDS[(number[w] + s) % len(WORDS)] for w, s in zip(prompt.answer.split(), shifts, strict=True)
                ]
                said.append(model.spell(" ".join(words)))
            answers = torch.tensor(said)
            ids = torch.cat([context.ids, answers], 1)
            logits = model.network(ids).logits[:, context.ids.shape[1] - 1 : -1]
            error = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten())
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
    return model


def words() -> Any:
    """A copy of the pretrained language model, with a reference of its own."""
    model = copy.deepcopy(pretrained_words())
    model.reference = FrozenCopy(model.network)
    model.reference.keep()
    return model


def said(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """Words in their places, over the number of words of the longer text."""
    scores = []
    for prompt, output in zip(prompts, outputs, strict=True):
        assert isinstance(output, Text)
        heard, wanted = output.text.split(), prompt.answer.split()
        right = sum(word == other for word, other in zip(heard, wanted, strict=False))
        scores.append(right / max(len(heard), len(wanted)))
    return scores


class Scale:
    """A classifier of angles, whose choices are texts."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network: nn.Module = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, CLASSES))
        kept = FrozenCopy(self.network)
        kept.keep()
        self.reference: Reference = kept

    def logits(self, network: nn.Module, prompts: Sequence[Prompt]) -> Tensor:
        return network(torch.tensor([[math.cos(p.answer), math.sin(p.answer)] for p in prompts]))

    def render(self, prompt: Prompt, choice: int) -> Output:
        return Text(str(choice))

    def save(self, folder: Path, network: nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def near_class(prompts: Sequence[Prompt], outputs: Sequence[Output]) -> list[float]:
    """1 for the class of the angle, less by the distance from it."""
    wanted = [round(p.answer / (2 * math.pi) * (CLASSES - 1)) for p in prompts]
    return [1 - abs(int(o.text) - w) / (CLASSES - 1) for o, w in zip(outputs, wanted, strict=True)]  # type: ignore[union-attr]
