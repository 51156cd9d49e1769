"""Stable Diffusion 3 and 3.5 (Esser et al. 2024, arXiv:2403.03206), and small models of their architecture, which draw,
or edit an image.

Two kinds of folder load: an ordinary ``StableDiffusion3Pipeline`` of diffusers (folder or hub id; two CLIP encoders, T5
and a VAE), and a small one (``pipelines.visual.small``) with the same ``SD3Transformer2DModel``.

Those of the family ``sd3_edit`` are small ones whose transformer has twice as many input channels as it predicts: the
pixels of the given image are further channels of what the network reads, behind those of the image that is made
(InstructPix2Pix, arXiv:2211.09800). The given image is never noised, and the unconditional branch of guidance keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.types import Image, Prompt
from pipelines import require
from pipelines.conditions import mute_summary_warnings, refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline, read_scheduler
from pipelines.sequences import Line
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import conditioning_image, given_output
from pipelines.visual.enlarger import Enlarger
from pipelines.visual.flow import (
    TRANSFORMER,
    Architecture,
    FlowModel,
    flow_model,
    image_shift,
    latents_of_pixels,
    pixels_of_latents,
)
from pipelines.visual.options import EditOptions, FlowOptions
from pipelines.visual.sd3_tiny import tiny, tiny_words
from pipelines.visual.sequences import Counted, SequencePlan
from pipelines.visual.sizes import Sample, Sides, latent_size
from pipelines.visual.small import SmallModel, is_small, read_words

__all__ = ["LORA_TARGETS", "load", "tiny", "tiny_words"]

LORA_TARGETS = tuple(
    f"attn.{name}"
    for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
"""Projections of the joint attention, as in Flow-GRPO (Liu et al. 2025, arXiv:2505.05470)."""


def velocity(network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
    """The transformer's prediction at time 1000 sigma, which is not rounded."""
    hidden, pooled = conditioning
    (predicted,) = network(
        hidden_states=x,
        timestep=time * 1000,
        encoder_hidden_states=hidden,
        pooled_projections=pooled,
        return_dict=False,
    )
    return predicted


def spacing(scheduler: Any, steps: int, tokens: int) -> dict[str, Any]:
    """The scheduler's own levels, shifted according to the number of image tokens if it uses dynamic shifting."""
    dynamic = scheduler.config.get("use_dynamic_shifting")
    return {"num_inference_steps": steps} | ({"mu": image_shift(scheduler.config, tokens, 1.16)} if dynamic else {})


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(factor * config["patch_size"], factor * config["patch_size"] * config["pos_embed_max_size"])


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    return {
        "hidden_states": torch.empty(1, config["in_channels"], sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words, config["joint_attention_dim"]),
        "pooled_projections": torch.empty(1, config["pooled_projection_dim"]),
        "timestep": torch.empty(1),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """T5, where there is one, must read the whole prompt, of at most ``most`` tokens."""
    if pipeline.tokenizer_3 is not None:
        refuse_cut(prompt, pipeline.tokenizer_3, most, "T5")


@dataclass(frozen=True)
class Pretrained(Architecture):
    """Text encoders and VAE of a published checkpoint."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    tokens: int
    """Image tokens of one latent."""

    def check(self, prompt: Prompt) -> None:
        """T5 must read the whole prompt. CLIP, whose part is a summary, reads 77 tokens of it."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states and pooled vector of one prompt from both CLIP encoders and T5, as in diffusers."""
        with mute_summary_warnings(self.pipeline):
            hidden, _, pooled, _ = self.pipeline.encode_prompt(
                prompt=prompt.text,
                prompt_2=None,
                prompt_3=None,
                device=self.device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.max_sequence_length,
            )
        return hidden[0], pooled[0]

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time, conditioning)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of_pixels(self.pipeline.vae, pixels)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(scheduler, steps, self.tokens)


@dataclass(frozen=True)
class Small(SmallModel):
    """A model in pixel space with a word encoder, and with a decoder where its images are enlarged."""

    tokens: int
    """Image tokens of one latent."""
    enlarger: Enlarger | None = None

    def pixels(self, latents: Float[Tensor, "N 3 h w"]) -> Float[Tensor, "N 3 H W"]:
        return super().pixels(latents if self.enlarger is None else self.enlarger(latents.float()))

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N 3 h w"]:
        """Of enlarged images the means of the pixels that each of the small image becomes."""
        small = super().encode_pixels(pixels)
        return small if self.enlarger is None else nn.functional.avg_pool2d(small, self.enlarger.scale)

    def save(self, folder: Path, network: Any) -> None:
        super().save(folder, network)
        if self.enlarger is not None:
            self.enlarger.save(folder / "enlarger")

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time, conditioning)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(scheduler, steps, self.tokens)

    def diffusers_class(self) -> Any:
        from diffusers import StableDiffusion3Pipeline

        return StableDiffusion3Pipeline


