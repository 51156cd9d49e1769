"""HunyuanVideo (Kong et al. 2024, arXiv:2412.03603): Llama and CLIP read the prompt, guidance is an input; and
SkyReels-V1 (Skywork AI 2025), the same network with the first frame of the clip.

The checkpoint is distilled: the scale of guidance (``guidance``) is an input, times 1000, and the network predicts the
guided velocity in one evaluation. ``true_cfg_scale`` adds classifier-free guidance proper, with two evaluations. Llama
reads the prompt inside a template whose tokens are cut off its hidden states afterwards.

The image of the family ``skyreels_i2v`` is a condition: the network reads the VAE's latents of it in channels of their
own, next to the noisy latents of the first frame, and zeros next to those of the others. No noise is added to it, and
no decision concerns it: all frames are sampled. Guidance is true classifier-free guidance (``true_cfg_scale``); its
unconditional branch keeps the image. The latents of an image are the mean of the VAE's posterior, from which diffusers'
pipeline draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import mute_summary_warnings, refuse_cut
from pipelines.pretrained import locate, read_network, read_part, read_pipeline
from pipelines.sequences import Line
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import first_frame
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model
from pipelines.visual.options import HunyuanVideoOptions, SkyreelsOptions
from pipelines.visual.sequences import DivisiblePatches, Filled, SequencePlan, Whole
from pipelines.visual.sizes import Sample, Sides, latent_frames, latent_size

__all__ = ["LORA_TARGETS", "load"]

LORA_TARGETS = tuple(
    f"attn.{name}"
    for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
"""Attention of the double-stream blocks and of the prompt's refiner, and queries, keys and values of the single-stream
blocks."""

EXAMPLE = "hunyuanvideo-community/HunyuanVideo"

FRAMES, HEIGHT, WIDTH, FPS = 129, 720, 1280, 24.0
"""The model's own clips."""

SKYREELS_CLIP = 97, 544, 960
"""Frames, height and width of SkyReels' own clips."""
SKYREELS = "Skywork/SkyReels-V1-Hunyuan-I2V"
"""Its published transformer, which is to be used with the other parts of HunyuanVideo."""


@dataclass(frozen=True)
class HunyuanVideo(Architecture):
    """Text encoders and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    guidance: float
    device: torch.device

    def check(self, prompt: Prompt) -> None:
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Llama, the pooled vector of CLIP, and the mask of Llama's tokens, as in diffusers."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time, conditioning, self.guidance)

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
        return clips_of_latents(self.pipeline.vae, latents)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(steps)


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


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of clips that its pipeline takes, which asks for more than the network needs."""
    return Sides(lcm(16, factor * config["patch_size"]))


