"""What all generators of images and clips have in common; the file of a family adds what differs.

Flow matching: x_sigma = (1 - sigma) x0 + sigma eps, the network predicts v = eps - x0. With classifier-free guidance g
(Ho & Salimans 2022, arXiv:2207.12598, in diffusers' scaling)

    v = v_negative + g (v_prompt - v_negative)

where v_negative is the prediction for the negative prompt, by default no words; both come from one batch of double
size, in rollout and training alike, so the likelihood is that of the guided policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.schedules import GRIDS, Grid, flow
from mmgrpo.runtime.fingerprint import of_network
from mmgrpo.runtime.finite import is_finite
from mmgrpo.types import Audio, Image, Media, Prompt, Reference, Video
from pipelines.conditions import Conditioning, Encoding, Encodings, negative_of, refuse_media, stack_rows
from pipelines.denoising import CHECKPOINT
from pipelines.lora import lora_weights
from pipelines.training import Training, make_trainable, torch_dtype
from pipelines.visual.conditioning_image import check_given, given_output
from pipelines.visual.options import MemoryOptions

TRANSFORMER = "transformer"
"""Subfolder of the network in a diffusers folder."""

ENCODED = 3
"""Changes with what encoders give of the same prompts, so files of an earlier version are not read."""
NOTHING = Conditioning(())
"""The conditioning of outputs of which it states no part."""


class Architecture:
    """What differs between families; the methods without a body are those that every family has."""

    pipeline: Any
    """The diffusers pipeline of the frozen parts; None for a model that has none."""
    takes_images: ClassVar[bool] = False
    """Whether a prompt may have an image."""
    decoders: ClassVar[tuple[str, ...]] = ("vae",)
    """The frozen parts that decode latents, which are needed to the end."""

    def check(self, prompt: Prompt) -> None:
        """Raise ValueError for a prompt that is longer than the text encoder takes, which would be cut; encodes
        nothing."""

    def encode(self, prompt: Prompt) -> Encoding:
        """The conditioning on one prompt, without a batch axis; the same shapes for all prompts, but for the first axis
        of what is filled up to the longest.

        An empty text is the unconditional branch of classifier-free guidance. The prompt has passed ``check``.
        """
        raise NotImplementedError

    def check_negative(self, prompt: Prompt) -> None:
        """``check`` of a negative prompt."""
        self.check(prompt)

    def encode_negative(self, prompt: Prompt) -> Encoding:
        """``encode`` of a negative prompt (empty: of none), for models that read it in another way."""
        return self.encode(prompt)

    def check_guidance(self, scale: float) -> None:
        """ValueError for a scale of classifier-free guidance that the checkpoint does not take."""

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The network's prediction at noise level sigma = ``time`` (diffusion: at timestep ``time``), one per row."""
        raise NotImplementedError

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float | Tensor) -> Tensor:
        """Classifier-free guidance, for families whose pipelines do nothing else."""
        return unconditional + scale * (conditional - unconditional)

    def scale_at(self, time: Float[Tensor, " N"], scale: float) -> float | Tensor:
        """The scale of guidance at each row's time, for models in which it depends on the time."""
        return scale

    def complete(self, latents: Tensor, conditioning: tuple[Tensor, ...]) -> Float[Tensor, "N *latent"]:
        """The latents of whole outputs from those of samples, for models in which the conditioning states a part of
        them (the first frame of a clip), which is neither drawn nor scored."""
        return latents

    @property
    def streams(self) -> Mapping[str, int]:
        """Entries of each stream of a flat latent (``mmgrpo.diffusion.ode.Streamed``); empty: it is one."""
        return {}

    @property
    def frame_size(self) -> tuple[int, int] | None:
        """Height and width in pixels of the frame that the image of a prompt becomes, for models in which it is one."""
        return None

    def pixels(self, latents: Float[Tensor, "N *latent"]) -> Float[Tensor, "N *frames 3 H W"]:
        """Pixels of denoised latents in [0, 1], which the decoder may slightly exceed; of clips with frames."""
        raise NotImplementedError

    def sounds(self, latents: Float[Tensor, "N *latent"]) -> Sequence[Audio | None]:
        """What is heard in each clip of denoised latents; None for models that make no sound."""
        return [None] * len(latents)

    def encode_pixels(self, pixels: Float[Tensor, "N *frames 3 H W"]) -> Float[Tensor, "N *latent"]:
        """Latents of pixels in [0, 1], which ``pixels`` decodes; the mean of a VAE's posterior."""
        raise ValueError(
            f"data.offline: {type(self).__name__} does not encode given images or videos, as sd3, flux, sana, "
            "qwen_image, longcat_image, wan and small models do; choose one of them, or set data.offline=0"
        )

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


