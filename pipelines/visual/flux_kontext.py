"""FLUX.1 Kontext (Black Forest Labs 2025, arXiv:2506.15742): FLUX.1 that edits a given image, or draws without one.

The latents of the given image follow those of the image that is made, with 1 as their first position; they are
never noised, and nothing is predicted for them. The image is resized to the size of the image to be made, where the
pipeline takes the nearest of its preferred sizes, so that all prompts have sequences of the same length: choose
``height`` and ``width`` in the ratio of the images. The model was trained on about a megapixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines.training import PLAIN, Training
from pipelines.visual import flux
from pipelines.visual.conditioning_image import optional_image, with_and_without
from pipelines.visual.flow import FlowModel
from pipelines.visual.options import KontextOptions

LORA_TARGETS = flux.LORA_TARGETS
check_words = flux.check_words


@dataclass(frozen=True)
class Kontext(flux.Flux):
    """FLUX.1 with a given image."""

    pipeline_name: ClassVar[str] = "FluxKontextPipeline"
    takes_images: ClassVar[bool] = True

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states, pooled vector, latents of the given image, and whether there is one."""
        height, width = (self.pipeline.vae_scale_factor * side for side in self.size)
        image = optional_image(prompt, "flux_kontext", self.pipeline, self.latents_of, height, width)
        return *self.words(prompt), *image

    def latents_of(self, pixels: Float[Tensor, "1 3 H W"]) -> Float[Tensor, "1 c h w"]:
        """Scaled latents of pixels in [-1, 1]: the mode of their distribution."""
        vae = self.pipeline.vae
        return (vae.encode(pixels).latent_dist.mode().float() - vae.config.shift_factor) * vae.config.scaling_factor

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction; rows with a given image read it after their own tokens."""
        hidden, pooled, image, given = conditioning

        def predict(rows: Tensor, shown: bool) -> Tensor:
            images = [x[rows], image[rows]] if shown else [x[rows]]
            return self.predicted(network, images, time[rows], hidden[rows], pooled[rows])

        return with_and_without(given, x.device, predict)


def load(options: KontextOptions, training: Training = PLAIN) -> FlowModel:
    """Load a FLUX.1 Kontext model for training, as ``flux.load`` does FLUX.1."""
    return flux.load(options, training, kind=Kontext)


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``FluxKontextPipeline`` folder (by default a new temporary one) of ``flux.tiny``'s sizes."""
    return flux.tiny(folder, seed, kind=Kontext)
