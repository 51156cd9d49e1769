"""Qwen-Image-2.1, text to image: Qwen3-VL reads the prompt, and words and image are one sequence.

Each position of latents is a token, 16 x 16 pixels. The sequence is causal, but for the image, which stands at its end
and sees all; words are modulated from time 0, the image from its own. Words also advance the positions of the image,
so prompts of different lengths are evaluated apart: padding would move it. diffusers' pipeline keeps keys and
values of the words between steps, which is exact; here each evaluation computes them, since their weights train.

The VAE has a fourth channel, opacity: images are what is seen on white.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import pad_states, refuse_cut
from pipelines.pretrained import locate, read_network, read_part, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import by_sizes
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.options import QwenImage21Options
from pipelines.visual.pipeline import Pipeline, as_tokens
from pipelines.visual.qwen_image import NOTHING, edit_processor, latent_statistics
from pipelines.visual.sizes import Sample, Sides, latent_size

__all__ = ["LORA_TARGETS", "QwenImage21", "load"]

LORA_TARGETS = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0")
"""Projections of attention."""

PER_SLOT = 4
"""Tokens of an image in each place that the sequence of words reserves for it, as for 2 x 2 patches of Qwen3-VL."""

DEFAULT_SIZE = 1024
"""Height and width in pixels of the pipeline."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(2 * factor)


USUAL = 1, DEFAULT_SIZE, DEFAULT_SIZE
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    tokens = sample.height * sample.width
    return {
        "hidden_states": torch.empty(1, tokens, config["in_channels"]),
        "encoder_hidden_states": torch.empty(1, sample.words, config["context_in_dim"]),
        "timestep": torch.empty(1),
        "img_shapes": [[(1, sample.height, sample.width)]],
        "img_mask": torch.arange(sample.words + tokens // PER_SLOT, device="cpu")[None] >= sample.words,
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Qwen3-VL must read the whole prompt, of at most ``most`` tokens behind the instruction."""
    text, cut = pipeline.prompt_template_t2i.format(prompt.text or NOTHING), pipeline._drop_idx
    refuse_cut(prompt, pipeline.processor.tokenizer, most + cut, f"Qwen3-VL ({cut} of them an instruction)", text)


@dataclass(frozen=True)
class QwenImage21(Architecture):
    """Text encoder and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    def check(self, prompt: Prompt) -> None:
        """Qwen3-VL must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Qwen3-VL behind the pipeline's instruction, padded, and which of them are real."""
        hidden, *_ = self.pipeline.encode_prompt(prompt.text or NOTHING, device=self.device)
        return pad_states(hidden[0], self.max_sequence_length)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for the image alone; a pass per length of prompts."""
        hidden, real = conditioning
        tokens, (height, width) = x.flatten(2).mT, self.size

        def predict(here: Tensor, index: Tensor, lengths: list[list[int]]) -> Tensor:
            [[words]] = lengths
            places = torch.arange(words + height * width // PER_SLOT, device=x.device)
            (velocity,) = network(
                hidden_states=tokens[index],
                # Bit for bit as in the pipeline, which divides the scheduler's time of 1000 sigma again.
                timestep=time[index] * 1000 / 1000,
                encoder_hidden_states=hidden[index, :words],
                img_shapes=[[(1, height, width)]] * len(here),
                img_mask=(places >= words).expand(len(here), -1),
                return_dict=False,
            )
            return velocity[:, -height * width :]

        return by_sizes(real.cpu().sum(1)[:, None, None], x.device, predict).mT.unflatten(2, self.size)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        """The decoded image on white."""
        vae = self.pipeline.vae
        mean, std = (statistic.to(latents) for statistic in latent_statistics(vae))
        decoded = vae.decode((latents[:, :, None] * std + mean).to(vae.dtype)).sample[:, :, 0]
        return on_white((decoded.float() / 2 + 0.5).clamp(0, 1))

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        """Latents of opaque pixels."""
        vae = self.pipeline.vae
        opaque = torch.cat([pixels, torch.ones_like(pixels[:, :1])], 1)
        mean, std = (statistic.to(pixels) for statistic in latent_statistics(vae))
        encoded = vae.encode((2 * opaque[:, :, None] - 1).to(vae.dtype)).latent_dist.mode().float()
        return ((encoded - mean) / std)[:, :, 0]

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """The levels that the checkpoint states, or evenly spaced ones from 1 to 1 / steps, shifted according to the
        number of image tokens."""
        stated = self.pipeline.config.sample_sigmas
        if stated is not None and len(stated) != steps:
            raise ValueError(
                f"sampling.steps: got {steps}, expected {len(stated)}, since the checkpoint's model_index.json states "
                "as many sample_sigmas; set sampling.steps and sampling.evaluation_steps so, or another sampling.grid"
            )
        shifted = shifted_spacing(scheduler, steps, self.size[0] * self.size[1])
        return shifted if stated is None else {**shifted, "sigmas": stated}


def on_white(pixels: Float[Tensor, "*N 4 H W"]) -> Float[Tensor, "*N 3 H W"]:
    """Colours over white by the opacity of the fourth channel, all in [0, 1]."""
    colour, opacity = pixels.split((3, 1), -3)
    return colour * opacity + 1 - opacity


def load(options: QwenImage21Options, training: Training = PLAIN) -> FlowModel:
    """Load a Qwen-Image-2.1 model for training; text encoder and VAE are frozen. ``guidance`` is the pipeline's
    ``true_cfg_scale``.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLQwenImage21, QwenImage21Pipeline, QwenImage21Transformer2DModel

    source = locate(options.path, "Qwen/Qwen-Image-2.1", "model_index.json")
    device = torch.device(training.device)
    network = read_network(QwenImage21Transformer2DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(
        QwenImage21Pipeline,
        source,
        training,
        vae=AutoencoderKLQwenImage21,
        transformer=network,
        processor=read_part(edit_processor("Qwen3VLProcessor"), source, subfolder="processor"),
    )
    freeze((pipeline.vae, pipeline.text_encoder), device)
    factor = pipeline.vae_scale_factor

    def sized(height: int, width: int, frames: int) -> tuple[QwenImage21, tuple[int, ...]]:
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=DEFAULT_SIZE)
        return QwenImage21(pipeline, options.max_sequence_length, device, size), (network.config.in_channels, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance)


def without_torchvision(path: str) -> Mapping[str, Any]:
    """The processor for the pipeline of diffusers, since transformers' own class needs torchvision, for clips only."""
    Processor = edit_processor("Qwen3VLProcessor")
    return {"processor": Processor.from_pretrained(path, subfolder="processor")}


PIPELINE = Pipeline(noise=as_tokens, no_words=NOTHING, parts=without_torchvision, pixels=on_white)
