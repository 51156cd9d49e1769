"""Wan 2.1 and 2.2 (``pipelines.visual.wan``) conditioned on an image, the first frame of the video.

The image is a condition: no noise is added to it, and no decision concerns it. There are two kinds:

- Wan 2.1 and 2.2 14B read it in channels of their own, next to the noisy latents: the VAE's latents of the image
  followed by black frames, and a mask. 2.1 also reads tokens of a CLIP image encoder. All frames are sampled.
- Wan 2.2 5B (a time per token) has the image's latents as the first latent frame, at time 0. Samples are the other
  frames; the first one is put before them for the network, which predicts nothing for it, and for the VAE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.pretrained import locate, read_json
from pipelines.training import PLAIN, Training
from pipelines.visual import wan
from pipelines.visual.conditioning_image import first_frame
from pipelines.visual.flow import FlowModel
from pipelines.visual.options import WanImageOptions
from pipelines.visual.wan import Wan, pretrained

__all__ = ["load"]

EXAMPLE = "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"

IMAGE_CONTEXT = 512
"""Text tokens that a network with image tokens takes: diffusers tells the two apart by this number."""


check_words = wan.check_words
sides_of = wan.sides_of


@dataclass(frozen=True)
class WanImage(Wan):
    """Text encoder, image encoder and VAE of a published checkpoint."""

    @property
    def first_is_given(self) -> bool:
        """True where the first latent frame is the image's, as in Wan 2.2 5B."""
        return self.pipeline.config.expand_timesteps

    def latent_shape(self) -> tuple[int, ...]:
        """Channels, frames without a given one, height and width of one sample."""
        channels, frames, height, width = super().latent_shape()
        return (channels, frames - self.first_is_given, height, width)

    takes_images: ClassVar[bool] = True

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame in pixels, to which images are cropped."""
        height, width = self.size[1:]
        return height * self.pipeline.vae_scale_factor_spatial, width * self.pipeline.vae_scale_factor_spatial

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of UMT5, the condition of the image, and the image encoder's tokens where there is one."""
        image = first_frame(prompt, "wan_i2v", self.frame_size)
        words = self.words(prompt)
        if self.pipeline.image_encoder is None:
            return words, self.condition(image)
        return words, self.condition(image), self.pipeline.encode_image(image, self.device)[0]

    def condition(self, image: Any) -> Float[Tensor, "channels frames h w"]:
        """A mask of 4 channels and the latents of the image followed by black frames; or the latents of its one."""
        pipeline, (height, width) = self.pipeline, self.frame_size
        pixels = pipeline.video_processor.preprocess(image, height, width)
        return pipeline.prepare_latents(
            pixels.to(self.device, torch.float32),
            batch_size=1,
            height=height,
            width=width,
            num_frames=(self.size[0] - 1) * pipeline.vae_scale_factor_temporal + 1,
            dtype=torch.float32,
            device=self.device,
            latents=torch.zeros(1),  # the noise, which is drawn elsewhere
        )[1][0]

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The prediction for the sampled frames at time 1000 sigma."""
        hidden, condition, *image = conditioning
        time = time * 1000
        if not self.first_is_given:
            (predicted,) = network(torch.cat([x, condition], 1), time, hidden, *image, return_dict=False)
            return predicted
        clean = torch.zeros(len(x), self.tokens, device=x.device)
        noisy = time[:, None].expand(-1, x.shape[2] * self.tokens)
        whole = self.complete(x, conditioning)
        (predicted,) = network(whole, torch.cat([clean, noisy], 1), hidden, return_dict=False)
        return predicted[:, :, 1:]

    def complete(self, latents: Tensor, conditioning: tuple[Tensor, ...]) -> Float[Tensor, "N c frames h w"]:
        """The sampled frames behind a given one."""
        if not self.first_is_given:
            return latents
        _, first = conditioning
        return torch.cat([first, latents], 2)


def load(options: WanImageOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Wan model for training on clips that begin with an image; see ``pipelines.visual.wan.load``.

    Raises FileNotFoundError for a folder that is no model, ValueError for one that takes words only or a last image
    too, and for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import WanImageToVideoPipeline

    source = locate(options.path, EXAMPLE, "model_index.json")
    index = read_json(source, "model_index.json") or {}
    if not index.get("expand_timesteps") and index.get("_class_name") == "WanPipeline":
        raise ValueError(f"'{source}' is a text-to-video model, expected one that takes an image; set model.family=wan")
    network = read_json(source, "transformer/config.json") or {}
    if network.get("pos_embed_seq_len") is not None:
        raise ValueError(
            f"'{source}' takes the last frame of a video and the first, expected the first only; take a model of "
            f"image-to-video, e.g. {EXAMPLE}"
        )
    if network.get("image_dim") is not None and options.max_sequence_length != IMAGE_CONTEXT:
        raise ValueError(
            f"max_sequence_length: got {options.max_sequence_length}, expected {IMAGE_CONTEXT}, the only number of "
            "text tokens that a network with image tokens takes"
        )
    return pretrained(WanImage, WanImageToVideoPipeline, source, options, training)
