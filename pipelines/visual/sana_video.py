"""SANA-Video (Chen et al. 2025, arXiv:2509.24695): Sana (``pipelines.visual.sana``) for clips, with another VAE.

Gemma reads an instruction of its own before the prompt. What the examples of the model add behind a prompt, such as
" motion score: 30.", is left to the data, as in diffusers' pipeline. The VAE is that of Wan 2.1 (480p) or of LTX-2
(720p). Sizes are taken as they are, as with ``use_resolution_binning=False`` of the pipeline;
noise levels are those of Sana.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.pretrained import locate, read_json, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual import wan
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model
from pipelines.visual.options import SanaVideoOptions
from pipelines.visual.sana import (
    LORA_TARGETS,
    check_bare_words,
    check_words,
    encode_words,
    euler,
    spacing,
    velocity,
)
from pipelines.visual.sizes import Sample, Sides, latent_frames, latent_size

__all__ = ["LORA_TARGETS", "check_words", "load"]

FRAMES, FPS = 81, 16.0
SIZES = {30: (480, 832), 22: (704, 1280)}
"""Height and width of the clips of published models, by the ``sample_size`` of the network."""
VAES = ("AutoencoderKLWan", "AutoencoderKLLTX2Video")


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of clips that its pipeline takes, which asks for more than the network needs."""
    unit, most = wan.sides_of(config, factor)
    return Sides(lcm(32, unit), most)


USUAL = FRAMES, *SIZES[30]
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    return {
        "hidden_states": torch.empty(1, config["in_channels"], sample.frames, sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words, config["caption_channels"]),
        "encoder_attention_mask": torch.ones(1, sample.words, device="cpu"),
        "timestep": torch.empty(1),
    }


@dataclass(frozen=True)
class SanaVideo(Architecture):
    """Text encoder and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    even: bool
    """Even levels before the shift, which replace those of a DPM solver."""

    def check(self, prompt: Prompt) -> None:
        """Gemma must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Gemma 2, and the mask of those that are words."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)

    def check_negative(self, prompt: Prompt) -> None:
        check_bare_words(self.pipeline, prompt, self.max_sequence_length)

    def encode_negative(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """The same without the instruction, as in diffusers."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device, bare=True)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time * 1000, conditioning)

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N frames 3 H W"]:
        return wan.clips_of_latents(self.pipeline.vae, latents, statistics(self.pipeline.vae))

    def encode_pixels(self, pixels: Float[Tensor, "N frames 3 H W"]) -> Float[Tensor, "N c f h w"]:
        return wan.latents_of_clips(self.pipeline.vae, pixels, statistics(self.pipeline.vae))

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(self.even, steps)


def statistics(vae: Any) -> wan.Statistics:
    """Mean and deviation of the latents: settings of Wan's VAE, stored numbers of LTX-2's."""
    from diffusers import AutoencoderKLWan

    return wan.statistics(vae) if isinstance(vae, AutoencoderKLWan) else (vae.latents_mean, vae.latents_std)


def vae_class(source: str) -> Any:
    """The class of a checkpoint's VAE; ValueError for one with which SANA-Video is not published in diffusers."""
    import diffusers

    declared = ((read_json(source, "model_index.json") or {}).get("vae") or [None, None])[1]
    if declared not in VAES:
        raise ValueError(
            f"'{source}': model_index.json: vae: got {declared!s:.80}, expected {' or '.join(VAES)}; take a checkpoint "
            "such as Efficient-Large-Model/SANA-Video_2B_480p_diffusers"
        )
    return getattr(diffusers, declared)


def load(options: SanaVideoOptions, training: Training = PLAIN) -> FlowModel:
    """Load a SANA-Video model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import SanaVideoPipeline, SanaVideoTransformer3DModel

    source = locate(options.path, "Efficient-Large-Model/SANA-Video_2B_480p_diffusers", "model_index.json")
    network = read_network(SanaVideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(SanaVideoPipeline, source, training, vae_class(source), transformer=network)
    device = torch.device(training.device)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    scheduler, even = euler(pipeline.scheduler, source)
    factor, config = pipeline.vae_scale_factor_spatial, network.config
    architecture = SanaVideo(pipeline, options.max_sequence_length, device, even)

    def sized(height: int, width: int, frames: int) -> tuple[SanaVideo, tuple[int, ...]]:
        default = SIZES.get(config.sample_size, SIZES[30])
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default)
        length = latent_frames(frames or FRAMES, pipeline.vae_scale_factor_temporal, config.rope_max_seq_len)
        return architecture, (config.in_channels, length, *size)

    size = (options.height, options.width, options.frames)
    return flow_model(
        network, scheduler, training, LORA_TARGETS, sized, size, guidance=options.guidance, fps=options.fps or FPS
    )
