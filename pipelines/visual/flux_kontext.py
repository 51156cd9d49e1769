"""FLUX.1 Kontext (Black Forest Labs 2025, arXiv:2506.15742): FLUX.1 that edits a given image, or draws without one.

The latents of the given image follow those of the image that is made, with 1 as their first position; they are
never noised, and nothing is predicted for them. The image is resized to that of the preferred sizes, of about a
megapixel, whose ratio of sides is nearest to its own, as in the pipeline; with ``given_size`` to one in proportion, and
with 0 it keeps its own (``_auto_resize=False``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pixel_unshuffle

from mmgrpo.types import Prompt
from pipelines.training import PLAIN, Training
from pipelines.visual import flux
from pipelines.visual.conditioning_image import by_size, optional_image, whole_tokens
from pipelines.visual.flow import FlowModel
from pipelines.visual.flux import pack, unpack
from pipelines.visual.options import KontextOptions
from pipelines.visual.pipeline import Call, Pipeline

LORA_TARGETS = flux.LORA_TARGETS
check_words = flux.check_words
sides_of = flux.sides_of

PREFERRED = 1024
"""Side of the square among the preferred sizes."""


@dataclass(frozen=True)
class Kontext(flux.Flux):
    """FLUX.1 with a given image."""

    pipeline_name: ClassVar[str] = "FluxKontextPipeline"
    takes_images: ClassVar[bool] = True
    given_size: int = PREFERRED

    @classmethod
    def of(cls, pipeline: Any, options: Any, device: torch.device, size: tuple[int, int]) -> Self:
        return cls(pipeline, options.max_sequence_length, options.guidance, device, size, options.given_size)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states, pooled vector, packed latents of the given image, their rows and columns."""
        none = torch.zeros(0, 4 * self.pipeline.vae.config.latent_channels, device=self.device)
        return *self.words(prompt), *optional_image(prompt, "flux_kontext", none, self.resized, self.tokens_of)

    def resized(self, image: Any) -> Float[Tensor, "1 3 H W"]:
        """An image in the size in which the network reads it."""
        from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

        processor, unit = self.pipeline.image_processor, 2 * self.pipeline.vae_scale_factor
        height, width = processor.get_default_height_width(image)
        if self.given_size:
            ratio = width / max(1, height)
            _, width, height = min((abs(ratio - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
            height, width = (side * self.given_size // PREFERRED for side in (height, width))
        return processor.preprocess(image, *whole_tokens(image, height, width, unit))

    def tokens_of(self, pixels: Float[Tensor, "1 3 H W"]) -> Float[Tensor, "1 c h w"]:
        """Scaled latents of pixels in [-1, 1], the mode of their distribution, 2 x 2 of them as one token."""
        vae = self.pipeline.vae
        latents = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.mode().float()
        return pixel_unshuffle((latents - vae.config.shift_factor) * vae.config.scaling_factor, 2)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction; rows with a given image read it after their own tokens."""
        hidden, pooled, given, sizes = conditioning

        def predict(here: Tensor, rows: Tensor, height: int, width: int) -> Tensor:
            images = [x[rows]]
            if height:
                images.append(unpack(given[rows, : height * width], 2 * height, 2 * width))
            return self.predicted(network, images, time[rows], hidden[rows], pooled[rows])

        return by_size(sizes, x.device, predict)


def load(options: KontextOptions, training: Training = PLAIN) -> FlowModel:
    """Load a FLUX.1 Kontext model for training, as ``flux.load`` does FLUX.1."""
    return flux.load(options, training, kind=Kontext)


def whole_images(pipeline: Any, call: Call) -> Mapping[str, Any]:
    """The arguments by which the pipeline of diffusers leaves the size to the caller."""
    (height, width), given = call.size, call.options["given_size"]
    return {"max_area": height * width, "_auto_resize": bool(given)}


PIPELINE = Pipeline(noise=pack, given_sizes=(0, 1024), arguments=whole_images)