USUAL = FRAMES, HEIGHT, WIDTH
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    return {
        "hidden_states": torch.empty(1, config["in_channels"], sample.frames, sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words, config["text_embed_dim"]),
        "encoder_attention_mask": torch.ones(1, sample.words, device="cpu"),
        "pooled_projections": torch.empty(1, config["pooled_projection_dim"]),
        "guidance": torch.empty(1) if config["guidance_embeds"] else None,
        "timestep": torch.empty(1),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Llama must read the whole prompt, of at most ``most`` tokens. CLIP, whose part is a summary, reads 77 of it."""
    template, cut = prompt_template()
    text = template.format(prompt.text)
    refuse_cut(prompt, pipeline.tokenizer, most + cut, f"Llama (with the {cut} of its template)", text)


def encode_words(pipeline: Any, prompt: Prompt, most: int, device: torch.device) -> tuple[Tensor, ...]:
    """Hidden states of Llama, the pooled vector of CLIP, and the mask of Llama's tokens."""
    with mute_summary_warnings(pipeline):
        hidden, pooled, mask = pipeline.encode_prompt(prompt=prompt.text, device=device, max_sequence_length=most)
    return hidden[0], pooled[0], mask[0]


def prompt_template() -> tuple[str, int]:
    """The template around a prompt, and the number of tokens before the prompt."""
    from diffusers.pipelines.hunyuan_video import pipeline_hunyuan_video

    template = pipeline_hunyuan_video.DEFAULT_PROMPT_TEMPLATE
    return str(template["template"]), int(template["crop_start"])


def velocity(
    network: Any,
    x: Float[Tensor, "N c f h w"],
    time: Float[Tensor, " N"],
    words: tuple[Tensor, ...],
    guidance: float,
) -> Float[Tensor, "N c f h w"]:
    """The transformer's prediction at time 1000 sigma, for a guidance that is an input times 1000."""
    hidden, pooled, mask = words
    (predicted,) = network(
        hidden_states=x,
        timestep=time * 1000,
        encoder_hidden_states=hidden,
        encoder_attention_mask=mask,
        pooled_projections=pooled,
        guidance=torch.full((len(x),), guidance * 1000, device=x.device),
        return_dict=False,
    )
    return predicted


def clips_of_latents(vae: Any, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N F 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed."""
    scaled = latents.float() / vae.config.scaling_factor
    return vae.decode(scaled.to(vae.dtype)).sample.float().transpose(1, 2) / 2 + 0.5


def spacing(steps: int) -> dict[str, Any]:
    """Evenly spaced levels from 1 to 1 / steps, which the scheduler shifts."""
    return {"sigmas": np.linspace(1.0, 0.0, steps + 1)[:-1]}


def read_hunyuan(kind: Any, source: str, training: Training, network: Any) -> Any:
    """The pipeline around a network; ValueError for a tokenizer that does not fit the prompt's template."""
    from diffusers import AutoencoderKLHunyuanVideo
    from transformers import PreTrainedTokenizerFast

    # The checkpoint names LlamaTokenizerFast, which since transformers 5 replaces the tokenizer's own way of splitting
    # a text by that of Llama 2, without spaces.
    tokenizer = read_part(PreTrainedTokenizerFast, source, subfolder="tokenizer")
    template, cut = prompt_template()
    ahead = len(tokenizer(template.split("{}")[0]).input_ids)
    if ahead != cut:
        raise ValueError(
            f"'{source}': tokenizer: reads the template before a prompt as {ahead} tokens, expected {cut}, those of "
            "Llama 3; take the tokenizer of hunyuanvideo-community/HunyuanVideo"
        )
    pipeline = read_pipeline(
        kind, source, training, AutoencoderKLHunyuanVideo, transformer=network, tokenizer=tokenizer
    )
    freeze((pipeline.vae, pipeline.text_encoder, pipeline.text_encoder_2), training.device)
    return pipeline


def latent_clip(
    pipeline: Any, sides: Sides, frames: int, height: int, width: int, default: tuple[int, int, int]
) -> tuple[int, int, int]:
    """Latent frames, height and width of a clip; 0 takes the ``default``. ValueError names the nearest that is
    possible."""
    longest, *largest = default
    size = latent_size(height, width, sides, factor=pipeline.vae_scale_factor_spatial, default=largest)
    return latent_frames(frames or longest, pipeline.vae_scale_factor_temporal), *size


def load(options: HunyuanVideoOptions, training: Training = PLAIN) -> FlowModel:
    """Load a HunyuanVideo model for training, of ``SkyreelsOptions`` a SkyReels; text encoders and VAE are frozen.

    Text encoders are stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for a network of the other family, and for
    unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    if isinstance(options, SkyreelsOptions):
        return load_skyreels(options, training)
    from diffusers import HunyuanVideoPipeline, HunyuanVideoTransformer3DModel

    source = locate(options.path, EXAMPLE, "model_index.json")
    network = read_network(HunyuanVideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_hunyuan(HunyuanVideoPipeline, source, training, network)
    architecture = HunyuanVideo(pipeline, options.max_sequence_length, options.guidance, torch.device(training.device))
    default, channels = (FRAMES, HEIGHT, WIDTH), network.config.in_channels
    return model_of(pipeline, options, training, channels, default, lambda size: architecture)


def load_skyreels(options: SkyreelsOptions, training: Training) -> FlowModel:
    """The model on clips that begin with an image; ValueError for a network that takes none.

    ``options.path`` is a HunyuanVideo, and ``options.transformer`` a network that is published by itself, or empty
    where the network is part of ``path``.
    """
    from diffusers import HunyuanSkyreelsImageToVideoPipeline, HunyuanVideoTransformer3DModel

    source = locate(options.path, EXAMPLE, "model_index.json")
    if options.transformer and not training.network:
        network = read_network(HunyuanVideoTransformer3DModel, locate(options.transformer, SKYREELS), training)
    else:
        network = read_network(HunyuanVideoTransformer3DModel, source, training, TRANSFORMER)
    pipeline = read_hunyuan(HunyuanSkyreelsImageToVideoPipeline, source, training, network)
    channels = pipeline.vae.config.latent_channels
    if network.config.in_channels != 2 * channels:
        raise ValueError(
            f"'{options.transformer or source}': the network reads {network.config.in_channels} channels, expected "
            f"{2 * channels}, half of them for the image; set model.transformer={SKYREELS}, or take "
            "model.family=hunyuan_video for text-to-video"
        )
    parts = pipeline, options.max_sequence_length, options.guidance, torch.device(training.device)
    return model_of(pipeline, options, training, channels, SKYREELS_CLIP, lambda size: Skyreels(*parts, size))


def model_of(
    pipeline: Any,
    options: HunyuanVideoOptions,
    training: Training,
    channels: int,
    default: tuple[int, int, int],
    make: Callable[[tuple[int, int]], Architecture],
) -> FlowModel:
    """The model around a frozen pipeline, whose latents have so many channels and whose clips the frames, height and
    width of ``default``; ``make`` gives the architecture for a height and width of latents."""
    sides = sides_of(pipeline.transformer.config, pipeline.vae_scale_factor_spatial)

    def sized(height: int, width: int, frames: int) -> tuple[Architecture, tuple[int, ...]]:
        size = latent_clip(pipeline, sides, frames, height, width, default)
        return make(size[1:]), (channels, *size)

    network, size = pipeline.transformer, (options.height, options.width, options.frames)
    return flow_model(
        network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.true_cfg_scale, options.fps or FPS
    )


def sequence_plan(network: Any, line: Line) -> SequencePlan:
    """How processes divide the tokens of a clip and its words, which are first refined together."""
    from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput

    mask = ContextParallelInput(split_dim=1, expected_dims=2)
    made = ContextParallelInput(split_dim=1, expected_dims=3, split_output=True)
    angles = ContextParallelInput(split_dim=0, expected_dims=2, split_output=True)
    splits = {"": {"encoder_attention_mask": mask}, "x_embedder": {0: made}, "context_embedder": {0: made}}
    splits |= {"rope": {0: angles, 1: angles}, "proj_out": ContextParallelOutput(1, expected_dims=3)}
    patch = network.config.patch_size_t, network.config.patch_size, network.config.patch_size
    checks = DivisiblePatches(patch, line.count), Filled(line.count, "encoder_attention_mask")
    hooks = [*(("", check) for check in checks), ("context_embedder", Whole(2, line))]
    return SequencePlan(splits, "context_embedder.*", hooks)
