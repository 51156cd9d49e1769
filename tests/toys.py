"""Small policies for tests: a flow over a few numbers, and nothing that hides what is tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mmgrpo.diffusion.schedules import Grid, flow_grid
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.types import Image, Media, Prompt, Reference
from pipelines.training import FrozenCopy


@dataclass(frozen=True)
class ToyConditioning:
    number: Tensor

    def take(self, index: Tensor) -> ToyConditioning:
        return ToyConditioning(self.number[index])


class ToyNetwork(nn.Module):
    """A velocity for latents of a few numbers: linear in (x, time, prompt number), then tanh, then linear."""

    def __init__(self, size: int, seed: int = 0, width: int = 16) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.inner = nn.Linear(size + 2, width)
            self.outer = nn.Linear(width, size)

    def forward(self, x: Tensor, time: Tensor, number: Tensor) -> Tensor:
        given = torch.cat([x.flatten(1), time[:, None], number[:, None]], 1)
        return self.outer(torch.tanh(self.inner(given))).view_as(x)


class ToyModel:
    """A flow whose pictures are its latents, one number a channel."""

    prediction = "flow"
    kind = "image"
    evaluations_per_row = 1

    def __init__(self, size: int = 3, seed: int = 0, streams: Mapping[str, int] | None = None) -> None:
        self.streams = streams or {}
        self.network: nn.Module = ToyNetwork(size, seed)
        self.reference: Reference = FrozenCopy(self.network)
        self.reference.keep()
        self.size = size
        self.forwards = 0

    def encode(self, prompts: Sequence[Prompt]) -> ToyConditioning:
        return ToyConditioning(torch.tensor([float(prompt.answer or 0) for prompt in prompts]))

    def latent_shape(self) -> tuple[int, ...]:
        return (self.size, 1, 1)

    def predict(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: ToyConditioning) -> Tensor:
        self.forwards += len(x)
        return network(x, time, conditioning.number)

    def decode(self, latents: Tensor, conditioning: ToyConditioning) -> list[Image]:
        return [Image(latent.detach()) for latent in latents]

    def latents(self, media: Sequence[Media]) -> tuple[Tensor, list[Image]]:
        images = [medium.source for medium in media if isinstance(medium.source, Image)]
        return torch.stack([image.pixels for image in images]), images

    def grid(self, steps: int) -> Grid:
        return flow_grid(steps, 1.0)

    def save(self, folder: Path, network: nn.Module) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def toy_policy(
    plan: str = "every_step",
    steps: int = 6,
    kernel: str = "flow_sde(a=0.7)",
    seed: int = 0,
    completion_steps: int = 0,
    plan_per: str = "round",
    streams: Mapping[str, int] | None = None,
) -> DenoisingPolicy:
    """A denoising policy over three numbers, which may be those of several streams."""
    return DenoisingPolicy(
        ToyModel(seed=seed, streams=streams),
        steps=steps,
        kernel_text=kernel,
        plan=plan,
        evaluation_steps=steps,
        forward_batch_size=1024,
        completion_steps=completion_steps,
        plan_per=plan_per,
    )


def toy_prompts(count: int) -> list[Prompt]:
    return [Prompt(f"number {i}", id=str(i), answer=i / max(1, count)) for i in range(count)]
