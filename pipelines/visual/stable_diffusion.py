"""Stable Diffusion 1.x and 2.x (Rombach et al. 2021, arXiv:2112.10752): a UNet, CLIP, and a VAE of 4 channels.

Checkpoints predict the noise (1.x, 2.x base) or v (2.0 and 2.1 at 768 pixels), as their scheduler says. The safety
checker of a checkpoint is never read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.training import PLAIN, Training
from pipelines.visual.diffusion import LORA_TARGETS, DiffusionModel, UnetArchitecture, inputs_of, load_unet, sides_of
from pipelines.visual.flow import pixels_of_latents
from pipelines.visual.options import StableDiffusionOptions

__all__ = ["LORA_TARGETS", "inputs_of", "load", "sides_of"]

NOT_READ = {"safety_checker": None, "feature_extractor": None, "image_encoder": None, "requires_safety_checker": False}


def check_words(pipeline: Any, prompt: Prompt, most: int = 0) -> None:
    """CLIP must read the whole prompt; ``most`` is their own."""
    refuse_cut(prompt, pipeline.tokenizer, pipeline.tokenizer.model_max_length, "CLIP", advice="")


@dataclass(frozen=True)
class StableDiffusion(UnetArchitecture):
    """Text encoder and VAE of a checkpoint."""

    pipeline: Any
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    def check(self, prompt: Prompt) -> None:
        """CLIP must read the whole prompt."""
        check_words(self.pipeline, prompt)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of CLIP for all 77 tokens, padding included, as in diffusers."""
        hidden, _ = self.pipeline.encode_prompt(prompt.text, self.device, 1, False)
        return (hidden[0],)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The UNet's prediction at integer timesteps."""
        (hidden,) = conditioning
        (predicted,) = network(x, time, encoder_hidden_states=hidden, return_dict=False)
        return predicted

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)


def load(options: StableDiffusionOptions, training: Training = PLAIN) -> DiffusionModel:
    """Load a Stable Diffusion 1.x or 2.x model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes, settings or checkpoints.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import StableDiffusionPipeline

    return load_unet(
        StableDiffusionPipeline,
        StableDiffusion,
        options,
        training,
        example="CompVis/stable-diffusion-v1-4",
        unread=NOT_READ,
    )
