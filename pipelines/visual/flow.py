"""What all generators of pictures and clips have in common; the file of a family adds what differs.

Flow matching: x_sigma = (1 - sigma) x0 + sigma eps, the network predicts v = eps - x0. With classifier-free guidance g
(Ho & Salimans 2022, arXiv:2207.12598, in diffusers' scaling)

    v = v_empty + g (v_prompt - v_empty)

where v_empty is the prediction without the prompt's words; both come from one batch of double size, in rollout and
training alike, so that the likelihood is that of the guided policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.diffusion.schedules import GRIDS, Grid, flow
from mmgrpo.registry import bind
from mmgrpo.types import Image, Prompt, Reference, Video, to_image
from pipelines.lora import lora_weights
from pipelines.training import Training, torch_dtype
from pipelines.visual.conditions import Conditioning, Encoding, Encodings, stacked, without_words
from pipelines.visual.options import MemoryOptions

TRANSFORMER = "transformer"
"""Subfolder of the network in a diffusers folder."""

CHECKPOINT = "checkpoint"
"""Name of the noise levels of the checkpoint's own scheduler."""


class Architecture:
    """What differs between families; the methods without a body are those that every family has."""

    pipeline: Any
    """The diffusers pipeline of the frozen parts; None for a model that has none."""

    def encode(self, prompt: Prompt) -> Encoding:
        """The conditioning on one prompt, without a batch axis; the same shapes for all prompts.

        An empty text is the unconditional branch of classifier-free guidance. Raises ValueError for a prompt that is
        longer than the text encoder takes, and for media that the family does not take.
        """
        raise NotImplementedError

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The network's prediction at noise level sigma = ``time`` (diffusion: at timestep ``time``), one per row."""
        raise NotImplementedError

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
        """Classifier-free guidance, for families whose pipelines do nothing else."""
        return unconditional + scale * (conditional - unconditional)

    def pixels(self, latents: Float[Tensor, "N *latent"]) -> Float[Tensor, "N *frames 3 H W"]:
        """Pixels of denoised latents in [0, 1], which the decoder may slightly exceed; of clips with frames."""
        raise NotImplementedError

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """The arguments with which the pipeline calls the scheduler's ``set_timesteps``."""
        return {"num_inference_steps": steps}

    def save(self, folder: Path, network: Any) -> None:
        """Write a whole trained network, adapters excepted."""
        network.save_pretrained(folder / TRANSFORMER)

    def save_adapters(self, folder: Path, network: Any) -> None:
        """Write ``pytorch_lora_weights.safetensors`` with rank and alpha, as plain diffusers loads it."""
        weights, config = lora_weights(network)
        self.diffusers_class().save_lora_weights(
            folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=config
        )

    def diffusers_class(self) -> Any:
        """The class of diffusers' pipeline, which saves adapters in its format."""
        return type(self.pipeline)


