"""Qwen-Image (Wu et al. 2025, arXiv:2508.02324): Qwen2.5-VL reads the prompt, latents are packed, guidance keeps norms;
and Qwen-Image-Edit and Qwen-Image-Edit-Plus (2509, 2511), conditioned on an image.

Latents are [channels, height, width] outside the network, which reads them packed, 2 x 2 neighbours per token. Guidance
g gives each token the direction of v_empty + g (v_prompt - v_empty) and the norm of v_prompt.

The network of the family ``qwen_image_edit`` sees the given image twice: Qwen2.5-VL reads it with the words, and its
clean latents follow those of the image to be made in the sequence of tokens. It is never noised, and the unconditional
branch of guidance keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import pad_states, refuse_cut
from pipelines.pretrained import architecture, locate, read_json, read_network, read_part, read_pipeline
from pipelines.sequences import Line
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import by_size, conditioning_image
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.flux import LORA_TARGETS, pack, unpack
from pipelines.visual.options import QwenImageEditOptions, QwenImageOptions
from pipelines.visual.pipeline import Pipeline
from pipelines.visual.qwen_image_tiny import tiny
from pipelines.visual.sequences import Filled, SequencePlan
from pipelines.visual.sizes import Sample, Sides, latent_size

__all__ = ["LORA_TARGETS", "QwenImage", "load", "tiny"]

NOTHING = " "
"""The words of the unconditional branch: the negative prompt of Qwen's model card."""

TEXT_TOKENS = 1024
"""Tokens of a prompt that the pipeline reads at most."""

EDIT_TOKENS = 3584
"""Tokens of a prompt and its image at most, so the network has positions for them."""

PLUS = "QwenImageEditPlusPipeline"
PLUS_READS = 384
"""Side of the square with as many pixels as Plus shows to the text encoder."""

UNIT = 32
"""Sides of a given image are multiples of so many pixels."""

