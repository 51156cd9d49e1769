"""What all policies over a denoising network share: the interface to a model family, and the deterministic solver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.data.pairs import lacking
from mmgrpo.diffusion.kernels import History, ddim, dpmpp_2m, euler, no_history
from mmgrpo.diffusion.schedules import Grid, Sizes
from mmgrpo.randomness import stream
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.distributed import in_step
from mmgrpo.runtime.finite import refuse_nonfinite
from mmgrpo.types import Media, Output, Prompt, Record, Reference, Request


@runtime_checkable
class Conditioning(Protocol):
    """Encoded prompts, one entry per prompt."""

    def take(self, index: Int[Tensor, "N"]) -> Conditioning:
        """The entries at these indices, on the host or on the device; an index may occur several times."""
        ...


@runtime_checkable
class DenoisingModel(Protocol):
    """The interface of a model family to denoising policies (implemented in pipelines/visual/)."""

    network: nn.Module
    prediction: str
    """What the network predicts: flow, or epsilon, v or sample of a diffusion process; or drawn, a flow's velocity and
    behind it, on the first latent axis, the ln std with which it is drawn."""
    reference: Reference
    evaluations_per_row: int
    """Network evaluations per forward pass and row: 2 with classifier-free guidance, else 1."""

    def encode(self, prompts: Sequence[Prompt]) -> Any: ...
    def latent_shape(self) -> tuple[int, ...]: ...
    def predict(self, network: nn.Module, x: Tensor, time: Tensor, conditioning: Any) -> Tensor: ...
    def decode(self, latents: Tensor, conditioning: Any) -> Sequence[Output]: ...
    def grid(self, steps: int) -> Grid: ...
    def save(self, folder: Path, network: nn.Module) -> None: ...


@runtime_checkable
class GivenOutputs(Protocol):
    """A model that encodes images or videos that it did not make."""

    @property
    def kind(self) -> str:
        """``image`` or ``video``."""
        ...

    def latents(self, media: Sequence[Media]) -> tuple[Float[Tensor, "N *latent"], Sequence[Output]]:
        """The latents of media, brought to the size of samples, and the media as outputs of that size."""
        ...


@runtime_checkable
class Streamed(Protocol):
    """A model whose flat latent is several streams behind each other, each with a likelihood of its own."""

    @property
    def streams(self) -> Mapping[str, int]:
        """Latent entries of each stream by its name, in their order; empty: the latent is one."""
        ...


def stream_views(model: DenoisingModel) -> tuple[slice, ...]:
    """Where each stream lies on the first latent axis; of a model without streams one, the whole latent."""
    lengths = list(model.streams.values()) if isinstance(model, Streamed) else []
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    return tuple(slice(end - length, end) for length, end in zip(lengths, ends, strict=True)) or (slice(None),)


@torch.no_grad()
def given_records(model: DenoisingModel, prompts: Sequence[Prompt], count: int) -> list[list[Record]]:
    """The latents of the best ``count`` answers of each prompt (0: all), on the CPU, as records without log-probs.

    ValueError for a model that encodes no media, and for a prompt without answers of its kind.
    """
    if not isinstance(model, GivenOutputs):
        raise ValueError("this family does not encode given images or videos; choose another family")
    records = []
    for prompt in prompts:
        if reason := lacking(prompt, model.kind):
            raise ValueError(f"prompt '{prompt.id}' {reason}; correct the row, or leave it out")
        media = [answer.media for answer in prompt.answers if answer.media is not None][: count or None]
        records.append([{"clean": latent} for latent in model.latents(media)[0].float().cpu()])
    return records


@dataclass(frozen=True)
class Solver:
    """Deterministic solver; ``forward_batch_size`` is the largest batch of a forward pass without gradient."""

    model: DenoisingModel
    forward_batch_size: int
    device: torch.device

    @torch.no_grad()
    def sample(
        self, network: nn.Module, request: Request, grid: Grid, multistep: bool = False
    ) -> tuple[list[Output], Float[Tensor, "rows *latent"], Any]:
        """Outputs of all rows of a request, their latents, and the conditioning of each row; ``multistep`` solves with
        ``dpmpp_2m``."""
        encoded = self.model.encode(request.prompts)
        prompt = torch.arange(len(request.prompts)).repeat_interleave(request.group_size)
        conditioning = encoded.take(prompt)
        noise = self.initial_noise(request, request.group_size)
        if multistep:
            latents = self.denoise_multistep(network, noise, conditioning, grid, 0, no_history(noise))
        else:
            latents = self.denoise(network, noise, conditioning, grid)
        outputs = self.model.decode(refuse_nonfinite(latents, "the sampled latents"), conditioning)
        return list(outputs), latents, conditioning

    def initial_noise(self, request: Request, count: int) -> Float[Tensor, "rows *latent"]:
        """``count`` initial noises per prompt of the request, each prompt's from its own random stream."""
        shape = (count, *self.model.latent_shape())
        noises = [torch.randn(shape, generator=stream(request.seed, "start", slot)) for slot in request.slots]
        return put(torch.cat(noises), self.device)

    def denoise(
        self,
        network: nn.Module,
        x: Float[Tensor, "N *latent"],
        conditioning: Any,
        grid: Grid,
        start: int = 0,
    ) -> Float[Tensor, "N *latent"]:
        """Solve the ODE with first-order steps from step ``start`` of a grid to its end.

        Raises ``TooLarge`` for states whose RMS leaves what the noise levels allow.
        """
        sizes = Sizes(grid)
        for t in range(start, grid.steps):
            step = torch.full((len(x),), t, device=x.device)
            x = self.step(x, self.mean(self.predict(network, x, step, conditioning, grid)), step, grid)
            sizes.see(x, "the deterministic solver", t)
        sizes.refuse()
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
        """The same with ``dpmpp_2m``; ``history`` is the clean estimate at the step before ``start``."""
        sizes = Sizes(grid)
        for t in range(start, grid.steps):
            step = torch.full((len(x),), t, device=x.device)
            output = self.mean(self.predict(network, x, step, conditioning, grid))
            x, history = dpmpp_2m(x, output, step, grid, history)
            sizes.see(x, "the solver dpmpp_2m", t)
        sizes.refuse()
        return x

    def step(self, x: Tensor, output: Tensor, step: Tensor, grid: Grid) -> Tensor:
        """One first-order step: Euler for a flow, DDIM without noise for a diffusion process."""
        if grid.process == "flow":
            return euler(x, output, step, grid)
        return ddim(x, output, step, grid, eta=0.0, prediction=self.model.prediction).mean

    def mean(self, output: Tensor) -> Tensor:
        """The velocity of an output, without the std with which it is drawn."""
        return output.chunk(2, 1)[0] if self.model.prediction == "drawn" else output

    def predict(self, network: nn.Module, x: Tensor, step: Int[Tensor, " N"], conditioning: Any, grid: Grid) -> Tensor:
        """The network's output in fp32; without gradient in chunks of ``forward_batch_size``."""
        times = grid.network_time(step)
        if torch.is_grad_enabled():
            return self.model.predict(network, x, times, conditioning).float()
        chunks = torch.arange(len(x)).split(self.forward_batch_size)
        outputs = []
        # Of a sharded network all processes make as many passes; those that fill up (``counts`` False) are dropped.
        for i, counts in in_step(network, chunks, lambda: chunks[0][:1]):
            if len(i) < len(x):
                at = put(i, x.device)
                output = self.model.predict(network, x[at], times[at], conditioning.take(i)).float()
            else:
                output = self.model.predict(network, x, times, conditioning).float()
            outputs += [output] * counts
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]
