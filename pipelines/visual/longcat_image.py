"""LongCat-Image (Meituan 2025, arXiv:2512.07584): blocks of FLUX.1, Qwen2.5-VL's words, guidance that adds no norm.

Latents are [channels, height, width] outside the network, which reads them packed, 2 x 2 neighbours per token. Words
are always 512 tokens, of padding too, which the network reads; what stands in quotation marks is tokenized letter by
letter. With guidance g each token is v_empty + g (v_prompt - v_empty), shortened to the norm of v_prompt where it is
longer. diffusers' pipeline lets Qwen rewrite the prompt unless it is told not to; here the words are those of the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_longer
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import (
    TRANSFORMER,
    Architecture,
    FlowModel,
    flow_model,
    latents_of_pixels,
    pixels_of_latents,
    shifted_spacing,
)
from pipelines.visual.flux import LORA_TARGETS, pack, places, unpack
from pipelines.visual.options import LongCatOptions
from pipelines.visual.pipeline import Pipeline
from pipelines.visual.sizes import Sample, Sides, latent_size

__all__ = ["LORA_TARGETS", "LongCatImage", "load"]

TEXT_TOKENS = LongCatOptions.max_sequence_length
"""Tokens of the words; the positions of the image begin behind them."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(2 * factor)


USUAL = 1, 1024, 1024
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    tokens = sample.height * sample.width // 4
    return {
        "hidden_states": torch.empty(1, tokens, config["in_channels"]),
        "encoder_hidden_states": torch.empty(1, sample.words, config["joint_attention_dim"]),
        "timestep": torch.empty(1),
        "img_ids": torch.empty(tokens, 3),
        "txt_ids": torch.empty(sample.words, 3),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int = TEXT_TOKENS) -> None:
    """Qwen2.5-VL must read the whole prompt, of at most ``most`` tokens, of which every quoted letter is one."""
    from diffusers.pipelines.longcat_image.pipeline_longcat_image import split_quotation

    parts = [part for words, quoted in split_quotation(prompt.text) for part in (words if quoted else [words])]
    tokens = sum(len(pipeline.tokenizer(part, add_special_tokens=False).input_ids) for part in parts)
    refuse_longer(prompt, tokens, most, "Qwen2.5-VL (quoted words letter by letter)", advice="")


@dataclass(frozen=True)
class LongCatImage(Architecture):
    """Text encoder and VAE of a checkpoint, and the packing of latents."""

    pipeline: Any
    cfg_renorm_min: float
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    def check(self, prompt: Prompt) -> None:
        """Qwen2.5-VL must read the whole prompt."""
        check_words(self.pipeline, prompt)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Qwen2.5-VL for the words and their padding, between the pipeline's instruction and its
        end."""
        hidden, _ = self.pipeline.encode_prompt(prompt.text)
        return (hidden[0].to(self.device),)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for unpacked latents."""
        (hidden,), (height, width) = conditioning, self.size
        words = torch.arange(hidden.shape[1])
        # A word has its number on both axes of the image, whose first row and column follow the last word.
        image = places(height // 2, width // 2, 1) + torch.tensor([0, len(words), len(words)])
        (predicted,) = network(
            hidden_states=pack(x),
            # Bit for bit as in the pipeline, which divides the scheduler's time of 1000 sigma again.
            timestep=time * 1000 / 1000,
            encoder_hidden_states=hidden,
            txt_ids=put(torch.stack([torch.zeros_like(words), words, words], dim=1), x.device),
            img_ids=put(image, x.device),
            return_dict=False,
        )
        return unpack(predicted, height, width)

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
        """The pipeline's guidance: each token is shortened to the norm of the conditional one, by a factor of at least
        ``cfg_renorm_min``, and never lengthened."""
        guided = pack(super().guided(unconditional, conditional, scale))
        most, norm = (tokens.norm(dim=-1, keepdim=True) for tokens in (pack(conditional), guided))
        return unpack(guided * (most / (norm + 1e-8)).clamp(min=self.cfg_renorm_min, max=1.0), *self.size)

    def diffusers_class(self) -> Any:
        """What writes adapters as FLUX.1's pipeline does: that of LongCat-Image has none, but its network loads
        them."""
        from diffusers.loaders import FluxLoraLoaderMixin

        return FluxLoraLoaderMixin

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of_pixels(self.pipeline.vae, pixels)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, self.size[0] * self.size[1] // 4)


def load(options: LongCatOptions, training: Training = PLAIN) -> FlowModel:
    """Load a LongCat-Image model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import LongCatImagePipeline, LongCatImageTransformer2DModel

    source = locate(options.path, "meituan-longcat/LongCat-Image", "model_index.json")
    device = torch.device(training.device)
    network = read_network(LongCatImageTransformer2DModel, source, training, TRANSFORMER)
    # Only the pipeline's rewriting of prompts needs the processor.
    pipeline = read_pipeline(LongCatImagePipeline, source, training, transformer=network, text_processor=None)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    factor = pipeline.vae_scale_factor

    def sized(height: int, width: int, frames: int) -> tuple[LongCatImage, tuple[int, ...]]:
        default = pipeline.default_sample_size * factor
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default)
        return LongCatImage(pipeline, options.cfg_renorm_min, device, size), (network.config.in_channels // 4, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance)


PIPELINE = Pipeline(
    noise=pack,
    parts=lambda path: {"text_processor": None},  # of the same class as the tokenizer's, for rewriting prompts only
    arguments=lambda pipeline, call: {"cfg_renorm_min": call.options["cfg_renorm_min"]},
)
