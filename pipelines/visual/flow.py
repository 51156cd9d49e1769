"""What all flow-matching image models have in common; the file of a family adds what differs.

Conventions: x_sigma = (1 - sigma) x0 + sigma eps, the network predicts v = eps - x0. With classifier-free guidance g
(Ho & Salimans 2022, arXiv:2207.12598, in diffusers' scaling)

    v = v_empty + g (v_prompt - v_empty)

where v_empty is the prediction for the empty prompt; both come from one batch of double size, in rollout and training
alike, so that the likelihood is that of the guided policy.
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
"""Name of the noise levels of the checkpoint's own scheduler."""


@dataclass(frozen=True)
class Conditioning:
    """The network's conditioning on the prompts: tensors with one row per prompt."""

    tensors: tuple[Float[Tensor, "N *_"], ...]

    def take(self, index: Int[Tensor, "M"]) -> Conditioning:
        """Rows by number, possibly repeated."""
        return Conditioning(tuple(tensor[index] for tensor in self.tensors))


class Architecture(Protocol):
    """What differs between families of flow models."""

    def encode(self, text: str) -> tuple[Tensor, ...]:
        """The conditioning on one text, without a batch axis."""
        ...

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The network's prediction at noise level sigma = ``time``, one per row."""
        ...

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        """Pixels of denoised latents in [0, 1], which the decoder may slightly exceed."""
        ...

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """The arguments with which the pipeline calls the scheduler's ``set_timesteps``."""
        ...

    def save(self, folder: Path, network: Any) -> None:
        """Write a whole trained network, adapters excepted."""
        ...


@dataclass
class FlowModel:
    """A flow model as the model of a denoising policy."""

    network: nn.Module
    """The transformer that trains, with its adapters where there are any."""
    architecture: Architecture
    pipeline: Any
    """The class of diffusers' pipeline, which saves adapters in its format."""
    shape: tuple[int, int, int]
    """Channels, height and width of one latent."""
    scheduler: Any
    """The checkpoint's scheduler, which defines the noise levels of its pipeline."""
    training: Training
    reference: Reference
    guidance: float = 1.0
    """Scale of classifier-free guidance; 1 is none, with one network evaluation instead of two."""
    levels: str = CHECKPOINT
    """Noise levels: ``checkpoint``, or another grid by name (``mmgrpo.diffusion.schedules.GRIDS``)."""
    decode_batch_size: int = 8
    """Memory limit: pictures that are decoded at one time."""
    encodings_kept: int = 1024
    """Memory limit: encoded prompts in the cache; the oldest are dropped first."""
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
        """Encode these prompts and the empty one into the cache, and free the memory of the text encoders."""
        distinct = {prompt.text: prompt for prompt in (Prompt(""), *prompts)}
        self.encodings_kept = len(self.encodings) + len(distinct)
        self.encode(list(distinct.values()))
        self.encoder = missing_encoder

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
        with self._autocast(self.training.compute_dtype):
            velocity = self.architecture.velocity(network, x, time, tensors).float()
        if self.guidance == 1:
            return velocity
        unconditional, conditional = velocity.chunk(2)
        return unconditional + self.guidance * (conditional - unconditional)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N c h w"]) -> list[Image]:
        """Pictures of denoised latents, ``decode_batch_size`` at a time, in fp32."""
        with self._autocast(torch.float32):
            batches = latents.to(self.device).split(self.decode_batch_size)
            pieces = [self.architecture.pixels(batch) for batch in batches]
        return [to_image(pixels) for piece in pieces for pixels in piece]

    def grid(self, steps: int) -> Grid:
        """The noise levels of ``steps`` steps; those of the checkpoint equal diffusers' pipeline bit for bit."""
        if self.levels != CHECKPOINT:
            return bind(self.levels, GRIDS, "sampling.grid")({"steps": steps})
        scheduler = type(self.scheduler).from_config(self.scheduler.config)  # set_timesteps changes its state
        arguments = self.architecture.spacing(scheduler, steps)
        scheduler.set_timesteps(**arguments)
        return flow(scheduler.sigmas.float(), time_shift(scheduler.config, arguments.get("mu")))

    def save(self, folder: Path | str, network: nn.Module) -> None:
        """Adapters as ``pytorch_lora_weights.safetensors`` with rank and alpha, or the full network.

        Both are formats of diffusers.
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

    def _autocast(self, dtype: torch.dtype) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)


def missing_encoder(text: str) -> NoReturn:
    """Replaces the encoder after ``forget_encoders``."""
    raise KeyError(
        f"prompt '{text}' was not encoded before the text encoders were freed; pass all prompts to forget_encoders, or "
        "set model.forget_encoders=False"
    )


def time_shift(config: Any, mu: float | None) -> float:
    """The factor s of ``s t / (1 + (s - 1) t)`` by which a scheduler shifts its levels."""
    if not config.get("use_dynamic_shifting"):
        return float(config["shift"])
    assert mu is not None
    return math.exp(mu) if config.get("time_shift_type", "exponential") == "exponential" else mu


def image_shift(config: Any, tokens: int, most: float) -> float:
    """mu, linear in the number of image tokens as in diffusers' pipelines; ``most`` is their default at 4096 tokens."""
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", most)
    slope = (high - low) / (many - few)
    return tokens * slope + (low - slope * few)


def at_least_one(name: str, scale: float) -> float:
    """The scale of guidance, which must be at least 1 (none)."""
    if scale < 1:
        raise ValueError(f"{name}: got {scale}, expected 1 (no guidance) or more")
    return float(scale)


def latent_size(
    height: int, width: int, *, unit: int, factor: int, default: int, most: int = 1 << 30
) -> tuple[int, int]:
    """Height and width of latents, ``factor`` pixels per side of a position; ValueError for an unsupported size.

    A height or width of 0 is that of ``default`` positions.
    """
    height, width = height or default * factor, width or default * factor
    for name, size in (("height", height), ("width", width)):
        if size < unit or size % unit or size > most:
            raise ValueError(f"{name}: got {size} pixels, expected a multiple of {unit}, at most {most}")
    return height // factor, width // factor


def freeze(modules: Iterable[Any], device: torch.device | str) -> None:
    """Freeze modules and move them to the device, in evaluation mode."""
    for module in modules:
        if module is not None:
            module.to(device).eval().requires_grad_(False)


def pixels_of_latents(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed."""
    scaled = latents.float() / vae.config.scaling_factor + vae.config.shift_factor
    return vae.decode(scaled, return_dict=False)[0] / 2 + 0.5
