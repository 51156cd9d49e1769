"""Stable Diffusion XL (Podell et al. 2023, arXiv:2307.01952): a UNet that reads two text encoders and the size.

The unconditional branch of classifier-free guidance is zeros where the checkpoint asks for them
(``force_zeros_for_empty_prompt``, which SDXL base does). The published VAE overflows float16: keep
``model.vae_dtype`` at float32, or take bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.training import PLAIN, Training
from pipelines.visual.diffusion import LORA_TARGETS, DiffusionModel, UnetArchitecture, inputs_of, load_unet, sides_of
from pipelines.visual.flow import pixels_of_latents
from pipelines.visual.options import SdxlOptions

__all__ = ["LORA_TARGETS", "inputs_of", "load", "sides_of"]

NOT_READ = {"feature_extractor": None, "image_encoder": None, "add_watermarker": False}


def check_words(pipeline: Any, prompt: Prompt, most: int = 0) -> None:
    """Both CLIP encoders must read the whole prompt; ``most`` is their own."""
    for tokenizer in filter(None, (pipeline.tokenizer, pipeline.tokenizer_2)):
        refuse_cut(prompt, tokenizer, tokenizer.model_max_length, "CLIP", advice="")


@dataclass(frozen=True)
class Sdxl(UnetArchitecture):
    """Text encoders and VAE of a checkpoint."""

    pipeline: Any
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    def check(self, prompt: Prompt) -> None:
        """Both CLIP encoders must read the whole prompt."""
        check_words(self.pipeline, prompt)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of both encoders side by side for all 77 tokens, and the pooled vector of the second."""
        hidden, no_hidden, pooled, no_pooled = self.pipeline.encode_prompt(
            prompt=prompt.text, device=self.device, do_classifier_free_guidance=not prompt.text
        )
        return (hidden[0], pooled[0]) if prompt.text else (no_hidden[0], no_pooled[0])

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The UNet's prediction at integer timesteps, for uncropped images of their own size."""
        hidden, pooled = conditioning
        height, width = (side * self.pipeline.vae_scale_factor for side in self.size)
        sizes = put(torch.tensor([height, width, 0, 0, height, width], dtype=torch.float32), x.device)
        (predicted,) = network(
            x,
            time,
            encoder_hidden_states=hidden,
            added_cond_kwargs={"text_embeds": pooled, "time_ids": sizes.expand(len(x), -1)},
            return_dict=False,
        )
        return predicted

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)


def load(options: SdxlOptions, training: Training = PLAIN) -> DiffusionModel:
    """Load a Stable Diffusion XL model for training; text encoders and VAE are frozen.

    Text encoders are stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes, settings or checkpoints.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import StableDiffusionXLPipeline

    return load_unet(
        StableDiffusionXLPipeline,
        Sdxl,
        options,
        training,
        example="stabilityai/stable-diffusion-xl-base-1.0",
        unread=NOT_READ,
    )