Sized = Callable[[int, int, int], tuple[Architecture, tuple[int, ...]]]
"""Height and width in pixels and frames (zeros: the model's own) to the architecture and the shape of latents of that
size; ValueError names what is unsupported."""


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
    """Frames per second of the clips; 0 for a model of images."""
    levels: str = CHECKPOINT
    """Noise levels: ``checkpoint``, or another grid by name (``mmgrpo.diffusion.schedules.GRIDS``)."""
    decode_batch_size: int = 8
    """Memory limit: images that are decoded at one time."""
    encodings: Encodings = field(init=False)
    negatives: Encodings = field(init=False)
    """Encodings of negative prompts."""
    prediction: str = "flow"
    """What the network predicts: the velocity eps - x0, or epsilon, v or sample of a diffusion process."""
    sized: Sized | None = None
    """The architecture and the latent shape for another size; None for a model that has one size only."""
    negative_prompt: str = ""
    """That of prompts which state none."""
    encodes_negatives: bool = False
    """Encode negative prompts where this model has no guidance, too, since a variant of it reads them."""
    whole_clips: bool = False
    """Take given clips from the first to the last frame, whatever their speed becomes (``given_output``)."""
    size: Image | Video | None = field(default=None, init=False, repr=False)
    """A sample, once one was needed for its size."""

    def __post_init__(self) -> None:
        self.encodings = Encodings(self._encode, self.device)
        self.negatives = Encodings(self._encode_negative, self.device)

    @property
    def device(self) -> torch.device:
        return torch.device(self.training.device)

    @property
    def streams(self) -> Mapping[str, int]:
        """Latent entries of each stream (``mmgrpo.diffusion.ode.Streamed``)."""
        return self.architecture.streams

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    def latent_shape(self) -> tuple[int, ...]:
        """Channels, (frames,) height and width of one sample."""
        return self.shape

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """One row per prompt, on the device."""
        words = stack_rows(self.encodings.rows(prompts))
        if self.guidance == 1 and not self.encodes_negatives:
            return Conditioning(words)
        return Conditioning(words, stack_rows(self.negatives.rows([self.negative(prompt) for prompt in prompts])))

    def negative(self, prompt: Prompt) -> Prompt:
        """The negative prompt of a prompt, with its media."""
        return negative_of(prompt, self.negative_prompt)

    def check(self, prompt: Prompt) -> None:
        """Raise ValueError for a prompt, or a negative prompt that is read, of which the text encoder would cut
        something."""
        self.architecture.check(prompt)
        if self.guidance != 1 or self.encodes_negatives:
            try:
                self.architecture.check_negative(self.negative(prompt))
            except ValueError as error:
                raise ValueError(f"the negative prompt of prompt '{prompt.id}': {error}") from error

    def check_answers(self, prompt: Prompt) -> None:
        """Raise ``Unreadable`` for a given clip that cannot be read, or is shorter than a sample."""
        for answer in prompt.answers if self.fps else ():
            if answer.media is not None:
                check_given(answer.media, self.sample_size, self.whole_clips)

    def variant(self, *, guidance: float, size: tuple[int, int, int] | None = None) -> FlowModel:
        """The same model with another scale of guidance, and with another size: height, width in pixels and frames, of
        which zeros are the model's own.

        Both have the same network, encoders and noise levels of the same kind. ValueError for what the model cannot do.
        """
        self.architecture.check_guidance(guidance)
        architecture, shape = self.architecture, self.shape
        if size is not None:
            if self.sized is None:
                raise ValueError("size: this model has one size only")
            architecture, shape = self.sized(*size)
        other = replace(self, guidance=float(guidance), architecture=architecture, shape=shape)
        if shape == self.shape or not architecture.takes_images:  # what is read does not depend on the size
            other.encodings, other.negatives = self.encodings, self.negatives
        else:
            for made, source in ((other.encodings, self.encodings), (other.negatives, self.negatives)):
                made.folder, made.disk_bytes, made.kept = source.folder, source.disk_bytes, source.kept
                made.identity = f"{source.identity} {shape}"
        return other

    def limit_memory(self, options: MemoryOptions, identity: str) -> None:
        """Apply the options that limit memory; ``identity`` tells the encodings of one model from those of others."""
        self.decode_batch_size = options.decode_batch_size
        if options.encodings_folder:
            # Another checkpoint may lie under the same name. The VAE encodes the images of prompts.
            weights = {name: of_network(part) for name, part in self.frozen_parts().items()}
            self.encodings.identity = (
                f"{identity} {ENCODED} {options.dtype} {options.vae_dtype} {options.vae_tiling} {weights}"
            )
            self.negatives.identity = f"{self.encodings.identity} negative"
            for kept in (self.encodings, self.negatives):
                kept.folder = Path(options.encodings_folder)
                kept.disk_bytes = int(options.encodings_gb * 1e9)
        if self.architecture.pipeline is not None:
            vae = self.architecture.pipeline.vae
            vae.to(torch_dtype(options.vae_dtype))
            if options.vae_tiling:
                vae.enable_tiling()

    def _encode(self, prompt: Prompt) -> Encoding:
        if not self.architecture.takes_images:
            refuse_media(prompt)
        self.architecture.check(prompt)
        return self.architecture.encode(prompt)

    def _encode_negative(self, prompt: Prompt) -> Encoding:
        if not self.architecture.takes_images:
            refuse_media(prompt)
        self.architecture.check_negative(prompt)
        return self.architecture.encode_negative(prompt)

    def forget_encoders(self, prompts: Iterable[Prompt], variants: Sequence[FlowModel] = ()) -> None:
        """Encode these prompts and their negative prompts, also for the variants, and free the memory of the text
        encoders."""
        prompts = list(prompts)
        for model in (self, *variants):
            if model is self or model.encodings is not self.encodings:
                model.encodings.only(prompts)
                model.negatives.only([self.negative(prompt) for prompt in prompts])
        for name in self.frozen_parts() if self.architecture.pipeline else ():
            if name not in self.architecture.decoders:
                setattr(self.architecture.pipeline, name, None)

    def frozen_parts(self) -> dict[str, nn.Module]:
        """The encoders and the VAE by name."""
        trained = {id(module) for module in self.network.modules()}
        parts = self.architecture.pipeline.components if self.architecture.pipeline else vars(self.architecture)
        return {name: part for name, part in parts.items() if isinstance(part, nn.Module) and id(part) not in trained}

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N *latent"],
        time: Float[Tensor, " N"],
        conditioning: Conditioning,
    ) -> Float[Tensor, "N *latent"]:
        """The (guided) prediction at ``time`` (a flow's in [0, 1]), in fp32."""
        tensors, scale = conditioning.tensors, self.architecture.scale_at(time, self.guidance)
        if self.guidance != 1:
            tensors = tuple(torch.cat(pair) for pair in zip(conditioning.negative, tensors, strict=True))
            x, time = torch.cat([x, x]), torch.cat([time, time])
        with self._autocast(self.training.compute_dtype):
            velocity = self.architecture.velocity(network, x, time, tensors).float()
        if self.guidance == 1:
            return velocity
        unconditional, conditional = velocity.chunk(2)
        return self.architecture.guided(unconditional, conditional, scale)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N *latent"], conditioning: Conditioning = NOTHING) -> list[Any]:
        """Images or clips of denoised latents, ``decode_batch_size`` at a time, in the VAE's own precision.

        ``conditioning`` is that of the rows; only models in which it states a part of the output need it.
        """
        outputs: list[Image | Video] = []
        latents = self.architecture.complete(latents.to(self.device), conditioning.tensors)
        for batch in latents.split(self.decode_batch_size):
            with self._autocast(torch.float32):
                pixels, sounds = self.architecture.pixels(batch), self.architecture.sounds(batch)
            refuse_overflow(pixels, self.architecture.pipeline)
            for sample, sound in zip(pixels.to("cpu", torch.float32).clamp(0, 1), sounds, strict=True):
                outputs.append(Video(sample, self.fps, sound) if self.fps else Image(sample))
        return outputs

    def pixels(self, latents: Float[Tensor, "N *latent"], conditioning: Conditioning = NOTHING) -> Tensor:
        """The pixels of denoised latents with their gradient, on the device and not clamped, in the VAE's precision."""
        with self._autocast(torch.float32):
            pixels = self.architecture.pixels(self.architecture.complete(latents, conditioning.tensors))
        refuse_overflow(pixels, self.architecture.pipeline)
        return pixels.float()

    @property
    def sample_size(self) -> Image | Video:
        """A sample, for its size."""
        self.size = size = self.size or self.decode(torch.zeros(1, *self.shape))[0]
        return size

    @property
    def kind(self) -> str:
        """``image`` or ``video``."""
        return "video" if self.fps else "image"

    @torch.no_grad()
    def latents(self, media: Sequence[Media]) -> tuple[Float[Tensor, "N *latent"], list[Image | Video]]:
        """Latents of given images or videos and the media themselves, in the size of samples: scaled to cover it and
        cropped at the centre; of a video the frames at the times of a sample's (``given_output``)."""
        outputs = [given_output(medium, self.sample_size, self.whole_clips) for medium in media]
        pixels = torch.stack([output.frames if isinstance(output, Video) else output.pixels for output in outputs])
        latents = []
        for batch in pixels.to(self.device).split(self.decode_batch_size):
            with self._autocast(torch.float32):
                latents.append(self.architecture.encode_pixels(batch).float())
        if latents[0].shape[1:] != self.shape:
            raise ValueError(
                f"data.offline: got latents of shape {list(latents[0].shape[1:])} of given outputs, expected "
                f"{list(self.shape)}; this family does not take them, set data.offline=0"
            )
        return torch.cat(latents), outputs

    def grid(self, steps: int) -> Grid:
        """The noise levels of ``steps`` steps; those of the checkpoint equal diffusers' pipeline bit for bit."""
        if self.levels != CHECKPOINT:
            return bind(self.levels, GRIDS, "sampling.grid")({"steps": steps})
        refuse_other_levels(self.scheduler)
        scheduler = type(self.scheduler).from_config(self.scheduler.config)  # set_timesteps changes its state
        arguments = self.architecture.spacing(scheduler, steps)
        if scheduler.config.get("use_dynamic_shifting") and "mu" not in arguments:
            refuse_key(scheduler, "use_dynamic_shifting", "false: the pipeline of this family states no shift")
        scheduler.set_timesteps(**arguments)
        return flow(scheduler.sigmas.float(), time_shift(scheduler, arguments.get("mu")))

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


