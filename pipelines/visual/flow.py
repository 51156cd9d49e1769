"""What all flow-matching image models have in common; a family's file adds only what differs.

Conventions: x_sigma = (1 - sigma) x0 + sigma eps, the network predicts v = eps - x0. With classifier-free guidance g
(Ho & Salimans 2022, arXiv:2207.12598, in diffusers' scaling)

    v = v_empty + g (v_prompt - v_empty)

where v_empty is the prediction for the empty prompt; both come from one doubled batch, in rollout and training alike,
so that the likelihood is that of the guided policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.diffusion.schedules import GRIDS, Grid, flow
from mmgrpo.registry import bind
from mmgrpo.types import Image, Prompt, Reference, to_image
from pipelines.lora import lora_weights
from pipelines.training import Training

TRANSFORMER = "transformer"
"""Subfolder of the network in a diffusers folder."""

CHECKPOINT = "checkpoint"
"""The noise levels of the checkpoint's own scheduler."""


@dataclass(frozen=True)
class Conditioning:
    """What the network is told about the prompts: tensors with one row per prompt each."""

    tensors: tuple[Float[Tensor, "N *_"], ...]

    def take(self, index: Int[Tensor, "M"]) -> Conditioning:
        """Rows by number, repeated as asked."""
        return Conditioning(tuple(tensor[index] for tensor in self.tensors))


class Architecture(Protocol):
    """What a family of flow models answers for itself."""

    def encode(self, text: str) -> tuple[Tensor, ...]:
        """What the network is told about one text, without a batch axis."""
        ...

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The network's prediction at noise level sigma = ``time``, one per row."""
        ...

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        """Pixels in [0, 1] of finished latents, up to what the decoder overshoots."""
        ...

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """With which arguments the pipeline calls the scheduler's ``set_timesteps``."""
        ...

    def save(self, folder: Path, network: Any) -> None:
        """Write a whole trained network, adapters excepted."""
        ...


@dataclass
class FlowModel:
    """The answers of a flow model to a denoising policy's questions."""

    network: nn.Module
    """The trained transformer, adapters inside when there are any."""
    architecture: Architecture
    pipeline: Any
    """The class of diffusers' pipeline, which writes adapters in its own format."""
    shape: tuple[int, int, int]
    """Channels, height and width of one latent."""
    scheduler: Any
    """The checkpoint's own, which says at which noise levels its pipeline samples."""
    training: Training
    reference: Reference
    guidance: float = 1.0
    """Scale of classifier-free guidance; 1 is none, and one evaluation instead of two."""
    levels: str = CHECKPOINT
    """Noise levels: ``checkpoint``, or another grid by name (``mmgrpo.diffusion.schedules.GRIDS``)."""
    decode_batch_size: int = 8
    """Memory limit of decoding, in pictures."""
    encodings_kept: int = 1024
    """Memory limit of the cache of encoded prompts; the oldest go first."""
    encodings: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)
    encoder: Callable[[str], tuple[Tensor, ...]] = field(init=False)
    prediction: str = "flow"
    """The network predicts the velocity eps - x0."""

    def __post_init__(self) -> None:
        self.encoder = self.architecture.encode

    @property
    def device(self) -> torch.device:
        return torch.device(self.training.device)

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    def latent_shape(self) -> tuple[int, ...]:
        """Channels, height and width of one sample."""
        return self.shape

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """One row per prompt, on the device.

        Texts are encoded one at a time, so that an encoding depends on its text alone and neither on its
        neighbours nor on how prompts are spread over ranks.
        """
        rows = {}
        for text in dict.fromkeys(prompt.text for prompt in prompts):
            rows[text] = self.encodings[text] if text in self.encodings else self.encoder(text)
        self.encodings.update(rows)
        while len(self.encodings) > self.encodings_kept:
            del self.encodings[next(iter(self.encodings))]
        columns = zip(*(rows[prompt.text] for prompt in prompts), strict=True)
        return Conditioning(tuple(torch.stack(column) for column in columns))

    def forget_encoders(self, prompts: Iterable[Prompt]) -> None:
        """Encode these prompts and the empty one, keep that, and free the memory of the text encoders."""
        needed = {prompt.text: prompt for prompt in (Prompt(""), *prompts)}
        self.encodings_kept = len(self.encodings) + len(needed)
        self.encode(list(needed.values()))
        self.encoder = forgotten

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N c h w"],
        time: Float[Tensor, " N"],
        conditioning: Conditioning,
    ) -> Float[Tensor, "N c h w"]:
        """The (guided) velocity v at sigma = ``time`` in [0, 1], in fp32."""
        tensors = conditioning.tensors
        if self.guidance != 1:
            empty = self.encode([Prompt("")]).take(torch.zeros(len(x), dtype=torch.long, device=self.device))
            tensors = tuple(torch.cat(pair) for pair in zip(empty.tensors, tensors, strict=True))
            x, time = torch.cat([x, x]), torch.cat([time, time])
        with self._computing(self.training.compute):
            velocity = self.architecture.velocity(network, x, time, tensors).float()
        if self.guidance == 1:
            return velocity
        without, prompted = velocity.chunk(2)
        return without + self.guidance * (prompted - without)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N c h w"]) -> list[Image]:
        """Pictures of finished latents, a few at a time."""
        with self._computing(torch.float32):
            batches = latents.to(self.device).split(self.decode_batch_size)
            pieces = [self.architecture.pixels(batch) for batch in batches]
        return [to_image(pixels) for piece in pieces for pixels in piece]

    def grid(self, steps: int) -> Grid:
        """The noise levels of ``steps`` steps; the checkpoint's are those of diffusers' pipeline, bit for bit."""
        if self.levels != CHECKPOINT:
            return bind(self.levels, GRIDS, "sampling.grid")({"steps": steps})
        own = type(self.scheduler).from_config(self.scheduler.config)
        arguments = self.architecture.spacing(own, steps)
        own.set_timesteps(**arguments)
        return flow(own.sigmas.float(), time_shift(own.config, arguments.get("mu")))

    def save(self, folder: Path | str, network: nn.Module) -> None:
        """Adapters as ``pytorch_lora_weights.safetensors`` with their rank and alpha, or a full network.

        Both are diffusers' own formats.
        """
        from accelerate.utils import extract_model_from_parallel

        Path(folder).mkdir(parents=True, exist_ok=True)
        network = extract_model_from_parallel(network)
        if not self.training.adapters:
            return self.architecture.save(Path(folder), network)
        weights, config = lora_weights(network)
        self.pipeline.save_lora_weights(
            folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=config
        )

    def _computing(self, dtype: torch.dtype) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)


