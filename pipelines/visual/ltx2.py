"""LTX-2 (HaCohen et al. 2026, arXiv:2601.03233): frames and their sound by one network of two streams.

A latent is flat: the frames' [channels, frames, height, width], behind them the sound's [channels, frames, mel bins].
Both streams have the noise levels of the frames, and are denoised in one pass, in which each attends to the other. The
pipeline's guidance by skipped blocks and by isolated streams, and its rescaling, are left out: with
``stg_scale`` 0, ``modality_scale`` 1 and ``guidance_rescale`` 0 (and the three of the sound) it draws the same sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.types import Audio, Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.ltx_video import clips_of_latents, sides_of
from pipelines.visual.options import Ltx2Options
from pipelines.visual.pipeline import Call, Pipeline
from pipelines.visual.sizes import Sample, latent_frames, latent_size

__all__ = ["LORA_TARGETS", "load", "sides_of"]

ATTENTIONS = ("attn1", "attn2", "audio_attn1", "audio_attn2", "audio_to_video_attn", "video_to_audio_attn")
LORA_TARGETS = tuple(f"{attn}.{name}" for attn in ATTENTIONS for name in ("to_q", "to_k", "to_v", "to_out.0"))
"""Attention within each stream, from it to the prompt, and to the other stream."""

FRAMES, HEIGHT, WIDTH, FPS = 121, 512, 768, 24.0
"""The pipeline's own clips."""


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Gemma must read the whole prompt, of at most ``most`` tokens."""
    refuse_cut(prompt, pipeline.tokenizer, most, "Gemma")


@dataclass(frozen=True)
class Ltx2(Architecture):
    """Text encoder, connectors, decoders and vocoder of a checkpoint, and the size of clips."""

    pipeline: Any
    max_sequence_length: int
    fps: float
    sound_guidance: float
    """Scale of guidance of the sound; 0: that of the frames."""
    cross_timestep: bool
    device: torch.device
    seen: tuple[int, int, int, int]
    """Of the frames: latent channels, frames, height and width."""
    heard: tuple[int, int, int]
    """Of the sound: latent channels, frames and mel bins."""

    decoders: ClassVar[tuple[str, ...]] = ("vae", "audio_vae", "vocoder")

    @property
    def streams(self) -> Mapping[str, int]:
        return {"video": math.prod(self.seen), "audio": math.prod(self.heard)}

    def check(self, prompt: Prompt) -> None:
        """Gemma must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def check_guidance(self, scale: float) -> None:
        """One evaluation has no guidance of the sound either."""
        if scale == 1 and self.sound_guidance > 1:
            raise ValueError(
                f"guidance: got 1, which is one evaluation, with model.sound_guidance={self.sound_guidance:g}, which "
                "needs two; set model.sound_guidance=0, or another guidance"
            )

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """What the connectors make of Gemma's hidden states for each stream, and the mask of its tokens."""
        pipeline = self.pipeline
        hidden, mask, _, _ = pipeline.encode_prompt(
            prompt=prompt.text,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
            device=self.device,
        )
        seen, heard, mask = pipeline.connectors(hidden, mask, padding_side=pipeline.tokenizer.padding_side)
        return seen[0], heard[0], mask[0]

    def split(self, latents: Float[Tensor, "N latent"]) -> tuple[Float[Tensor, "N c f h w"], Float[Tensor, "N l d"]]:
        """The latents of the frames, and those of the sound as tokens."""
        seen, heard = latents.split([*self.streams.values()], 1)
        return seen.unflatten(1, self.seen), heard.unflatten(1, self.heard).transpose(1, 2).flatten(2)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The prediction of both streams at time 1000 sigma, in one pass."""
        words, sound_words, mask = conditioning
        (_, frames, height, width), (_, length, bins) = self.seen, self.heard
        seen, heard = self.split(x)
        video, audio = network(
            hidden_states=seen.flatten(2).transpose(1, 2).to(words.dtype),
            audio_hidden_states=heard.to(words.dtype),
            encoder_hidden_states=words,
            audio_encoder_hidden_states=sound_words,
            timestep=time * 1000,
            sigma=time * 1000,
            encoder_attention_mask=mask,
            audio_encoder_attention_mask=mask,
            num_frames=frames,
            height=height,
            width=width,
            fps=self.fps,
            audio_num_frames=length,
            use_cross_timestep=self.cross_timestep,
            return_dict=False,
        )
        return torch.cat(
            [video.transpose(1, 2).flatten(1), audio.unflatten(2, (-1, bins)).transpose(1, 2).flatten(1)], 1
        )

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float | Tensor) -> Tensor:
        """Classifier-free guidance, of each stream by its own scale.

        The pipeline guides clean estimates, x - s v, which is the same."""
        scales = torch.full_like(conditional[:1], float(scale))
        if self.sound_guidance:
            scales[:, self.streams["video"] :] = self.sound_guidance
        return unconditional + scales * (conditional - unconditional)

    def pixels(self, latents: Float[Tensor, "N latent"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, self.split(latents)[0])

    def sounds(self, latents: Float[Tensor, "N latent"]) -> Sequence[Audio]:
        """The vocoder's recordings of the spectrograms that the sound's VAE decodes."""
        vae, vocoder = self.pipeline.audio_vae, self.pipeline.vocoder
        tokens = self.split(latents)[1].float() * vae.latents_std.float() + vae.latents_mean.float()
        spectrograms = vae.decode(tokens.unflatten(2, (-1, self.heard[2])).transpose(1, 2).to(vae.dtype)).sample
        waves = vocoder(spectrograms).to("cpu", torch.float32).clamp(-1, 1)
        return [Audio(wave.clone(), int(vocoder.config.output_sampling_rate)) for wave in waves]

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, math.prod(self.seen[1:]))


def sound_shape(pipeline: Any, frames: int, fps: float) -> tuple[int, int, int]:
    """Latent channels, frames and mel bins of a sound that lasts as long as a clip."""
    vae = pipeline.audio_vae
    rate = vae.config.sample_rate / vae.config.mel_hop_length / vae.temporal_compression_ratio
    return vae.config.latent_channels, round(frames / fps * rate), vae.config.mel_bins // vae.mel_compression_ratio


SOUND_RATE = 25
"""Tokens of sound a second."""


USUAL = FRAMES, HEIGHT, WIDTH
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    tokens, sounds = sample.frames * sample.height * sample.width, round(sample.seconds * SOUND_RATE)
    return {
        "hidden_states": torch.empty(1, tokens, config["in_channels"]),
        "audio_hidden_states": torch.empty(1, sounds, config["audio_in_channels"]),
        "encoder_hidden_states": torch.empty(1, sample.words, config["caption_channels"]),
        "audio_encoder_hidden_states": torch.empty(1, sample.words, config["caption_channels"]),
        "encoder_attention_mask": torch.ones(1, sample.words, device="cpu"),
        "audio_encoder_attention_mask": torch.ones(1, sample.words, device="cpu"),
        "timestep": torch.empty(1),
        "sigma": torch.empty(1),
        "num_frames": sample.frames,
        "height": sample.height,
        "width": sample.width,
        "audio_num_frames": sounds,
    }


def load(options: Ltx2Options, training: Training = PLAIN) -> FlowModel:
    """Load an LTX-2 model for training; text encoder, connectors, VAEs and vocoder are frozen.

    Text encoder and connectors are stored in the precision of computation, VAEs and vocoder in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLLTX2Video, LTX2Pipeline, LTX2VideoTransformer3DModel

    source = locate(options.path, "Lightricks/LTX-2", "model_index.json")
    network = read_network(LTX2VideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(LTX2Pipeline, source, training, AutoencoderKLLTX2Video, transformer=network)
    pipeline.tokenizer.padding_side = "left"  # as the pipeline has it once it has encoded a prompt
    for part in (pipeline.audio_vae, pipeline.vocoder):
        part.float()
    parts = [part for part in pipeline.components.values() if isinstance(part, nn.Module) and part is not network]
    freeze(parts, training.device)
    device, fps = torch.device(training.device), options.fps or FPS

    def sized(height: int, width: int, frames: int) -> tuple[Ltx2, tuple[int, ...]]:
        factor, frames = pipeline.vae_spatial_compression_ratio, frames or FRAMES
        sides = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=(HEIGHT, WIDTH))
        size = latent_frames(frames, pipeline.vae_temporal_compression_ratio), *sides
        architecture = Ltx2(
            pipeline,
            options.max_sequence_length,
            fps,
            float(options.sound_guidance),
            options.cross_timestep,
            device,
            (network.config.in_channels, *size),
            sound_shape(pipeline, frames, fps),
        )
        return architecture, (sum(architecture.streams.values()),)

    size = (options.height, options.width, options.frames)
    model = flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance, fps)
    model.architecture.check_guidance(model.guidance)
    return model