LONGEST = 4
"""Largest ratio of the sides of a given image."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(2 * factor)


USUAL = 1, 1024, 1024
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample; a given image follows in the sequence."""
    shapes = [
        (1, sample.height // 2, sample.width // 2),
        *[(1, sample.given // 2, sample.given // 2)] * bool(sample.given),
    ]
    return {
        "hidden_states": torch.empty(1, sum(map(math.prod, shapes)), config["in_channels"]),
        "encoder_hidden_states": torch.empty(1, sample.words, config["joint_attention_dim"]),
        "timestep": torch.empty(1),
        "img_shapes": [shapes],
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Qwen2.5-VL must read the whole prompt, of at most ``most`` tokens. Of an editing model their number depends on
    the image, too, and ``encode`` refuses too many."""
    if "processor" in pipeline.config:
        return
    text, cut = prompt.text or NOTHING, pipeline.prompt_template_encode_start_idx
    encoder = f"Qwen2.5-VL ({cut} of them an instruction)"
    refuse_cut(prompt, pipeline.tokenizer, most + cut, encoder, pipeline.prompt_template_encode.format(text))


@dataclass(frozen=True)
class QwenImage(Architecture):
    """Text encoder and VAE of a checkpoint, and the packing of latents."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    def check(self, prompt: Prompt) -> None:
        """Qwen2.5-VL must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Qwen2.5-VL behind the pipeline's instruction, padded, and which of them are real."""
        text = prompt.text or NOTHING
        hidden, _ = self.pipeline.encode_prompt(text, self.device)
        return pad_states(hidden[0], self.max_sequence_length)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for unpacked latents."""
        height, width = self.size
        return unpack(
            predict_tokens(network, pack(x), time, conditioning, [(1, height // 2, width // 2)]), height, width
        )

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
        """The pipeline's true CFG: the guided direction, with the norm of the conditional prediction in each token."""
        guided, conditional = pack(super().guided(unconditional, conditional, scale)), pack(conditional)
        norms = [tokens.norm(dim=-1, keepdim=True) for tokens in (conditional, guided)]
        return unpack(guided * (norms[0] / norms[1]), *self.size)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        vae = self.pipeline.vae
        mean, std = (statistic.to(latents) for statistic in latent_statistics(vae))
        scaled = (latents[:, :, None] * std + mean).to(vae.dtype)
        return vae.decode(scaled).sample[:, :, 0].float() / 2 + 0.5

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of(self.pipeline.vae, 2 * pixels - 1)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, self.size[0] * self.size[1] // 4)


@dataclass(frozen=True)
class QwenImageEdit(QwenImage):
    """Text encoder and VAE of a checkpoint, and the size of given images."""

    given_size: int
    """Side of the square with as many pixels as a given image is scaled to."""
    read_size: int
    """The same for what the text encoder sees."""

    takes_images: ClassVar[bool] = True

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of words and image, padded; which of them are real; the image's packed latents; rows and
        columns of their tokens."""
        image, pipeline = conditioning_image(prompt, "qwen_image_edit"), self.pipeline
        seen, shown = (scaled_size(image.size, side) for side in (self.given_size, self.read_size))
        hidden, _ = pipeline.encode_prompt(
            prompt.text or NOTHING, pipeline.image_processor.resize(image, *shown), self.device
        )
        if (tokens := hidden.shape[1]) > self.max_sequence_length:
            raise ValueError(
                f"prompt '{prompt.text:.80}': has {tokens} tokens with its image, expected at most "
                f"{self.max_sequence_length}; shorten it, raise model.max_sequence_length or lower model.given_size"
            )
        pixels = pipeline.image_processor.preprocess(image, *seen)
        given = pack(latents_of(pipeline.vae, pixels.to(self.device)))[0]
        cell = 2 * pipeline.vae_scale_factor
        size = torch.tensor([side // cell for side in seen])
        return *pad_states(hidden[0], self.max_sequence_length), given, size

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for the unpacked latents alone."""
        hidden, real, given, size = conditioning
        height, width = self.size
        tokens = pack(x)
        real = real.cpu()

        def predict(here: Tensor, index: Tensor, rows: int, columns: int) -> Tensor:
            sequence = torch.cat([tokens[index], given[index, : rows * columns].to(tokens)], dim=1)
            shapes = [(1, height // 2, width // 2), (1, rows, columns)]
            velocity = predict_tokens(network, sequence, time[index], (hidden[index], real[here]), shapes)
            return velocity[:, : tokens.shape[1]]

        return unpack(by_size(size, x.device, predict), height, width)


def predict_tokens(
    network: Any,
    tokens: Float[Tensor, "N tokens values"],
    time: Float[Tensor, " N"],
    conditioning: tuple[Tensor, ...],
    shapes: list[tuple[int, int, int]],
) -> Float[Tensor, "N tokens values"]:
    """The transformer's prediction; ``shapes`` are the frames, rows and columns of tokens of each image."""
    hidden, real = conditioning[0], conditioning[1].cpu()
    longest = int(real.sum(1).max())
    real = real[:, :longest]
    (velocity,) = network(
        hidden_states=tokens,
        # Bit for bit as in the pipeline, which divides the scheduler's time of 1000 sigma again.
        timestep=time * 1000 / 1000,
        encoder_hidden_states=hidden[:, :longest],
        encoder_hidden_states_mask=None if bool(real.all()) else put(real, hidden.device),
        img_shapes=[shapes] * len(tokens),
        return_dict=False,
    )
    return velocity


def latent_statistics(vae: Any) -> tuple[Float[Tensor, "c 1 1 1"], Float[Tensor, "c 1 1 1"]]:
    """Mean and standard deviation of the latents of Qwen-Image's VAE."""
    config = vae.config
    return torch.tensor(config.latents_mean).view(-1, 1, 1, 1), torch.tensor(config.latents_std).view(-1, 1, 1, 1)


def latents_of(vae: Any, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
    """Normalized latents of pixels in [-1, 1]: the mode of the VAE's distribution, without noise."""
    encoded = vae.encode(pixels[:, :, None].to(vae.dtype)).latent_dist.mode().float()
    mean, std = (statistic.to(encoded) for statistic in latent_statistics(vae))
    return ((encoded - mean) / std)[:, :, 0]


def scaled_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Height and width of about ``side`` x ``side`` pixels in the proportions of ``size`` (width, height), as in the
    pipelines; ValueError for a strip."""
    width, height = size
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(
            f"a given image has {width} x {height} pixels, expected sides of at most {LONGEST} : 1; crop it"
        )
    wide = math.sqrt(side**2 * (width / height))
    return round(wide / (width / height) / UNIT) * UNIT, round(wide / UNIT) * UNIT


def load(options: QwenImageOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Qwen-Image model for training, of ``QwenImageEditOptions`` a Qwen-Image-Edit (Plus or not, with one given
    image); text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32. ``guidance`` is the
    pipeline's ``true_cfg_scale``.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import QwenImageEditPipeline, QwenImageEditPlusPipeline, QwenImagePipeline

    if not isinstance(options, QwenImageEditOptions):
        check_text_tokens(options.max_sequence_length, TEXT_TOKENS)
        source = locate(options.path, "Qwen/Qwen-Image", "model_index.json")
        return model_of(QwenImagePipeline, source, options, training, QwenImage, {})
    check_text_tokens(options.max_sequence_length, EDIT_TOKENS)
    given_size = options.given_size
    if given_size < 2 * UNIT:
        raise ValueError(f"given_size: got {given_size} pixels, expected at least {2 * UNIT}")
    source = locate(options.path, "Qwen/Qwen-Image-Edit-2509", "model_index.json")
    plus = architecture(source) == PLUS
    make = partial(QwenImageEdit, given_size=given_size, read_size=PLUS_READS if plus else given_size)
    kind = QwenImageEditPlusPipeline if plus else QwenImageEditPipeline
    processor = read_part(edit_processor(), source, subfolder="processor")
    model = model_of(kind, source, options, training, make, {"processor": processor})
    model.encodings.kept = model.negatives.kept = 128  # of up to 16 MB each
    return model


def model_of(
    kind: Any,
    source: str,
    options: QwenImageOptions,
    training: Training,
    make: Callable[[Any, int, torch.device, tuple[int, int]], QwenImage],
    parts: Mapping[str, Any],
) -> FlowModel:
    """The model around the network and the frozen pipeline, of this class and with these ``parts``, of a checkpoint;
    ``make`` gives the architecture."""
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel

    device = torch.device(training.device)
    network = read_network(QwenImageTransformer2DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(kind, source, training, vae=AutoencoderKLQwenImage, transformer=network, **parts)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    factor = pipeline.vae_scale_factor

    def sized(height: int, width: int, frames: int) -> tuple[QwenImage, tuple[int, ...]]:
        default = pipeline.default_sample_size * factor
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default)
        return make(pipeline, options.max_sequence_length, device, size), (network.config.in_channels // 4, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance)


def check_text_tokens(tokens: int, most: int) -> None:
    """ValueError for more tokens than a model reads."""
    if tokens > most:
        raise ValueError(f"max_sequence_length: got {tokens}, expected at most {most}, which the model reads")


def sequence_plan(network: Any, line: Line) -> SequencePlan:
    """How processes divide the tokens of an image and its words, which are as many as the longest prompt has."""
    return SequencePlan(network._cp_plan, hooks=[("", Filled(line.count, "encoder_hidden_states_mask"))])


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
    """The processor of an editing model for the pipeline of diffusers, since transformers' own class needs torchvision,
    for clips only."""
    if "processor" not in (read_json(path, "model_index.json") or {}):
        return {}
    return {"processor": read_part(edit_processor(), path, subfolder="processor")}


PIPELINE = Pipeline(noise=pack, no_words=NOTHING, given_sizes=(1024,), parts=without_torchvision)