def forgotten(text: str) -> NoReturn:
    """Stands where the encoders were."""
    raise KeyError(f"prompt '{text}' was not among those given to forget_encoders, and the encoders are gone")


def time_shift(config: Any, mu: float | None) -> float:
    """The factor s of ``s t / (1 + (s - 1) t)`` by which a scheduler shifts its levels."""
    if not config.get("use_dynamic_shifting"):
        return float(config["shift"])
    assert mu is not None
    return math.exp(mu) if config.get("time_shift_type", "exponential") == "exponential" else mu


def image_shift(config: Any, tokens: int, most: float) -> float:
    """mu, linear in the number of image tokens, as in diffusers' pipelines; ``most`` is their default at 4096."""
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", most)
    slope = (high - low) / (many - few)
    return tokens * slope + (low - slope * few)


def at_least_one(name: str, scale: float) -> float:
    """A scale of guidance of at least 1, which is none."""
    if scale < 1:
        raise ValueError(f"{name} must be 1 (none) or more, got {scale}")
    return float(scale)


def latent_size(
    height: int, width: int, *, unit: int, factor: int, default: int, most: int = 1 << 30
) -> tuple[int, int]:
    """Height and width of latents, one place for ``factor`` pixels; a size that does not fit raises.

    A height or width of 0 is that of ``default`` places.
    """
    height, width = height or default * factor, width or default * factor
    for name, size in (("height", height), ("width", width)):
        if size < unit or size % unit or size > most:
            raise ValueError(f"{name} must be a multiple of {unit} pixels and at most {most}, got {size}")
    return height // factor, width // factor


def freeze(modules: Iterable[Any], device: torch.device | str) -> None:
    """Move what does not train to its device, in evaluation mode."""
    for module in modules:
        if module is not None:
            module.to(device).eval().requires_grad_(False)


def pixels_of_latents(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1], up to what the VAE overshoots."""
    scaled = latents.float() / vae.config.scaling_factor + vae.config.shift_factor
    return vae.decode(scaled, return_dict=False)[0] / 2 + 0.5