def of_both_streams(pipeline: Any, call: Call) -> Mapping[str, Any]:
    """The arguments of LTX-2's pipeline that take a flat latent of frames and sound apart, and those that leave out
    what it does besides classifier-free guidance."""
    (height, width), channels, vae = call.size, pipeline.transformer.config.in_channels, pipeline.audio_vae
    frames = (call.frames - 1) // pipeline.vae_temporal_compression_ratio + 1
    length = channels * frames * height * width // pipeline.vae_spatial_compression_ratio**2
    bins = vae.config.mel_bins // vae.mel_compression_ratio
    heard = call.start[:, length:].unflatten(1, (vae.config.latent_channels, -1, bins)).transpose(1, 2).flatten(2)
    off = {"stg_scale": 0.0, "modality_scale": 1.0, "guidance_rescale": 0.0}
    return {
        "latents": call.start[:, :length].unflatten(1, (channels, -1)).transpose(1, 2),
        "audio_latents": heard * vae.latents_std.cpu() + vae.latents_mean.cpu(),  # which the pipeline normalizes
        "audio_guidance_scale": call.options["sound_guidance"] or call.guidance,
        "use_cross_timestep": call.options["cross_timestep"],
        "frame_rate": call.fps,
        **off,
        **{f"audio_{name}": value for name, value in off.items()},
    }


PIPELINE = Pipeline(arguments=of_both_streams)
