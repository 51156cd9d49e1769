"""Small models of Stable Diffusion 3's architecture that edit an image: its pixels are further channels of what the
network reads, behind those of the image that is made (InstructPix2Pix, arXiv:2211.09800).

The folder is a small one (``pipelines.visual.small``) whose transformer has twice as many input channels as it
predicts. The given image is never noised, and the unconditional branch of guidance keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.types import Image, Prompt
from pipelines import require
from pipelines.pretrained import locate, read_network, read_scheduler
from pipelines.training import PLAIN, Training
from pipelines.visual.conditioning_image import conditioning_image, given_output
from pipelines.visual.flow import TRANSFORMER, FlowModel, flow_model
from pipelines.visual.options import EditOptions
from pipelines.visual.sd3 import LORA_TARGETS, Small, sides_of, velocity
from pipelines.visual.sizes import latent_size
from pipelines.visual.small import read_words

__all__ = ["LORA_TARGETS", "load", "sides_of"]


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


def load(options: EditOptions, training: Training = PLAIN) -> FlowModel:
    """Load a small editing model for training; the word encoder is frozen.

    Raises FileNotFoundError for a folder that is no model, ValueError for one that edits nothing, and for unsupported
    sizes or settings.
    """
    require("visual", "diffusers", "transformers")
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
