"""LTX-Video (HaCohen et al. 2024, arXiv:2501.00103): T5 reads the prompt, places in the clip are seconds and pixels.

Latents are [channels, frames, height, width] outside the network, which reads one token per latent pixel. Its rotary
embedding takes the places of tokens in seconds, so the rate of the clip (``fps``) is an input of the model.

The family ``ltx_i2v`` is conditioned on an image, the first frame of the video. Its latents are the first latent frame,
at time 0, while the other frames are at the time of the step. Samples are the other frames, so no noise is added to the
first one and no decision concerns it. The latents of an image are the mean of the VAE's posterior, from which
diffusers' pipeline draws them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.sequences import Line
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import first_frame
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.options import LtxImageOptions, LtxVideoOptions
from pipelines.visual.pipeline import Pipeline, as_tokens
from pipelines.visual.sequences import SequencePlan
from pipelines.visual.sizes import Sample, Sides, latent_frames, latent_size

__all__ = ["LORA_TARGETS", "load"]

LORA_TARGETS = tuple(f"{attn}.{name}" for attn in ("attn1", "attn2") for name in ("to_q", "to_k", "to_v", "to_out.0"))
"""Attention within the clip, and from the clip to the prompt."""

FRAMES, HEIGHT, WIDTH, FPS = 161, 512, 704, 25.0
"""The pipeline's own clips."""


USUAL = FRAMES, HEIGHT, WIDTH
"""Frames, height and width of samples, where the options leave them open."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of clips that its pipeline takes, which asks for more than the network needs."""
    return Sides(lcm(32, factor))


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample; of one that begins with an image a noise level for each token."""
    tokens = sample.frames * sample.height * sample.width
    return {
        "hidden_states": torch.empty(1, tokens, config["in_channels"]),
        "encoder_hidden_states": torch.empty(1, sample.words, config["caption_channels"]),
        "encoder_attention_mask": torch.ones(1, sample.words, device="cpu"),
        "timestep": torch.empty(1, tokens) if sample.begins else torch.empty(1),
        "num_frames": sample.frames,
        "height": sample.height,
        "width": sample.width,
        "rope_interpolation_scale": (1.0, 1.0, 1.0),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """T5 must read the whole prompt, of at most ``most`` tokens."""
    refuse_cut(prompt, pipeline.tokenizer, most, "T5")


@dataclass(frozen=True)
class LtxVideo(Architecture):
    """Text encoder and VAE of a checkpoint, and the rate of clips."""

    pipeline: Any
    max_sequence_length: int
    fps: float
    device: torch.device
    tokens: int
    """Latent pixels of one clip."""

    def check(self, prompt: Prompt) -> None:
        """T5 must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of T5 and the mask of its tokens, as in diffusers."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time, conditioning, places(self.pipeline, self.fps))

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, latents)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, self.tokens)


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
        mean, deviation = (statistic.float().view(-1, 1, 1, 1) for statistic in (vae.latents_mean, vae.latents_std))
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


def encode_words(pipeline: Any, prompt: Prompt, most: int, device: torch.device) -> tuple[Tensor, ...]:
    """Hidden states of T5 and the mask of its tokens, of which there are at most ``most``."""
    hidden, mask, _, _ = pipeline.encode_prompt(
        prompt=prompt.text, do_classifier_free_guidance=False, max_sequence_length=most, device=device
    )
    return hidden[0], mask[0]


def velocity(
    network: Any,
    x: Float[Tensor, "N c f h w"],
    time: Float[Tensor, "N *tokens"],
    words: tuple[Tensor, ...],
    scale: tuple[float, float, float],
) -> Float[Tensor, "N c f h w"]:
    """The transformer's prediction at time 1000 sigma, of a row or of each of its tokens."""
    hidden, mask = words
    frames, height, width = x.shape[2:]
    (predicted,) = network(
        hidden_states=x.flatten(2).transpose(1, 2),
        encoder_hidden_states=hidden,
        timestep=time * 1000,
        encoder_attention_mask=mask,
        num_frames=frames,
        height=height,
        width=width,
        rope_interpolation_scale=scale,
        return_dict=False,
    )
    return predicted.transpose(1, 2).unflatten(2, (frames, height, width))


