"""SkyReels-V1 (Skywork AI 2025): HunyuanVideo (``pipelines.visual.hunyuan_video``) with the first frame of the clip.

The image is a condition: the network reads the VAE's latents of it in channels of their own, next to the noisy latents
of the first frame, and zeros next to those of the others. No noise is added to it, and no decision concerns it: all
frames are sampled. Guidance is true classifier-free guidance (``true_cfg_scale``); its unconditional branch keeps the
image. The latents of an image are the mean of the VAE's posterior, from which diffusers' pipeline draws them.
"""

from __future__ import annotations

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
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model
from pipelines.visual.hunyuan_video import (
    FPS,
    LORA_TARGETS,
    check_words,
    clips_of_latents,
    encode_words,
    latent_clip,
    read_hunyuan,
    sides_of,
    spacing,
    velocity,
)
from pipelines.visual.options import SkyreelsOptions

__all__ = ["LORA_TARGETS", "load", "sides_of"]

FRAMES, HEIGHT, WIDTH = 97, 544, 960
"""The model's own clips."""
NETWORK = "Skywork/SkyReels-V1-Hunyuan-I2V"
"""The published transformer, which is to be used with the other parts of HunyuanVideo."""


@dataclass(frozen=True)
class Skyreels(Architecture):
    """Text encoders and VAE of a checkpoint, and the size of clips."""

    pipeline: Any
    max_sequence_length: int
    guidance: float
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    takes_images: ClassVar[bool] = True

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame in pixels, to which images are cropped."""
        height, width = self.size
        return height * self.pipeline.vae_scale_factor_spatial, width * self.pipeline.vae_scale_factor_spatial

    def check(self, prompt: Prompt) -> None:
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """What HunyuanVideo reads of the words, and the VAE's latents of the image, [channels, 1, h, w]."""
        image = first_frame(prompt, "skyreels_i2v", self.frame_size)
        words = encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)
        vae = self.pipeline.vae
        pixels = self.pipeline.video_processor.preprocess(image, *self.frame_size)
        posterior = vae.encode(pixels[:, :, None].to(self.device, vae.dtype)).latent_dist
        return *words, posterior.mode()[0].float() * vae.config.scaling_factor

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The prediction for the noisy latents, with the image's in channels of their own."""
        *words, image = conditioning
        condition = torch.cat([image, torch.zeros_like(x[:, :, 1:])], 2)
        return velocity(network, torch.cat([x, condition], 1), time, tuple(words), self.guidance)

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, latents)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(steps)


def load(options: SkyreelsOptions, training: Training = PLAIN) -> FlowModel:
    """Load a SkyReels model for training on clips that begin with an image; text encoders and VAE are frozen.

    ``options.path`` is a HunyuanVideo, and ``options.transformer`` a network that is published by itself, or empty
    where the network is part of ``path``.

    Raises FileNotFoundError for a folder that is no model, ValueError for a network that takes no image, and for
    unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import HunyuanSkyreelsImageToVideoPipeline, HunyuanVideoTransformer3DModel

    source = locate(options.path, "hunyuanvideo-community/HunyuanVideo", "model_index.json")
    if options.transformer and not training.network:
        network = read_network(HunyuanVideoTransformer3DModel, locate(options.transformer, NETWORK), training)
    else:
        network = read_network(HunyuanVideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_hunyuan(HunyuanSkyreelsImageToVideoPipeline, source, training, network)
    channels = pipeline.vae.config.latent_channels
    if network.config.in_channels != 2 * channels:
        raise ValueError(
            f"'{options.transformer or source}': the network reads {network.config.in_channels} channels, expected "
            f"{2 * channels}, half of them for the image; set model.transformer={NETWORK}, or take "
            "model.family=hunyuan_video for text-to-video"
        )

    sides = sides_of(network.config, pipeline.vae_scale_factor_spatial)

    def sized(height: int, width: int, frames: int) -> tuple[Skyreels, tuple[int, ...]]:
        size = latent_clip(pipeline, sides, frames, height, width, (FRAMES, HEIGHT, WIDTH))
        device = torch.device(training.device)
        return Skyreels(pipeline, options.max_sequence_length, options.guidance, device, size[1:]), (channels, *size)

    size = (options.height, options.width, options.frames)
    return flow_model(
        network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.true_cfg_scale, options.fps or FPS
    )
