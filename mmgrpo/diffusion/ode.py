"""What every policy over a denoising network shares: the family's questions, and the deterministic solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.diffusion.kernels import History, ddim, dpmpp_2m, euler
from mmgrpo.diffusion.schedules import Grid
from mmgrpo.runtime.randomness import stream
from mmgrpo.types import Output, Prompt, Reference, Request


@runtime_checkable
class Conditioning(Protocol):
    """What a family made of the prompts, one entry each."""

    def take(self, index: Int[Tensor, "N"]) -> Conditioning: ...


@runtime_checkable
class DenoisingModel(Protocol):
    """One model family made to answer what this policy asks (pipelines/visual/)."""

    network: nn.Module
    prediction: str
    """What the network predicts: flow, or epsilon, v or sample of a diffusion process."""
    reference: Reference
    evaluations_per_row: int
    """2 where guidance runs two branches, else 1."""

    def encode(self, prompts: Sequence[Prompt]) -> Any: ...
    def latent_shape(self) -> tuple[int, ...]: ...
    def predict(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Any) -> Tensor: ...
    def decode(self, latents: Tensor) -> Sequence[Output]: ...
    def grid(self, steps: int) -> Grid: ...
    def save(self, folder: Path, network: nn.Module) -> None: ...


@dataclass(frozen=True)
class Solver:
    """Runs a family's network without noise; ``forward_batch_size`` bounds a forward pass without gradient."""

    model: DenoisingModel
    forward_batch_size: int
    device: torch.device

    @torch.no_grad()
    def sample(
        self, network: nn.Module, request: Request, grid: Grid
    ) -> tuple[list[Output], Float[Tensor, "rows *latent"], Any]:
        """Outputs of all rows of a request, their latents, and the conditioning of each row."""
        encoded = self.model.encode(request.prompts)
        prompt = torch.arange(len(request.prompts), device=self.device).repeat_interleave(request.group_size)
        conditioning = encoded.take(prompt)
        latents = self.denoise(network, self.initial_noise(request, request.group_size), conditioning, grid)
        return list(self.model.decode(latents)), latents, conditioning

    def initial_noise(self, request: Request, count: int) -> Float[Tensor, "rows *latent"]:
        """``count`` noises for each prompt of the request, each prompt from its own stream."""
        shape = (count, *self.model.latent_shape())
        noises = [torch.randn(shape, generator=stream(request.seed, "start", slot)) for slot in request.slots]
        return torch.cat(noises).to(self.device)

    def denoise(
        self,
        network: nn.Module,
        x: Float[Tensor, "N *latent"],
        conditioning: Any,
        grid: Grid,
        start: int = 0,
    ) -> Float[Tensor, "N *latent"]:
        """Solve the ODE by first-order steps from step ``start`` of a grid to its end."""
        for t in range(start, grid.steps):
            step = torch.full((len(x),), t, device=x.device)
            x = self.step(x, self.predict(network, x, step, conditioning, grid), step, grid)
        return x

    def denoise_multistep(
        self,
        network: nn.Module,
        x: Float[Tensor, "N *latent"],
        conditioning: Any,
        grid: Grid,
        start: int,
        history: History,
    ) -> Float[Tensor, "N *latent"]:
        """The same by ``dpmpp_2m``; ``history`` is the clean estimate at the step before ``start``."""
        for t in range(start, grid.steps):
            step = torch.full((len(x),), t, device=x.device)
            x, history = dpmpp_2m(x, self.predict(network, x, step, conditioning, grid), step, grid, history)
        return x

    def step(self, x: Tensor, output: Tensor, step: Tensor, grid: Grid) -> Tensor:
        """One first-order step."""
        if grid.process == "flow":
            return euler(x, output, step, grid)
        return ddim(x, output, step, grid, eta=0.0, prediction=self.model.prediction).mean

    def predict(self, network: nn.Module, x: Tensor, step: Int[Tensor, " N"], conditioning: Any, grid: Grid) -> Tensor:
        """The network's output in fp32; without gradient in chunks that fit in memory."""
        times = grid.network_time(step)
        if torch.is_grad_enabled() or len(x) <= self.forward_batch_size:
            return self.model.predict(network, x, times, conditioning).float()
        chunks = torch.arange(len(x), device=x.device).split(self.forward_batch_size)
        return torch.cat([self.model.predict(network, x[i], times[i], conditioning.take(i)).float() for i in chunks])
