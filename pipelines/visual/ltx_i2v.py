"""LTX-Video (``pipelines.visual.ltx_video``) conditioned on an image, the first frame of the video.

The image is a condition: its latents are the first latent frame, at time 0, while the other frames are at the time of
the step. Samples are the other frames, so no noise is added to the first one and no decision concerns it. The
latents of an image are the mean of the VAE's posterior, from which diffusers' pipeline draws them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.pretrained import locate, read_network
from pipelines.training import PLAIN, Training
from pipelines.visual.conditioning_image import first_frame
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.ltx_video import (
    FPS,
    LORA_TARGETS,
    check_words,
    clips_of_latents,
    encode_words,
    latent_clip,
    places,
    read_ltx,
    sides_of,
    velocity,
)
from pipelines.visual.options import LtxImageOptions
from pipelines.visual.pipeline import Pipeline, as_tokens

__all__ = ["LORA_TARGETS", "load", "sides_of"]


@dataclass(frozen=True)
class LtxImage(Architecture):
    """Text encoder and VAE of a checkpoint, rate and size of clips."""

    pipeline: Any
    max_sequence_length: int
    fps: float
    device: torch.device
    size: tuple[int, int, int]
    """Latent frames with the given one, height and width."""

    takes_images: ClassVar[bool] = True

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame in pixels, to which images are cropped."""
        height, width = self.size[1:]
        return height * self.pipeline.vae_spatial_compression_ratio, width * self.pipeline.vae_spatial_compression_ratio

    def check(self, prompt: Prompt) -> None:
        """T5 must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of T5, the mask of its tokens, and the latent frame of the image, [channels, 1, h, w]."""
        image = first_frame(prompt, "ltx_i2v", self.frame_size)
        words = encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)
        vae = self.pipeline.vae
        pixels = self.pipeline.video_processor.preprocess(image, *self.frame_size)
        posterior = vae.encode(pixels[:, :, None].to(self.device, vae.dtype)).latent_dist
        mean, deviation = (one.float().view(-1, 1, 1, 1) for one in (vae.latents_mean, vae.latents_std))
        return *words, (posterior.mode()[0].float() - mean) / deviation

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The prediction for the sampled frames, behind the given one at time 0."""
        hidden, mask, _ = conditioning
        frames, height, width = self.size
        noisy = torch.arange(frames * height * width, device=x.device) >= height * width
        whole = self.complete(x, conditioning)
        return velocity(network, whole, time[:, None] * noisy, (hidden, mask), places(self.pipeline, self.fps))[
            :, :, 1:
        ]

    def complete(self, latents: Tensor, conditioning: tuple[Tensor, ...]) -> Float[Tensor, "N c frames h w"]:
        """The sampled frames behind the given one."""
        return torch.cat([conditioning[2], latents], 2)

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, latents)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, math.prod(self.size))


def load(options: LtxImageOptions, training: Training = PLAIN) -> FlowModel:
    """Load an LTX-Video model for training on clips that begin with an image; see ``pipelines.visual.ltx_video.load``.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import LTXImageToVideoPipeline, LTXVideoTransformer3DModel

    source = locate(options.path, "Lightricks/LTX-Video", "model_index.json")
    network = read_network(LTXVideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_ltx(LTXImageToVideoPipeline, source, training, network)
    device = torch.device(training.device)

    def sized(height: int, width: int, frames: int) -> tuple[LtxImage, tuple[int, ...]]:
        size = latent_clip(pipeline, frames, height, width)
        if size[0] == 1:
            raise ValueError(
                f"frames: got {frames}, of which the first is given, expected more; the nearest is "
                f"{pipeline.vae_temporal_compression_ratio + 1}"
            )
        shape = (network.config.in_channels, size[0] - 1, *size[1:])
        return LtxImage(pipeline, options.max_sequence_length, options.fps or FPS, device, size), shape

    size = (options.height, options.width, options.frames)
    return flow_model(
        network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance, options.fps or FPS
    )


PIPELINE = Pipeline(noise=as_tokens)
