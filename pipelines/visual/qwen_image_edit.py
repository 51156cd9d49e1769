"""Qwen-Image-Edit and Qwen-Image-Edit-Plus (2509, 2511): Qwen-Image conditioned on an image.

The network sees the given image twice: Qwen2.5-VL reads it with the words, and its clean latents follow those of the
image to be made in the sequence of tokens. It is never noised, and the unconditional branch of guidance keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import pad_states
from pipelines.pretrained import architecture, locate, read_network, read_part, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import by_size, conditioning_image
from pipelines.visual.flow import TRANSFORMER, FlowModel, flow_model
from pipelines.visual.flux import LORA_TARGETS, pack, unpack
from pipelines.visual.options import QwenImageEditOptions
from pipelines.visual.pipeline import Pipeline
from pipelines.visual.qwen_image import (
    NOTHING,
    QwenImage,
    check_text_tokens,
    latent_statistics,
    predicted,
    sides_of,
)
from pipelines.visual.sizes import latent_size

__all__ = ["LORA_TARGETS", "load", "sides_of"]

PLUS = "QwenImageEditPlusPipeline"
PLUS_READS = 384
"""Side of the square with as many pixels as Plus shows to the text encoder."""

UNIT = 32
"""Sides of a given image are multiples of so many pixels."""

LONGEST = 4
"""Largest ratio of the sides of a given image."""

TEXT_TOKENS = 3584
"""Tokens of a prompt and its image at most, so the network has positions for them."""


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Nothing: the number of tokens depends on the image, and ``encode`` refuses too many."""


@dataclass(frozen=True)
class QwenImageEdit(QwenImage):
    """Text encoder and VAE of a checkpoint, and the size of given images."""

    given_size: int
    """Side of the square with as many pixels as a given image is scaled to."""
    read_size: int
    """The same for what the text encoder sees."""

    takes_images: ClassVar[bool] = True

    def check(self, prompt: Prompt) -> None:
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of words and image, padded; which of them are real; the image's packed latents; rows and
        columns of their tokens."""
        image, pipeline = conditioning_image(prompt, "qwen_image_edit"), self.pipeline
        seen, shown = (scaled(image.size, side) for side in (self.given_size, self.read_size))
        hidden, _ = pipeline.encode_prompt(
            prompt.text or NOTHING, pipeline.image_processor.resize(image, *shown), self.device
        )
        if (tokens := hidden.shape[1]) > self.max_sequence_length:
            raise ValueError(
                f"prompt '{prompt.text:.80}': has {tokens} tokens with its image, expected at most "
                f"{self.max_sequence_length}; shorten it, raise model.max_sequence_length or lower model.given_size"
            )
        pixels = pipeline.image_processor.preprocess(image, *seen)[:, :, None]
        given = pack(self.latents(pixels.to(self.device)))[0]
        cell = 2 * pipeline.vae_scale_factor
        size = torch.tensor([side // cell for side in seen])
        return *pad_states(hidden[0], self.max_sequence_length), given, size

    def latents(self, pixels: Tensor) -> Tensor:
        """Normalized latents of pixels in [-1, 1]: the mean of the VAE's distribution, without noise."""
        vae = self.pipeline.vae
        latents = vae.encode(pixels.to(vae.dtype)).latent_dist.mode().float()
        mean, std = (statistic.to(latents) for statistic in latent_statistics(vae))
        return ((latents - mean) / std)[:, :, 0]

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for the unpacked latents alone."""
        hidden, real, given, size = conditioning
        height, width = self.size
        tokens = pack(x)
        real = real.cpu()

        def predict(here: Tensor, index: Tensor, rows: int, columns: int) -> Tensor:
            sequence = torch.cat([tokens[index], given[index, : rows * columns].to(tokens)], dim=1)
            shapes = [(1, height // 2, width // 2), (1, rows, columns)]
            velocity = predicted(network, sequence, time[index], (hidden[index], real[here]), shapes)
            return velocity[:, : tokens.shape[1]]

        return unpack(by_size(size, x.device, predict), height, width)


def scaled(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Height and width of about ``side`` x ``side`` pixels in the proportions of ``size`` (width, height), as in the
    pipelines; ValueError for a strip."""
    width, height = size
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(
            f"a given image has {width} x {height} pixels, expected sides of at most {LONGEST} : 1; crop it"
        )
    wide = math.sqrt(side**2 * (width / height))
    return round(wide / (width / height) / UNIT) * UNIT, round(wide / UNIT) * UNIT


def load(options: QwenImageEditOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Qwen-Image-Edit model (Plus or not, with one given image) for training; only the transformer trains.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import (
        AutoencoderKLQwenImage,
        QwenImageEditPipeline,
        QwenImageEditPlusPipeline,
        QwenImageTransformer2DModel,
    )

    check_text_tokens(options.max_sequence_length, TEXT_TOKENS)
    if options.given_size < 2 * UNIT:
        raise ValueError(f"given_size: got {options.given_size} pixels, expected at least {2 * UNIT}")
    source = locate(options.path, "Qwen/Qwen-Image-Edit-2509", "model_index.json")
    device = torch.device(training.device)
    network = read_network(QwenImageTransformer2DModel, source, training, TRANSFORMER)
    plus = architecture(source) == PLUS
    Processor = edit_processor()
    pipeline = read_pipeline(
        QwenImageEditPlusPipeline if plus else QwenImageEditPipeline,
        source,
        training,
        vae=AutoencoderKLQwenImage,
        transformer=network,
        processor=read_part(Processor, source, subfolder="processor"),
    )
    freeze((pipeline.vae, pipeline.text_encoder), device)
    factor = pipeline.vae_scale_factor
    read_size = PLUS_READS if plus else options.given_size

    def sized(height: int, width: int, frames: int) -> tuple[QwenImageEdit, tuple[int, ...]]:
        default = pipeline.default_sample_size * factor
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default)
        architecture = QwenImageEdit(pipeline, options.max_sequence_length, device, size, options.given_size, read_size)
        return architecture, (network.config.in_channels // 4, *size)

    size = (options.height, options.width, 0)
    model = flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance)
    model.encodings.kept = model.negatives.kept = 128  # of up to 16 MB each
    return model


def edit_processor(name: str = "Qwen2VLProcessor") -> Any:
    """The class of Qwen's processor of words and images; transformers' own also needs torchvision, for clips."""
    import transformers

    Own: Any = getattr(transformers, name)

    class EditProcessor(Own):
        """Without the processor of clips."""

        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: Any = None) -> None:
            super().__init__(image_processor, tokenizer, chat_template=chat_template)

    return EditProcessor


def without_torchvision(path: str) -> Mapping[str, Any]:
    """The processor for the pipeline of diffusers, since transformers' own class needs torchvision, for clips only."""
    Processor = edit_processor()
    return {"processor": Processor.from_pretrained(path, subfolder="processor")}


PIPELINE = Pipeline(noise=pack, no_words=NOTHING, given_sizes=(1024,), parts=without_torchvision)