@dataclass
class FlowModel:
    """A generator as the model of a denoising policy: flow matching, unless a subclass says otherwise."""

    network: nn.Module
    """The transformer that trains, with its adapters where there are any."""
    architecture: Architecture
    shape: tuple[int, ...]
    """Of one latent: channels, (frames,) height and width."""
    scheduler: Any
    """The checkpoint's scheduler, which defines the noise levels of its pipeline."""
    training: Training
    reference: Reference
    guidance: float = 1.0
    """Scale of classifier-free guidance; 1 is none, with one network evaluation instead of two."""
    fps: float = 0.0
    """Frames per second of the clips; 0 for a model of pictures."""
    levels: str = CHECKPOINT
    """Noise levels: ``checkpoint``, or another grid by name (``mmgrpo.diffusion.schedules.GRIDS``)."""
    decode_batch_size: int = 8
    """Memory limit: pictures that are decoded at one time."""
    encodings: Encodings = field(init=False)
    prediction: str = "flow"
    """What the network predicts: the velocity eps - x0, or epsilon, v or sample of a diffusion process."""

    def __post_init__(self) -> None:
        self.encodings = Encodings(self.architecture.encode, self.device)

    @property
    def device(self) -> torch.device:
        return torch.device(self.training.device)

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    def latent_shape(self) -> tuple[int, ...]:
        """Channels, (frames,) height and width of one sample."""
        return self.shape

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """One row per prompt, on the device."""
        words = stacked(self.encodings.rows(prompts))
        if self.guidance == 1:
            return Conditioning(words)
        return Conditioning(words, stacked(self.encodings.rows([without_words(prompt) for prompt in prompts])))

    def limit_memory(self, options: MemoryOptions, identity: str) -> None:
        """Apply the options that limit memory; ``identity`` tells the encodings of one model from those of others."""
        self.decode_batch_size = options.decode_batch_size
        self.encodings.identity = f"{identity} {options.dtype}"
        if options.encodings_folder:
            self.encodings.folder = Path(options.encodings_folder)
            self.encodings.disk_bytes = int(options.encodings_gb * 1e9)
        if self.architecture.pipeline is not None:
            vae = self.architecture.pipeline.vae.to(torch_dtype(options.vae_dtype))
            if options.vae_tiling:
                vae.enable_tiling()

    def forget_encoders(self, prompts: Iterable[Prompt]) -> None:
        """Encode these prompts, with and without their words, and free the memory of the text encoders."""
        prompts = list(prompts)
        self.encodings.only([*prompts, *(without_words(prompt) for prompt in prompts)])
        pipeline, needed = self.architecture.pipeline, {id(module) for module in self.network.modules()}
        for name, part in (pipeline.components if pipeline else {}).items():
            if isinstance(part, nn.Module) and id(part) not in needed and name != "vae":
                setattr(pipeline, name, None)

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N *latent"],
        time: Float[Tensor, " N"],
        conditioning: Conditioning,
    ) -> Float[Tensor, "N *latent"]:
        """The (guided) prediction at ``time`` (a flow's in [0, 1]), in fp32."""
        tensors = conditioning.tensors
        if self.guidance != 1:
            tensors = tuple(torch.cat(pair) for pair in zip(conditioning.negative, tensors, strict=True))
            x, time = torch.cat([x, x]), torch.cat([time, time])
        with self._autocast(self.training.compute_dtype):
            velocity = self.architecture.velocity(network, x, time, tensors).float()
        if self.guidance == 1:
            return velocity
        unconditional, conditional = velocity.chunk(2)
        return self.architecture.guided(unconditional, conditional, self.guidance)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N *latent"]) -> list[Any]:
        """Pictures or clips of denoised latents, ``decode_batch_size`` at a time, in the VAE's own precision."""
        outputs: list[Image | Video] = []
        for batch in latents.to(self.device).split(self.decode_batch_size):
            with self._autocast(torch.float32):
                pixels = self.architecture.pixels(batch)
            refuse_overflow(pixels, self.architecture.pipeline)
            for sample in pixels:
                picture = to_image(sample)
                outputs.append(Video(picture.pixels, self.fps) if self.fps else picture)
        return outputs

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
        write = self.architecture.save_adapters if self.training.adapters else self.architecture.save
        write(Path(folder), extract_model_from_parallel(network))

    def _autocast(self, dtype: torch.dtype) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)


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


def freeze(modules: Iterable[Any], device: torch.device | str) -> None:
    """Freeze modules and move them to the device, in evaluation mode."""
    for module in modules:
        if module is not None:
            module.to(device).eval().requires_grad_(False)


def pixels_of_latents(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed."""
    scaled = latents.float() / vae.config.scaling_factor + (vae.config.get("shift_factor") or 0.0)
    return vae.decode(scaled.to(vae.dtype), return_dict=False)[0].float() / 2 + 0.5


def refuse_overflow(pixels: Tensor, pipeline: Any) -> None:
    """ValueError where finite latents decode to pixels that are not: a VAE whose activations overflow half
    precision."""
    if not bool(torch.isfinite(pixels).all()):
        dtype = str(pipeline.vae.dtype).removeprefix("torch.") if pipeline else "float32"
        raise ValueError(
            f"the VAE ({dtype}) makes pixels that are NaN or infinite of latents that are finite: its activations "
            "overflow; set model.vae_dtype=float32 (or bfloat16)"
        )


def refuse_media(prompt: Prompt, family: str) -> None:
    """ValueError for a prompt with media where a family takes words only."""
    if prompt.media:
        raise ValueError(
            f"prompt '{prompt.text}': got {len(prompt.media)} media, expected words only, since the family '{family}' "
            "takes none"
        )


def refuse_cut(prompt: Prompt, tokenizer: Any, most: int, encoder: str, text: str | None = None) -> None:
    """ValueError for a prompt that has more tokens than the text encoder reads, since the rest would be cut."""
    tokens = len(tokenizer(prompt.text if text is None else text, truncation=False, verbose=False).input_ids)
    if tokens > most:
        raise ValueError(
            f"prompt '{prompt.text:.80}': has {tokens} tokens, expected at most {most}, which {encoder} reads; shorten "
            "it, or raise model.max_sequence_length where the model allows"
        )