def places(pipeline: Any, fps: float) -> tuple[float, float, float]:
    """Seconds per latent frame, pixels per latent row and column."""
    side = pipeline.vae_spatial_compression_ratio
    return pipeline.vae_temporal_compression_ratio / fps, side, side


def clips_of_latents(vae: Any, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed.

    A decoder that itself denoises does so at time 0, as by default in the pipeline. Where it injects noise, this
    is the same for every clip, so a clip is a function of its latents.
    """
    channels = (1, -1, 1, 1, 1)
    deviation = vae.latents_std.float().view(channels) / vae.config.scaling_factor
    scaled = (latents.float() * deviation + vae.latents_mean.float().view(channels)).to(vae.dtype)
    time = torch.zeros(len(scaled), device=scaled.device, dtype=scaled.dtype)
    with torch.random.fork_rng([scaled.device] if scaled.device.type == "cuda" else []):
        torch.manual_seed(0)
        pixels = vae.decode(scaled, time).sample
    return pixels.float().transpose(1, 2) / 2 + 0.5


def latent_clip(pipeline: Any, frames: int, height: int, width: int) -> tuple[int, int, int]:
    """Latent frames, height and width of a clip; 0 takes the pipeline's own. ValueError names the nearest that is
    possible."""
    factor = pipeline.vae_spatial_compression_ratio
    size = latent_size(
        height, width, sides_of(pipeline.transformer.config, factor), factor=factor, default=(HEIGHT, WIDTH)
    )
    return latent_frames(frames or FRAMES, pipeline.vae_temporal_compression_ratio), *size


def load(options: LtxVideoOptions, training: Training = PLAIN) -> FlowModel:
    """Load an LTX-Video model for training, of ``LtxImageOptions`` on clips that begin with an image; text encoder and
    VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLLTXVideo, LTXImageToVideoPipeline, LTXPipeline, LTXVideoTransformer3DModel

    from_image, fps = isinstance(options, LtxImageOptions), options.fps or FPS
    source = locate(options.path, "Lightricks/LTX-Video", "model_index.json")
    network = read_network(LTXVideoTransformer3DModel, source, training, TRANSFORMER)
    kind = LTXImageToVideoPipeline if from_image else LTXPipeline
    pipeline = read_pipeline(kind, source, training, AutoencoderKLLTXVideo, transformer=network)
    freeze((pipeline.vae, pipeline.text_encoder), training.device)
    parts = pipeline, options.max_sequence_length, fps, torch.device(training.device)

    def sized(height: int, width: int, frames: int) -> tuple[Architecture, tuple[int, ...]]:
        size = latent_clip(pipeline, frames, height, width)
        if not from_image:
            return LtxVideo(*parts, math.prod(size)), (network.config.in_channels, *size)
        if size[0] == 1:
            raise ValueError(
                f"frames: got {frames}, of which the first is given, expected more; the nearest is "
                f"{pipeline.vae_temporal_compression_ratio + 1}"
            )
        return LtxImage(*parts, size), (network.config.in_channels, size[0] - 1, *size[1:])

    size = (options.height, options.width, options.frames)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance, fps)


def sequence_plan(network: Any, line: Line) -> SequencePlan:
    """How processes divide the tokens of a clip.

    diffusers divides the words too, but an attention to fewer or more tokens than it is of has no gradient there. Every
    process has all words here, and a level for each of its tokens where they differ.
    """
    from diffusers.models._modeling_parallel import ContextParallelInput

    levels = ContextParallelInput(split_dim=1, expected_dims=2)
    root = {"hidden_states": network._cp_plan[""]["hidden_states"], "timestep": levels}
    return SequencePlan({**network._cp_plan, "": root}, undivided="*.attn2")


PIPELINE = Pipeline(noise=as_tokens)
