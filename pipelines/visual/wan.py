"""Wan 2.1 and 2.2 (Wan team 2025, arXiv:2503.20314), text-to-video and image-to-video.

Four kinds of folder load: of diffusers' ``WanPipeline`` (folder or hub id) those with one network (Wan 2.1), with two,
one above and one below a noise level (Wan 2.2 14B), and with a time per token (Wan 2.2 5B); and small ones
(``pipelines.visual.wan_small``).

The noise levels are those of the checkpoint's scheduler, UniPC in published ones. Its multistep solver is not ours: a
deterministic sample takes Euler steps on these levels, so it equals the pipeline's own output where the pipeline
has a ``FlowMatchEulerDiscreteScheduler``. UniPC also rounds the network's time 1000 sigma to an integer; here it is
never rounded.

The family ``wan_i2v`` is conditioned on an image, the first frame of the video. The image is a condition: no noise is
added to it, and no decision concerns it. There are two kinds:

- Wan 2.1 and 2.2 14B read it in channels of their own, next to the noisy latents: the VAE's latents of the image
  followed by black frames, and a mask. 2.1 also reads tokens of a CLIP image encoder. All frames are sampled.
- Wan 2.2 5B (a time per token) has the image's latents as the first latent frame, at time 0. Samples are the other
  frames; the first one is put before them for the network, which predicts nothing for it, and for the VAE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.pretrained import locate, read_json, read_network, read_pipeline, read_scheduler
from pipelines.training import PLAIN, Training, freeze, make_trainable
from pipelines.visual.conditioning_image import first_frame
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel
from pipelines.visual.options import WanImageOptions, WanOptions
from pipelines.visual.sizes import Sample, Sides, latent_frames, latent_size
from pipelines.visual.small import is_small, read_words
from pipelines.visual.wan_experts import SECOND, Experts, make_experts_trainable
from pipelines.visual.wan_small import Clip, Small
from pipelines.visual.wan_tiny import tiny, tiny_words

__all__ = ["LORA_TARGETS", "load", "tiny", "tiny_words"]

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
"""Projections of self- and cross-attention."""

IMAGE_TARGETS = ("add_k_proj", "add_v_proj")
"""Those of the attention to the tokens of an image, where a network has it."""

IMAGE_CONTEXT = 512
"""Text tokens that a network with image tokens takes: diffusers tells the two apart by this number."""

EXAMPLE = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
IMAGE_EXAMPLE = "Wan-AI/Wan2.1-I2V-14B-480P-Diffusers"


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of clips that its network takes, with ``factor`` pixels per side of a latent position."""
    patch = factor * config["patch_size"][1]
    return Sides(patch, patch * config["rope_max_seq_len"])


def usual_of(path: str) -> tuple[int, int, int]:
    """Frames, height and width of clips where the options leave them open, by the file of a small model."""
    clip = Clip.read(path) if is_small(path) else Clip(81, 480, 832, 0.0)
    return clip.frames, clip.height, clip.width


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample, with the states of a given image where it has a place for them."""
    image = config.get("image_dim")
    return {
        "hidden_states": torch.empty(1, config["in_channels"], sample.frames, sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words, config["text_dim"]),
        "encoder_hidden_states_image": torch.empty(1, sample.states, image) if image else None,
        "timestep": torch.empty(1),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """UMT5 must read the whole prompt, of at most ``most`` tokens, and its words must be such that can be cleaned."""
    refuse_cut(prompt, pipeline.tokenizer, most, "UMT5", clean(prompt.text))


@dataclass(frozen=True)
class Wan(Architecture):
    """Text encoder and VAE of a published checkpoint."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    size: tuple[int, int, int]
    """Frames, height and width of latents."""
    tokens: int
    """Tokens of one latent frame."""
    guidance_2: float
    """Scale of guidance of the second network; 0 is that of the first."""

    def latent_shape(self) -> tuple[int, ...]:
        """Channels, frames, height and width of one sample."""
        return (self.pipeline.vae.config.z_dim, *self.size)

    def check(self, prompt: Prompt) -> None:
        """UMT5 must read the whole prompt, and its words must be such that can be cleaned."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of UMT5, zero after the last token, as in diffusers."""
        return (self.words(prompt),)

    def words(self, prompt: Prompt) -> Float[Tensor, "length width"]:
        """Hidden states of a prompt's words."""
        # Not by the pipeline's own method, which with images calls ftfy even where it is missing.
        text, tokenizer, encoder = clean(prompt.text), self.pipeline.tokenizer, self.pipeline.text_encoder
        tokens = tokenizer(text, padding="max_length", max_length=self.max_sequence_length, return_tensors="pt")
        real = tokens.attention_mask.to(self.device)
        hidden = encoder(tokens.input_ids.to(self.device), real).last_hidden_state
        return hidden.masked_fill(real[..., None] == 0, 0)[0]

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The prediction at time 1000 sigma; a checkpoint with a time per token has the same one for all."""
        (hidden,) = conditioning
        time = time * 1000
        if self.pipeline.config.expand_timesteps:
            time = time[:, None].expand(-1, self.size[0] * self.tokens)
        (predicted,) = network(x, time, hidden, return_dict=False)
        return predicted

    def scale_at(self, time: Float[Tensor, " N"], scale: float) -> float | Tensor:
        """That of the network which the row passes through."""
        if not self.guidance_2:
            return scale
        first = time * 1000 >= boundary_of(self.pipeline)
        return torch.where(first, scale, self.guidance_2).view(-1, 1, 1, 1, 1)

    def pixels(self, latents: Float[Tensor, "N c f h w"]) -> Float[Tensor, "N frames 3 H W"]:
        vae = self.pipeline.vae
        return clips_of_latents(vae, latents, statistics(vae))

    def encode_pixels(self, pixels: Float[Tensor, "N frames 3 H W"]) -> Float[Tensor, "N c f h w"]:
        vae = self.pipeline.vae
        return latents_of_clips(vae, pixels, statistics(vae))

    def save(self, folder: Path, network: Any) -> None:
        if not isinstance(network, Experts):
            return super().save(folder, network)
        super().save(folder, network.transformer)
        network.transformer_2.save_pretrained(folder / SECOND)

    def save_adapters(self, folder: Path, network: Any) -> None:
        if not isinstance(network, Experts):
            return super().save_adapters(folder, network)
        super().save_adapters(folder, network.transformer)
        super().save_adapters(folder / SECOND, network.transformer_2)


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


Statistics = tuple[Float[Tensor, " c"], Float[Tensor, " c"]]
"""Mean and deviation of every channel of a VAE's latents."""


