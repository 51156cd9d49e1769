"""Stable Audio Open (Evans et al. 2024, arXiv:2407.14358): a text and a duration to stereo sound at 44.1 kHz.

A diffusion transformer over the latents of a waveform autoencoder, which reads the words by T5. Its scheduler writes
the process as EDM does, x = x0 + sigma eps, and scales the network's input; divided by sqrt(1 + sigma^2) this is the
process of the kernel ``ddim``, with nothing approximated (``variance_exploding_grid``):

    z = x / sqrt(1 + sigma^2) = sqrt(abar) x0 + sqrt(1 - abar) eps      abar = 1 / (1 + sigma^2)
    the network at time 2 / pi atan(sigma) predicts v = sqrt(abar) eps - sqrt(1 - abar) x0

``ddim(eta=1)`` is the first-order step of the checkpoint's scheduler, SDE-DPM-Solver++; with eta = 0, which evaluation
takes, it is Euler's step of the ODE. Only the scheduler's numbers are read: its class needs the package torchsde.

The latents always span the checkpoint's longest recording (47.6 s); a recording of fewer seconds is the beginning of
it, as in the pipeline. The unconditional branch of guidance has zeros for words and duration in cross-attention, and
knows the duration by the global state.

    load(options)                           a folder or hub id of diffusers' StableAudioPipeline
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.diffusion.schedules import Grid, exponential_sigmas, variance_exploding_grid
from mmgrpo.runtime.devices import autocast
from mmgrpo.types import Audio, Prompt, Reference
from pipelines import require
from pipelines.conditions import Conditioning, Encoding, Encodings, refuse_cut, refuse_media, stack_rows
from pipelines.pretrained import locate, read_json, read_network, read_pipeline
from pipelines.speech.options import StableAudioOptions
from pipelines.training import PLAIN, Training, freeze, make_trainable

__all__ = ["StableAudio", "load"]

TRANSFORMER = "transformer"
"""Subfolder of the network in a diffusers folder."""

SCHEDULER_FILE = "scheduler/scheduler_config.json"
SCHEDULER = {
    "_class_name": "CosineDPMSolverMultistepScheduler",
    "sigma_data": 1.0,
    "prediction_type": "v_prediction",
    "sigma_schedule": "exponential",
    "final_sigmas_type": "zero",
}
"""What the configuration of the scheduler must say, or leave to diffusers' defaults."""

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
"""Projections of self- and cross-attention."""