def flow_model(
    network: nn.Module,
    scheduler: Any,
    training: Training,
    targets: Sequence[str],
    sized: Sized,
    size: tuple[int, int, int],
    guidance: float,
    fps: float = 0.0,
) -> FlowModel:
    """The model of a network that trains, with a LoRA on ``targets``, for outputs of a ``size`` (height, width and
    frames; zeros: the model's own)."""
    architecture, shape = sized(*size)
    reference = make_trainable(network, training, targets)
    return FlowModel(network, architecture, shape, scheduler, training, reference, float(guidance), fps, sized=sized)


def refuse_other_levels(scheduler: Any) -> None:
    """ValueError for a scheduler whose levels are not those of a flow, from 1 to 0."""
    config = scheduler.config
    if not is_euler(scheduler):
        if config.get("prediction_type") != "flow_prediction":
            refuse_key(scheduler, "prediction_type", "flow_prediction, since the network predicts a velocity")
        if not config.get("use_flow_sigmas"):
            refuse_key(scheduler, "use_flow_sigmas", "true, since the levels of a flow fall from 1 to 0")
        if config.get("final_sigmas_type", "zero") != "zero":
            refuse_key(scheduler, "final_sigmas_type", "zero: the last step leads to level 0")
    if config.get("invert_sigmas"):
        refuse_key(scheduler, "invert_sigmas", "false: the levels of a flow fall from 1 to 0")


