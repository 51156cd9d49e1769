"""LTX-Video (HaCohen et al. 2024, arXiv:2501.00103): T5 reads the prompt, places in the clip are seconds and pixels.

Latents are [channels, frames, height, width] outside the network, which reads one token per latent pixel. Its rotary
embedding takes the places of tokens in seconds, so the rate of the clip (``fps``) is an input of the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.options import LtxVideoOptions
from pipelines.visual.pipeline import Pipeline, as_tokens
from pipelines.visual.sizes import Sides, latent_frames, latent_size

__all__ = ["LORA_TARGETS", "load"]

LORA_TARGETS = tuple(f"{attn}.{name}" for attn in ("attn1", "attn2") for name in ("to_q", "to_k", "to_v", "to_out.0"))
"""Attention within the clip, and from the clip to the prompt."""

FRAMES, HEIGHT, WIDTH, FPS = 161, 512, 704, 25.0
"""The pipeline's own clips."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of clips that its pipeline takes, which asks for more than the network needs."""
    return Sides(lcm(32, factor))


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """T5 must read the whole prompt, of at most ``most`` tokens."""
    refuse_cut(prompt, pipeline.tokenizer, most, "T5")


@dataclass(frozen=True)
class LtxVideo(Architecture):
    """Text encoder and VAE of a checkpoint, and the rate of clips."""

    pipeline: Any
    max_sequence_length: int
    fps: float
    device: torch.device
    tokens: int
    """Latent pixels of one clip."""

    def check(self, prompt: Prompt) -> None:
        """T5 must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of T5 and the mask of its tokens, as in diffusers."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time, conditioning, places(self.pipeline, self.fps))

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, latents)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, self.tokens)


def encode_words(pipeline: Any, prompt: Prompt, most: int, device: torch.device) -> tuple[Tensor, ...]:
    """Hidden states of T5 and the mask of its tokens, of which there are at most ``most``."""
    hidden, mask, _, _ = pipeline.encode_prompt(
        prompt=prompt.text, do_classifier_free_guidance=False, max_sequence_length=most, device=device
    )
    return hidden[0], mask[0]


def velocity(
    network: Any,
    x: Float[Tensor, "N c f h w"],
    time: Float[Tensor, "N *tokens"],
    words: tuple[Tensor, ...],
    scale: tuple[float, float, float],
) -> Float[Tensor, "N c f h w"]:
    """The transformer's prediction at time 1000 sigma, of a row or of each of its tokens."""
    hidden, mask = words
    frames, height, width = x.shape[2:]
    (predicted,) = network(
        hidden_states=x.flatten(2).transpose(1, 2),
        encoder_hidden_states=hidden,
        timestep=time * 1000,
        encoder_attention_mask=mask,
        num_frames=frames,
        height=height,
        width=width,
        rope_interpolation_scale=scale,
        return_dict=False,
    )
    return predicted.transpose(1, 2).unflatten(2, (frames, height, width))


def places(pipeline: Any, fps: float) -> tuple[float, float, float]:
    """Seconds per latent frame, pixels per latent row and column."""
    side = pipeline.vae_spatial_compression_ratio
    return pipeline.vae_temporal_compression_ratio / fps, side, side


def clips_of_latents(vae: Any, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed.

    A decoder that itself denoises does so at time 0, as by default in the pipeline. Where it injects noise, this
    is the same for every clip, so a clip is a function of its latents.
    """
    channels = (1, -1, 1, 1, 1)
    deviation = vae.latents_std.float().view(channels) / vae.config.scaling_factor
    scaled = (latents.float() * deviation + vae.latents_mean.float().view(channels)).to(vae.dtype)
    time = torch.zeros(len(scaled), device=scaled.device, dtype=scaled.dtype)
    with torch.random.fork_rng([scaled.device] if scaled.device.type == "cuda" else []):
        torch.manual_seed(0)
        pixels = vae.decode(scaled, time).sample
    return pixels.float().transpose(1, 2) / 2 + 0.5


def read_ltx(kind: Any, source: str, training: Training, network: Any) -> Any:
    """The pipeline around a network."""
    from diffusers import AutoencoderKLLTXVideo

    pipeline = read_pipeline(kind, source, training, AutoencoderKLLTXVideo, transformer=network)
    freeze((pipeline.vae, pipeline.text_encoder), training.device)
    return pipeline


def latent_clip(pipeline: Any, frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Latent frames, height and width of a clip; 0 takes the pipeline's own. ValueError names the nearest that is
    possible."""
    factor = pipeline.vae_spatial_compression_ratio
    size = latent_size(
        height, width, sides_of(pipeline.transformer.config, factor), factor=factor, default=(HEIGHT, WIDTH)
    )
    return latent_frames(frames or FRAMES, pipeline.vae_temporal_compression_ratio), *size


def load(options: LtxVideoOptions, training: Training = PLAIN) -> FlowModel:
    """Load an LTX-Video model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import LTXPipeline, LTXVideoTransformer3DModel

    source = locate(options.path, "Lightricks/LTX-Video", "model_index.json")
    network = read_network(LTXVideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_ltx(LTXPipeline, source, training, network)
    device = torch.device(training.device)

    def sized(height: int, width: int, frames: int) -> tuple[LtxVideo, tuple[int, ...]]:
        size = latent_clip(pipeline, frames, height, width)
        architecture = LtxVideo(pipeline, options.max_sequence_length, options.fps or FPS, device, math.prod(size))
        return architecture, (network.config.in_channels, *size)

    size = (options.height, options.width, options.frames)
    return flow_model(
        network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance, options.fps or FPS
    )


PIPELINE = Pipeline(noise=as_tokens)