def statistics(vae: Any) -> Statistics:
    """Those of Wan's VAE."""
    return torch.tensor(vae.config.latents_mean), torch.tensor(vae.config.latents_std)


def clips_of_latents(
    vae: Any, latents: Float[Tensor, "N c f h w"], statistics: Statistics
) -> Float[Tensor, "N frames 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed."""
    mean, std = (statistic.to(latents.device).float().view(1, -1, 1, 1, 1) for statistic in statistics)
    clips = vae.decode((latents.float() * std + mean).to(vae.dtype)).sample
    return clips.transpose(1, 2).float() / 2 + 0.5


def latents_of_clips(
    vae: Any, pixels: Float[Tensor, "N frames 3 H W"], statistics: Statistics
) -> Float[Tensor, "N c f h w"]:
    """What ``clips_of_latents`` decodes, the mode of the posterior."""
    mean, std = (statistic.to(pixels.device).float().view(1, -1, 1, 1, 1) for statistic in statistics)
    encoded = vae.encode((2 * pixels.transpose(1, 2) - 1).to(vae.dtype)).latent_dist.mode()
    return (encoded.float() - mean) / std


def clean(text: str) -> str:
    """A text as diffusers' pipeline cleans it: HTML entities, white space, and by ftfy what is damaged in Unicode.

    diffusers leaves out ftfy where it is missing, and other words would reach the network than on a machine that has
    it: ValueError for a text that ftfy might change.
    """
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean
    from diffusers.utils import is_ftfy_available

    if not text.isascii() and not is_ftfy_available():
        raise ValueError(
            f"prompt '{text:.80}': has characters outside ASCII, which Wan's pipeline normalizes with ftfy, which is "
            f"not installed; install it ({install('visual')}), or write the prompt in ASCII"
        )
    return prompt_clean(text)


def boundary_of(pipeline: Any) -> float:
    """The time from which on the first of two networks predicts."""
    return pipeline.config.boundary_ratio * pipeline.scheduler.config.num_train_timesteps


def load(options: WanOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Wan model for training, of ``WanImageOptions`` one of image-to-video; text encoder and VAE are frozen.

    Text encoders are stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for one of the other family, and for unsupported
    sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    if isinstance(options, WanImageOptions):
        return load_image_to_video(options, training)
    from diffusers import WanPipeline, WanTransformer3DModel

    source = locate(options.path, EXAMPLE, "model_index.json", "words")
    if not is_small(source):
        return load_pretrained(Wan, WanPipeline, source, options, training)
    refuse_second_scale(options.guidance_2, source)
    network: Any = read_network(WanTransformer3DModel, source, training, TRANSFORMER)
    scheduler = read_scheduler(source)
    default = Clip.read(source)
    architecture = Small(read_words(source, torch.device(training.device)), scheduler, default)

    def sized(height: int, width: int, frames: int) -> tuple[Small, tuple[int, ...]]:
        size = latent_clip(Clip(frames, height, width, options.fps), default, network.config)
        return architecture, (network.config.in_channels, *size)

    return FlowModel(
        network,
        *sized(options.height, options.width, options.frames),
        scheduler,
        training,
        make_trainable(network, training, LORA_TARGETS),
        guidance=float(options.guidance),
        fps=options.fps or default.fps,
        whole_clips=options.whole_clips,
        sized=sized,
    )


def load_image_to_video(options: WanImageOptions, training: Training) -> FlowModel:
    """The model on clips that begin with an image; ValueError for one that takes words only or a last image too."""
    from diffusers import WanImageToVideoPipeline

    source = locate(options.path, IMAGE_EXAMPLE, "model_index.json")
    index = read_json(source, "model_index.json") or {}
    if not index.get("expand_timesteps") and index.get("_class_name") == "WanPipeline":
        raise ValueError(f"'{source}' is a text-to-video model, expected one that takes an image; set model.family=wan")
    network = read_json(source, "transformer/config.json") or {}
    if network.get("pos_embed_seq_len") is not None:
        raise ValueError(
            f"'{source}' takes the last frame of a video and the first, expected the first only; take a model of "
            f"image-to-video, e.g. {IMAGE_EXAMPLE}"
        )
    if network.get("image_dim") is not None and options.max_sequence_length != IMAGE_CONTEXT:
        raise ValueError(
            f"max_sequence_length: got {options.max_sequence_length}, expected {IMAGE_CONTEXT}, the only number of "
            "text tokens that a network with image tokens takes"
        )
    return load_pretrained(WanImage, WanImageToVideoPipeline, source, options, training)


def refuse_second_scale(guidance_2: float, source: str) -> None:
    """ValueError for a scale of guidance of a second network where there is none."""
    if guidance_2:
        raise ValueError(f"guidance_2: got {guidance_2}, expected 0, since '{source}' has one network")


def latent_clip(clip: Clip, own: Clip, config: Any, factor: int = 1, temporal: int = 1) -> tuple[int, int, int]:
    """Frames, height and width of the latents of a clip, where zeros are those of the model's ``own``; ValueError for
    what it cannot do."""
    size = latent_size(
        clip.height, clip.width, sides_of(config, factor), factor=factor, default=(own.height, own.width)
    )
    return (latent_frames(clip.frames or own.frames, temporal, config.rope_max_seq_len), *size)


def read_networks(source: str, training: Training) -> dict[str, Any]:
    """The network of a checkpoint, or both of them, by their names in the pipeline."""
    from diffusers import WanTransformer3DModel

    index = read_json(source, "model_index.json") or {}
    boundary = index.get("boundary_ratio")
    names = [TRANSFORMER]
    if boundary is not None:
        names.append(SECOND)
        if not (isinstance(boundary, int | float) and 0 < boundary < 1) or index.get(SECOND) in (None, [None, None]):
            raise ValueError(
                f"'{source}': model_index.json: got boundary_ratio {boundary!s:.40} and {SECOND} "
                f"{index.get(SECOND)!s:.80}, expected a number between 0 and 1 and a second network; download the "
                "checkpoint again"
            )
    return {name: read_network(WanTransformer3DModel, source, training, name) for name in names}


def load_pretrained(
    kind: type[Wan],
    pipeline_class: Any,
    source: str,
    options: WanOptions,
    training: Training,
) -> FlowModel:
    """A published checkpoint as a model of ``kind``; sizes of 0 are the defaults of diffusers' pipelines."""
    from diffusers import AutoencoderKLWan

    guidance, guidance_2 = options.guidance, options.guidance_2
    parts = read_networks(source, training)
    config = parts[TRANSFORMER].config
    targets = LORA_TARGETS + (IMAGE_TARGETS if config.added_kv_proj_dim else ())
    pipeline = read_pipeline(pipeline_class, source, training, vae=AutoencoderKLWan, **parts)
    freeze((pipeline.vae, pipeline.text_encoder, getattr(pipeline, "image_encoder", None)), training.device)
    if SECOND in parts:
        network: Any = Experts(pipeline.transformer, pipeline.transformer_2, boundary_of(pipeline))
        reference = make_experts_trainable(network, training, targets)
    else:
        network, reference = pipeline.transformer, make_trainable(pipeline.transformer, training, targets)
        refuse_second_scale(guidance_2, source)
    if guidance_2 and guidance == 1:
        raise ValueError(f"guidance_2: got {guidance_2}, expected 0 with guidance=1, which is none in both networks")
    default = Clip(frames=81, height=480, width=832, fps=24.0 if pipeline.config.expand_timesteps else 16.0)
    vae = pipeline.vae.config
    _, rows, columns = config.patch_size

    def sized(height: int, width: int, frames: int) -> tuple[Wan, tuple[int, ...]]:
        clip = Clip(frames, height, width, default.fps)
        size = latent_clip(clip, default, config, vae.scale_factor_spatial, vae.scale_factor_temporal)
        architecture = kind(
            pipeline,
            options.max_sequence_length,
            torch.device(training.device),
            size,
            (size[1] // rows) * (size[2] // columns),
            float(guidance_2),
        )
        if (shape := architecture.latent_shape())[1] == 0:
            raise ValueError(f"frames: got {frames}, of which the first is given, expected more; the nearest is 5")
        return architecture, shape

    return FlowModel(
        network,
        *sized(options.height, options.width, options.frames),
        pipeline.scheduler,
        training,
        reference,
        guidance=float(guidance),
        fps=options.fps or default.fps,
        whole_clips=options.whole_clips,
        sized=sized,
    )