@dataclass(frozen=True)
class SmallEdit(Small):
    """A model in pixel space with a word encoder that reads a given image of the size of its own."""

    size: tuple[int, int] = (0, 0)
    """Height and width."""
    takes_images: ClassVar[bool] = True

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states, pooled vector, and the given image in [-1, 1], scaled to cover the size and cropped at the
        centre."""
        conditioning_image(prompt, "sd3_edit")  # refuses none, several and other media
        given = given_output(prompt.media[0], Image(torch.zeros(3, *self.size)))
        assert isinstance(given, Image)
        hidden, pooled = super().encode(prompt)
        return hidden, pooled, self.encode_pixels(given.pixels[None])[0].to(hidden.device)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for the image that is made."""
        *words, given = conditioning
        return velocity(network, torch.cat([x, given.to(x)], 1), time, tuple(words))


def load(options: FlowOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Stable Diffusion 3 model for training, of ``EditOptions`` a small one that edits; text encoders and VAE
    are frozen.

    Text encoders are stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for a model of the other family, and for
    unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    if isinstance(options, EditOptions):
        return load_edit(options, training)
    from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline

    source = locate(options.path, "stabilityai/stable-diffusion-3.5-medium", "model_index.json", "words")
    device = torch.device(training.device)
    network = read_network(SD3Transformer2DModel, source, training, TRANSFORMER)
    if network.config.in_channels != network.config.out_channels:
        raise ValueError(
            f"model.family: got sd3, whose models read as many channels as they predict; {options.path} edits an "
            "image: set model.family=sd3_edit"
        )
    scheduler = read_scheduler(source)
    small = is_small(source)
    pipeline: Any = None
    if not small:
        pipeline = read_pipeline(StableDiffusion3Pipeline, source, training, transformer=network)
        freeze((pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2, pipeline.text_encoder_3), device)
    enlarger = Enlarger.of(source, device)
    config = network.config
    factor = enlarger.scale if enlarger else 1 if small else pipeline.vae_scale_factor
    sides = sides_of(network.config, factor)
    words = read_words(source, device) if small else None

    def sized(height: int, width: int, frames: int) -> tuple[Architecture, tuple[int, ...]]:
        size = latent_size(height, width, sides, factor=factor, default=config.sample_size * factor)
        tokens = (size[0] // config.patch_size) * (size[1] // config.patch_size)
        if words is not None:
            return Small(words, scheduler, tokens, enlarger), (config.in_channels, *size)
        return Pretrained(pipeline, options.max_sequence_length, device, tokens), (config.in_channels, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, scheduler, training, LORA_TARGETS, sized, size, options.guidance)


def load_edit(options: EditOptions, training: Training) -> FlowModel:
    """Load a small editing model for training; the word encoder is frozen. ValueError for one that edits nothing."""
    from diffusers import SD3Transformer2DModel

    source = locate(options.path, "embedded:visual/edits/base", "words")
    device = torch.device(training.device)
    network = read_network(SD3Transformer2DModel, source, training, TRANSFORMER)
    config = network.config
    if config.in_channels != 2 * config.out_channels:
        raise ValueError(
            f"model.path: {options.path} reads {config.in_channels} channels and predicts {config.out_channels}, "
            "expected twice as many, of which the second half is the image that is edited; model.family=sd3 draws "
            "without one"
        )
    scheduler, words = read_scheduler(source), read_words(source, device)

    def sized(height: int, width: int, frames: int) -> tuple[SmallEdit, tuple[int, ...]]:
        size = latent_size(height, width, sides_of(network.config, 1), factor=1, default=config.sample_size)
        tokens = (size[0] // config.patch_size) * (size[1] // config.patch_size)
        return SmallEdit(words, scheduler, tokens, size=size), (config.out_channels, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, scheduler, training, LORA_TARGETS, sized, size, options.guidance)


def sequence_plan(network: Any, line: Line) -> SequencePlan:
    """How processes divide the tokens of an image and its words, which have no mask, and are 77 + 256 of the published
    checkpoints."""
    from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput

    tokens = ContextParallelInput(split_dim=1, expected_dims=3)
    first = {"hidden_states": tokens, "encoder_hidden_states": tokens}
    splits = {"transformer_blocks.0": first, "proj_out": ContextParallelOutput(1, expected_dims=3)}
    return SequencePlan(splits, hooks=[("", Counted(line.count))])