def refuse_key(scheduler: Any, key: str, expected: str) -> None:
    raise ValueError(
        f"scheduler/scheduler_config.json ({type(scheduler).__name__}): {key}: got {scheduler.config.get(key)}, "
        f"expected {expected}; correct the file, or replace it by that of the model's own repository"
    )


def is_euler(scheduler: Any) -> bool:
    """Whether its noise levels are those of a FlowMatch... class, whose shift is called ``shift``."""
    return type(scheduler).__name__.startswith("FlowMatch")


def time_shift(scheduler: Any, mu: float | None) -> float:
    """The factor s of ``s t / (1 + (s - 1) t)`` by which a scheduler shifts its levels.

    Files may have keys that are foreign to their class, so the class decides on the key.
    """
    config = scheduler.config
    if not config.get("use_dynamic_shifting"):
        return float(config["shift" if is_euler(scheduler) else "flow_shift"])
    assert mu is not None
    return math.exp(mu) if config.get("time_shift_type", "exponential") == "exponential" else mu


def image_shift(config: Any, tokens: int, most: float) -> float:
    """mu, linear in the number of image tokens as in diffusers' pipelines; ``most`` is their default at 4096 tokens."""
    few, many = config.get("base_image_seq_len", 256), config.get("max_image_seq_len", 4096)
    low, high = config.get("base_shift", 0.5), config.get("max_shift", most)
    slope = (high - low) / (many - few)
    return tokens * slope + (low - slope * few)