@dataclass
class StableAudio:
    """A transformer with the frozen parts of its pipeline as the model of a denoising policy; ``load`` returns one."""

    network: nn.Module
    """The transformer that trains, with its adapters where there are any."""
    pipeline: Any
    sigmas: tuple[float, float]
    """The lowest noise level above 0, and the highest."""
    training: Training
    reference: Reference
    seconds: float
    """Duration of a recording whose prompt states none in ``meta.seconds``."""
    guidance: float
    """Scale of classifier-free guidance; 1 is none, with one network evaluation instead of two."""
    decode_batch_size: int
    """Memory limit: recordings that are decoded at one time."""
    encodings: Encodings = field(init=False)
    prediction: str = "v"

    def __post_init__(self) -> None:
        self.encodings = Encodings(self._encode, self.device)

    @property
    def device(self) -> torch.device:
        return torch.device(self.training.device)

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    @property
    def longest(self) -> float:
        """Seconds of the recording that all latents decode to."""
        vae = self.pipeline.vae
        return self.pipeline.transformer.config.sample_size * vae.hop_length / vae.sampling_rate

    def latent_shape(self) -> tuple[int, ...]:
        """Channels and frames."""
        config = self.pipeline.transformer.config
        return (config.in_channels, config.sample_size)

    def check(self, prompt: Prompt) -> None:
        """Raise ValueError for media, for more words than T5 reads, and for a duration that the model cannot make."""
        refuse_media(prompt)
        tokenizer = self.pipeline.tokenizer
        refuse_cut(prompt, tokenizer, tokenizer.model_max_length, "T5", advice="")
        self.seconds_of(prompt)

    def seconds_of(self, prompt: Prompt) -> float:
        """The duration of a prompt's recording: its ``meta.seconds``, or the option's."""
        return duration_of(prompt, self.seconds, self.longest, "the longest recording of the model")

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """Words and durations in cross-attention, durations in the global state, and durations in seconds."""
        [words] = stack_rows(self.encodings.rows(prompts))
        seconds = torch.tensor([self.seconds_of(prompt) for prompt in prompts], device=self.device)
        project = self.pipeline.projection_model
        ends = project(start_seconds=torch.zeros_like(seconds), end_seconds=seconds)
        start, end = ends.seconds_start_hidden_states, ends.seconds_end_hidden_states
        crossed, state = torch.cat([words, start, end], 1), torch.cat([start, end], 2)
        negative = () if self.guidance == 1 else (torch.zeros_like(crossed), state, seconds)
        return Conditioning((crossed, state, seconds), negative)

    def _encode(self, prompt: Prompt) -> Encoding:
        self.check(prompt)
        return (self.pipeline.encode_prompt(prompt.text, self.device, False)[0],)

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N channels frames"],
        time: Float[Tensor, " N"],
        conditioning: Conditioning,
    ) -> Float[Tensor, "N channels frames"]:
        """The (guided) v at ``time`` = 2 / pi atan(sigma), in fp32."""

        def evaluate(x: Tensor, time: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
            crossed, state, _ = tensors
            with autocast(self.training.compute_dtype, self.device):
                (velocity,) = network(
                    x.to(crossed.dtype),
                    time,
                    encoder_hidden_states=crossed,
                    global_hidden_states=state,
                    rotary_embedding=self.rotary,
                    return_dict=False,
                )
            return velocity

        return guided_velocity(evaluate, x, time, conditioning, self.guidance)

    @functools.cached_property
    def rotary(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the positions: the global state, then the frames."""
        from diffusers.models.embeddings import get_1d_rotary_pos_embed

        cosines, sines = get_1d_rotary_pos_embed(
            self.pipeline.rotary_embed_dim, 1 + self.latent_shape()[1], use_real=True, repeat_interleave_real=False
        )
        return cosines.to(self.device), sines.to(self.device)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N channels frames"], conditioning: Conditioning) -> list[Audio]:
        """The recordings, each of its own duration, ``decode_batch_size`` at a time."""
        vae = self.pipeline.vae
        ends = (conditioning.tensors[-1].double() * vae.sampling_rate).long().tolist()
        return recordings(vae, latents.to(self.device), ends, vae.sampling_rate, self.decode_batch_size)

    def grid(self, steps: int) -> Grid:
        """The checkpoint's noise levels as those of ``ddim``."""
        return variance_exploding_grid(exponential_sigmas(steps, *self.sigmas))

    def save(self, folder: Path | str, network: nn.Module) -> None:
        """The whole network as diffusers stores it, or adapters, in the file and with the names of diffusers' own."""
        save_trained(folder, network, self.training.adapters)


def duration_of(prompt: Prompt, default: float, longest: float, limit: str) -> float:
    """The seconds of a prompt's recording: its ``meta.seconds``, else ``default``.

    ValueError for what is no number above 0 of at most ``longest``, which is ``limit`` in words.
    """
    seconds = prompt.meta.get("seconds", default)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= longest:
        raise ValueError(
            f"prompt '{prompt.id}': seconds: got {seconds!r:.40}, expected a number above 0 of at most "
            f"{longest:.4g}, {limit}; change the row's seconds or model.seconds"
        )
    return float(seconds)


def guided_velocity(
    evaluate: Callable[[Tensor, Tensor, tuple[Tensor, ...]], Tensor],
    x: Float[Tensor, "N channels frames"],
    time: Float[Tensor, " N"],
    conditioning: Conditioning,
    scale: float,
) -> Float[Tensor, "N channels frames"]:
    """``evaluate(x, time, tensors of the conditioning)`` with classifier-free guidance, in fp32.

    Both branches come from one batch of double size, the unconditional one first; at scale 1 there is one.
    """
    tensors = conditioning.tensors
    if scale == 1:
        return evaluate(x, time, tensors).float()
    both = tuple(torch.cat(pair) for pair in zip(conditioning.negative, tensors, strict=True))
    unconditional, conditional = evaluate(torch.cat([x, x]), torch.cat([time, time]), both).float().chunk(2)
    return unconditional + scale * (conditional - unconditional)


def recordings(
    vae: Any, latents: Float[Tensor, "N channels frames"], ends: Sequence[int], rate: int, decode_batch_size: int
) -> list[Audio]:
    """What latents decode to, each cut after its number of samples, so many decoded at a time."""
    waves = [vae.decode(batch).sample for batch in latents.split(decode_batch_size)]
    return [
        Audio(wave[:, :end].to("cpu", torch.float32).clamp(-1, 1).contiguous(), rate)
        for wave, end in zip(torch.cat(waves), ends, strict=True)
    ]


def save_trained(folder: Path | str, network: nn.Module, adapters: bool) -> None:
    """The whole network as diffusers stores it, or adapters, in the file and with the names of diffusers' own."""
    from accelerate.utils import extract_model_from_parallel

    trained: Any = extract_model_from_parallel(network)
    if adapters:
        trained.save_lora_adapter(folder)
    else:
        trained.save_pretrained(Path(folder) / TRANSFORMER)


def load(options: StableAudioOptions, training: Training = PLAIN) -> StableAudio:
    """Load a Stable Audio model for training; T5, the projection of durations and the autoencoder are frozen.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported schedulers and durations.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderOobleck, StableAudioDiTModel, StableAudioPipeline

    source = locate(options.path, "stabilityai/stable-audio-open-1.0", "model_index.json")
    sigmas = read_sigmas(source)
    network = read_network(adaptable(StableAudioDiTModel), source, training, TRANSFORMER)
    parts = {"transformer": network, "scheduler": None}
    pipeline = read_pipeline(StableAudioPipeline, source, training, vae=AutoencoderOobleck, **parts)
    freeze((part for part in pipeline.components.values() if isinstance(part, nn.Module)), training.device)
    reference = make_trainable(network, training, LORA_TARGETS, frozen=[network.time_proj])
    model = StableAudio(
        network,
        pipeline,
        sigmas,
        training,
        reference,
        options.seconds,
        float(options.guidance),
        options.decode_batch_size,
    )
    model.seconds = options.seconds or model.longest
    model.seconds_of(Prompt("", "model.seconds"))
    return model


def adaptable(kind: Any) -> Any:
    """A transformer of diffusers with the methods that add adapters, which those of Stable Audio lack; it saves itself
    under the same name."""
    from diffusers.loaders.peft import PeftAdapterMixin

    return type(kind.__name__, (kind, PeftAdapterMixin), {})


def read_sigmas(source: str) -> tuple[float, float]:
    """The lowest and the highest noise level of the checkpoint's scheduler; ValueError for one of another process."""
    config, place = read_json(source, SCHEDULER_FILE) or {}, f"'{source}': {SCHEDULER_FILE}"
    for key, expected in SCHEDULER.items():
        if (got := config.get(key, None if key == "_class_name" else expected)) != expected:
            raise ValueError(f"{place}: {key}: got {got}, expected {expected}, as Stable Audio Open has it")
    lowest, highest = config.get("sigma_min", 0.3), config.get("sigma_max", 500)
    numbers = all(isinstance(sigma, int | float) and math.isfinite(sigma) for sigma in (lowest, highest))
    if not numbers or not 0 < lowest < highest:
        raise ValueError(
            f"{place}: got sigma_min={lowest!s:.40} and sigma_max={highest!s:.40}, expected 0 < sigma_min < sigma_max; "
            "correct them"
        )
    return float(lowest), float(highest)
