"""Stable Audio 3 (Stability AI 2026, autoencoder arXiv:2605.17991): a text and a duration to stereo sound at 44.1 kHz.

A rectified flow, x_sigma = (1 - sigma) x0 + sigma eps with v = eps - x0, over the latents of SAME, 10.8 a second.
T5Gemma reads the words; the duration is an embedding, one more token of cross-attention and the state that modulates
the blocks. The noise levels are even in log-SNR, from -6.2 to 2, with exactly 1 at the start and 0 at the end:

    sigma_i = 1 / (1 + exp(lambda_i))        lambda_i = -6.2 + 8.2 i / T

The distilled checkpoint (``stochastic_sampling`` in its scheduler) draws new noise after every step, x' = (1 - sigma')
x0 + sigma' z, in 8 steps without guidance: this is the kernel ``cps(a=1.0, scaled=True)``. The base takes 100 steps of
Euler, which are those of evaluation here.

The network sees as many latents as a recording lasts, so a batch has latents of ``model.seconds``: behind the last
frame of a shorter recording the velocity is zero whatever the weights are, as in ``pipelines.speech.flow_speech``.

    load(options)                           a folder or hub id of diffusers' StableAudio3Pipeline
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.config.registry import bind
from mmgrpo.diffusion.schedules import GRIDS, Grid, flow
from mmgrpo.runtime.devices import autocast, put
from mmgrpo.types import Audio, Prompt, Reference
from pipelines import require
from pipelines.conditions import Conditioning, Encoding, Encodings, refuse_cut, refuse_media, stack_rows
from pipelines.denoising import CHECKPOINT
from pipelines.pretrained import locate, read_json, read_network, read_pipeline
from pipelines.speech.options import StableAudio3Options
from pipelines.speech.stable_audio import (
    SCHEDULER_FILE,
    TRANSFORMER,
    adaptable,
    duration_of,
    guided_velocity,
    recordings,
    save_trained,
)
from pipelines.training import PLAIN, Training, freeze, make_trainable

__all__ = ["StableAudio3", "load"]

LOG_SNR = (-6.2, 2.0)
"""log-SNR at the noisiest and at the last level, the defaults of the pipeline."""

WORDS = 256
"""Tokens of T5Gemma that the pipeline reads at most."""

SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1,
    "shift": 1.0,
    "use_dynamic_shifting": False,
    "invert_sigmas": False,
}
"""What the configuration of the scheduler must say, since the network reads the level itself as its time."""

LORA_TARGETS = ("to_qkv", "to_q", "to_kv", "to_out")
"""Projections of self- and cross-attention."""


@dataclass
class StableAudio3:
    """A transformer with the frozen parts of its pipeline as the model of a denoising policy; ``load`` returns one."""

    network: nn.Module
    """The transformer that trains, with its adapters where there are any."""
    pipeline: Any
    training: Training
    reference: Reference
    seconds: float
    """Duration that the latents span, the longest of a recording and that of a prompt which states none."""
    guidance: float
    """Scale of classifier-free guidance; 1 is none, with one network evaluation instead of two."""
    decode_batch_size: int
    """Memory limit: recordings that are decoded at one time."""
    levels: str = CHECKPOINT
    """Noise levels: ``checkpoint``, or another grid by name (``mmgrpo.diffusion.schedules.GRIDS``)."""
    encodings: Encodings = field(init=False)
    prediction: str = "flow"

    def __post_init__(self) -> None:
        self.encodings = Encodings(self._encode, self.device)

    @property
    def device(self) -> torch.device:
        return torch.device(self.training.device)

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    @property
    def rate(self) -> int:
        """Samples a second."""
        return self.pipeline.vae.config.sampling_rate

    def frames(self, seconds: float) -> int:
        """Latents of a recording, which they cover."""
        return math.ceil(seconds * self.rate / self.pipeline.vae.downsampling_ratio)

    def latent_shape(self) -> tuple[int, ...]:
        """Channels and frames."""
        return (self.pipeline.vae.config.latent_dim, self.frames(self.seconds))

    def check(self, prompt: Prompt) -> None:
        """Raise ValueError for media, for more words than T5Gemma reads, and for more than ``model.seconds``."""
        refuse_media(prompt)
        tokenizer = self.pipeline.tokenizer
        refuse_cut(prompt, tokenizer, min(WORDS, tokenizer.model_max_length), "T5Gemma", advice="")
        self.seconds_of(prompt)

    def seconds_of(self, prompt: Prompt) -> float:
        """The duration of a prompt's recording: its ``meta.seconds``, or the option's."""
        return duration_of(prompt, self.seconds, self.seconds, "which the latents of model.seconds span")

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """Words and durations in cross-attention, which of them are real, the state, and frames and samples, which stay
        on the host."""
        seconds = [self.seconds_of(prompt) for prompt in prompts]
        state = self.pipeline.duration_embedder(torch.tensor(seconds, device=self.device))
        sizes = torch.tensor([[self.frames(length), int(length * self.rate)] for length in seconds])

        def condition(prompts: Sequence[Prompt]) -> tuple[Tensor, ...]:
            return (
                *self.pipeline.prepare_cross_attention(*stack_rows(self.encodings.rows(prompts)), state),
                state,
                sizes,
            )

        negative = () if self.guidance == 1 else condition([Prompt("")] * len(prompts))
        return Conditioning(condition(prompts), negative)

    def _encode(self, prompt: Prompt) -> Encoding:
        self.check(prompt)
        words, real = self.pipeline.encode_prompt(prompt.text, self.device, 1)
        return words[0], real[0]

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N channels frames"],
        time: Float[Tensor, " N"],
        conditioning: Conditioning,
    ) -> Float[Tensor, "N channels frames"]:
        """The (guided) velocity at noise level ``time``, zero behind a row's last frame, in fp32."""

        def evaluate(x: Tensor, time: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
            crossed, real, state, _ = tensors
            with autocast(self.training.compute_dtype, self.device):
                (velocity,) = network(
                    x.to(crossed.dtype),
                    time,
                    encoder_hidden_states=crossed,
                    global_hidden_states=state,
                    encoder_attention_mask=real,
                    return_dict=False,
                )
            return velocity

        velocity = torch.zeros_like(x, dtype=torch.float32)
        for frames, here in by_frames(conditioning):
            rows = put(here, x.device)
            arguments = x[rows, :, :frames], time[rows], conditioning.take(here)
            velocity[rows, :, :frames] = guided_velocity(evaluate, *arguments, self.guidance)
        return velocity

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N channels frames"], conditioning: Conditioning) -> list[Audio]:
        """The recordings, each of its own duration, ``decode_batch_size`` at a time."""
        sounds: dict[int, Audio] = {}
        for frames, here in by_frames(conditioning):
            part = latents[put(here, latents.device), :, :frames].to(self.device)
            ends = conditioning.tensors[-1][here, 1].tolist()
            clips = recordings(self.pipeline.vae, part, ends, self.rate, self.decode_batch_size)
            sounds |= dict(zip(here.tolist(), clips, strict=True))
        return [sounds[row] for row in range(len(latents))]

    def grid(self, steps: int) -> Grid:
        """The noise levels of ``steps`` steps; those of the checkpoint equal the pipeline's bit for bit."""
        from diffusers.pipelines.stable_audio_3.pipeline_stable_audio_3 import logsnr_sigma_schedule

        if self.levels != CHECKPOINT:
            return bind(self.levels, GRIDS, "sampling.grid")({"steps": steps})
        scheduler = type(self.pipeline.scheduler).from_config(self.pipeline.scheduler.config)
        scheduler.set_timesteps(sigmas=logsnr_sigma_schedule(steps, *LOG_SNR))
        return flow(scheduler.sigmas)

    def save(self, folder: Path | str, network: nn.Module) -> None:
        """The whole network as diffusers stores it, or adapters, in the file and with the names of diffusers' own."""
        save_trained(folder, network, self.training.adapters)


def by_frames(conditioning: Conditioning) -> Iterator[tuple[int, Int[Tensor, " rows"]]]:
    """Each number of frames with its rows, on the host: a network attends to as many frames as a recording has."""
    frames = conditioning.tensors[-1][:, 0]
    for count in frames.unique().tolist():
        yield count, (frames == count).nonzero()[:, 0]


def load(options: StableAudio3Options, training: Training = PLAIN) -> StableAudio3:
    """Load a Stable Audio 3 model for training; T5Gemma, the embedding of durations, SAME and the layers of inpainting
    are frozen.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported schedulers and durations.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderSAME, StableAudio3DiTModel, StableAudio3Pipeline

    source = locate(options.path, "stabilityai/stable-audio-3-medium", "model_index.json")
    refuse_scheduler(source)
    network = read_network(adaptable(StableAudio3DiTModel), source, training, TRANSFORMER)
    pipeline = read_pipeline(StableAudio3Pipeline, source, training, vae=AutoencoderSAME, transformer=network)
    freeze((pipeline.vae, pipeline.text_encoder, pipeline.duration_embedder), training.device)
    # Text to audio never reaches them: a wrapper that waits for all gradients would wait for theirs.
    inpainting = [block.to_local_embed for block in network.transformer_blocks]
    reference = make_trainable(network, training, LORA_TARGETS, frozen=inpainting)
    if options.seconds > (longest := pipeline.duration_embedder.config.max_val):
        raise ValueError(
            f"model.seconds: got {options.seconds:g}, expected at most {longest:g}, the longest recording of the model"
        )
    scale, at_once = float(options.guidance), options.decode_batch_size
    return StableAudio3(network, pipeline, training, reference, options.seconds, scale, at_once)


def refuse_scheduler(source: str) -> None:
    """ValueError for a scheduler whose levels, or times of the network, are not those of the pipeline."""
    config = read_json(source, SCHEDULER_FILE) or {}
    defaults = {**SCHEDULER, "_class_name": None, "num_train_timesteps": 1000}
    for key, expected in SCHEDULER.items():
        if (got := config.get(key, defaults[key])) != expected:
            raise ValueError(
                f"'{source}': {SCHEDULER_FILE}: {key}: got {got}, expected {expected}, as Stable Audio 3 has it; "
                "convert the checkpoint again by diffusers' script"
            )