def shifted_spacing(scheduler: Any, steps: int, tokens: int) -> dict[str, Any]:
    """Evenly spaced levels from 1 to 1 / steps, shifted according to the number of tokens."""
    return {"sigmas": np.linspace(1.0, 1 / steps, steps), "mu": image_shift(scheduler.config, tokens, 1.15)}


def pixels_of_latents(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed."""
    scaled = latents.float() / vae.config.scaling_factor + (vae.config.get("shift_factor") or 0.0)
    return vae.decode(scaled.to(vae.dtype)).sample.float() / 2 + 0.5


def latents_of_pixels(vae: Any, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
    """The inverse of ``pixels_of_latents``: the mean of the posterior, shifted and scaled."""
    encoded = vae.encode((2 * pixels - 1).to(vae.dtype))
    latents = (encoded.latent if "latent" in encoded else encoded.latent_dist.mode()).float()
    return (latents - (vae.config.get("shift_factor") or 0.0)) * vae.config.scaling_factor


def refuse_overflow(pixels: Tensor, pipeline: Any) -> None:
    """ValueError where finite latents decode to pixels that are not: a VAE whose activations overflow half
    precision."""
    if not is_finite([pixels]):
        dtype = str(pipeline.vae.dtype).removeprefix("torch.") if pipeline else "float32"
        raise ValueError(
            f"the VAE ({dtype}) makes pixels that are NaN or infinite of latents that are finite: its activations "
            "overflow; set model.vae_dtype=float32 (or bfloat16)"
        )
