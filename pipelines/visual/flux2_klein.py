"""FLUX.2 klein (Black Forest Labs 2026), base and distilled: a Qwen 3 encoder; images can be given to edit.

Latents are those of the network: 2 x 2 neighbours of the VAE's latents as channels of one position, normalized by the
statistics of the VAE's batch normalization. Positions have four axes (image, row, column, word); on the first, those of
given images are 10, 20 and so on. The base checkpoints take classifier-free guidance, the distilled ones none. The
words are encoded by three layers of Qwen 3, of which padding is a part, as in diffusers' pipeline.

Each given image keeps its size as in the pipeline, cropped to whole tokens; one of more than ``given_size`` x
``given_size`` pixels, a megapixel in the pipeline, is reduced to as many in its own proportions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.conditioning_image import by_sizes, optional_images, whole_tokens
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model
from pipelines.visual.options import KleinOptions
from pipelines.visual.pipeline import Pipeline
from pipelines.visual.sizes import Sample, Sides, latent_size

LORA_TARGETS = tuple(
    f"attn.{name}"
    for name in (
        *("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
        "to_qkv_mlp_proj",
    )
)
"""Attention of the double-stream blocks, and the joint projection of the single-stream ones, as in Flow-Factory."""

LONGEST = 8
"""Largest ratio of the sides of a given image."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(2 * factor)


USUAL = 1, 1024, 1024
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample; a given image follows in the sequence."""
    tokens = sample.height * sample.width // 4 + sample.given**2 // 4
    return {
        "hidden_states": torch.empty(1, tokens, config["in_channels"]),
        "encoder_hidden_states": torch.empty(1, sample.words, config["joint_attention_dim"]),
        "timestep": torch.empty(1),
        "guidance": torch.empty(1) if config["guidance_embeds"] else None,
        "img_ids": torch.empty(1, tokens, 4),
        "txt_ids": torch.empty(1, sample.words, 4),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Qwen 3 must read the whole prompt in its chat template, of at most ``most`` tokens."""
    chat = pipeline.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    refuse_cut(prompt, pipeline.tokenizer, most, "Qwen 3 (chat template included)", text=chat)


@dataclass(frozen=True)
class Klein(Architecture):
    """Text encoder and VAE of a checkpoint, and the positions of tokens."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    size: tuple[int, int]
    """Rows and columns of tokens."""
    given_size: int = 1024
    """Side of the square of the pixels that a given image has at most."""

    takes_images: ClassVar[bool] = True

    def check(self, prompt: Prompt) -> None:
        """Qwen 3 must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        return encode_prompt(
            self.pipeline, prompt, "flux2_klein", self.device, self.max_sequence_length, self.given_size
        )

    def check_guidance(self, scale: float) -> None:
        """A distilled checkpoint takes none."""
        if self.pipeline.config.is_distilled and scale != 1:
            raise ValueError(f"guidance: got {scale}, expected 1, since the checkpoint is distilled and takes none")

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return predict_velocity(network, x, time, conditioning)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of(self.pipeline.vae, 2 * pixels - 1)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(scheduler, self.size[0] * self.size[1], steps)


def encode_prompt(
    pipeline: Any, prompt: Prompt, family: str, device: torch.device, most: int, given_size: int
) -> tuple[Tensor, ...]:
    """Hidden states of ``most`` tokens of the text encoder; tokens of the given images, and the rows and columns of
    each."""
    hidden, _ = pipeline.encode_prompt(prompt.text, device=device, max_sequence_length=most)
    none = torch.zeros(0, pipeline.vae.bn.num_features, device=device)
    read = partial(resize, pipeline, given_size=given_size)
    return hidden[0], *optional_images(prompt, family, none, read, partial(latents_of, pipeline.vae))


def resize(pipeline: Any, image: Any, given_size: int) -> Float[Tensor, "1 3 H W"]:
    """An image in the size in which the network reads it; ValueError for a strip, which the pipeline refuses."""
    processor, unit, (width, height) = pipeline.image_processor, 2 * pipeline.vae_scale_factor, image.size
    if max(width, height) > LONGEST * min(width, height):
        raise ValueError(
            f"a given image has {width} x {height} pixels, expected sides of at most {LONGEST} : 1; crop it"
        )
    if width * height > given_size**2:
        image = processor._resize_to_target_area(image, given_size**2)
    height, width = whole_tokens(image, image.height, image.width, unit)
    return processor.preprocess(image, height, width, resize_mode="crop")


def predict_velocity(
    network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...], guidance: float | None = None
) -> Float[Tensor, "N c h w"]:
    """The transformer's prediction; rows with given images read them after their own tokens, the first at 10 on the
    first axis of positions, the second at 20, and so on. ``guidance`` is an input of distilled checkpoints."""
    hidden, given, sizes = conditioning

    def predict(here: Tensor, rows: Tensor, shapes: list[list[int]]) -> Tensor:
        count = sum(height * width for height, width in shapes)
        sequence = [x[rows].flatten(2).mT, given[rows, :count].to(x.dtype)]
        behind = [places(10 * number, *shape) for number, shape in enumerate(shapes, start=1)]
        (velocity,) = network(
            hidden_states=torch.cat(sequence, dim=1),
            # Bit for bit as in the pipeline, which divides the scheduler's time of 1000 sigma again.
            timestep=time[rows] * 1000 / 1000,
            guidance=None if guidance is None else torch.full((len(rows),), guidance, device=x.device),
            encoder_hidden_states=hidden[rows],
            txt_ids=put(places(words=hidden.shape[1])[None], x.device),
            img_ids=put(torch.cat([places(0, *x.shape[2:]), *behind])[None], x.device),
            return_dict=False,
        )
        return velocity[:, : x[0, 0].numel()].mT.reshape(x[rows].shape)

    return by_sizes(sizes, x.device, predict)


def statistics(vae: Any) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the channels of the VAE's latents."""
    mean, variance = vae.bn.running_mean.float(), vae.bn.running_var.float()
    return mean.view(1, -1, 1, 1), torch.sqrt(variance + vae.config.batch_norm_eps).view(1, -1, 1, 1)


def latents_of(vae: Any, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
    """Normalized latents of pixels in [-1, 1]."""
    mean, deviation = statistics(vae)
    encoded = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.mode().float()
    return (pixel_unshuffle(encoded, 2) - mean) / deviation


def denormalize(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N c/4 2*h 2*w"]:
    """The VAE's own latents."""
    mean, deviation = statistics(vae)
    return pixel_shuffle(latents.float() * deviation + mean, 2)


def pixels_of(vae: Any, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
    """Pixels in [0, 1], which the VAE may slightly exceed."""
    return vae.decode(denormalize(vae, latents).to(vae.dtype)).sample.float() / 2 + 0.5


def spacing(scheduler: Any, tokens: int, steps: int) -> dict[str, Any]:
    """Evenly spaced levels from 1 to 1 / steps, shifted according to the numbers of tokens and steps."""
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    mu = compute_empirical_mu(tokens, steps)
    if scheduler.config.get("use_flow_sigmas"):
        return {"num_inference_steps": steps, "mu": mu}
    return {"sigmas": np.linspace(1.0, 1 / steps, steps), "mu": mu}


def places(image: int = 0, rows: int = 1, columns: int = 1, words: int = 1) -> Tensor:
    """(image, row, column, word) of every token."""
    return torch.cartesian_prod(torch.tensor([image]), torch.arange(rows), torch.arange(columns), torch.arange(words))


def load(options: KleinOptions, training: Training = PLAIN) -> FlowModel:
    """Load a FLUX.2 klein model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLFlux2, Flux2KleinPipeline, Flux2Transformer2DModel

    source = locate(options.path, "black-forest-labs/FLUX.2-klein-base-4B", "model_index.json")
    network = read_network(Flux2Transformer2DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(Flux2KleinPipeline, source, training, vae=AutoencoderKLFlux2, transformer=network)
    if pipeline.config.is_distilled and options.guidance != 1:
        raise ValueError(
            f"guidance: got {options.guidance}, expected 1, since '{source}' is distilled and takes none; set it to 1 "
            "or train a base checkpoint, e.g. black-forest-labs/FLUX.2-klein-base-4B"
        )
    most, device = options.max_sequence_length, torch.device(training.device)
    make = lambda size: Klein(pipeline, most, device, size, options.given_size)  # noqa: E731
    return model_of(network, pipeline, options, training, make, options.guidance)


def model_of(
    network: Any,
    pipeline: Any,
    options: KleinOptions,
    training: Training,
    make: Callable[[tuple[int, int]], Architecture],
    guidance: float,
) -> FlowModel:
    """The model around a network and its frozen pipeline; ``make`` gives the architecture for so many rows and columns
    of tokens, and ``guidance`` is the scale of classifier-free guidance."""
    freeze((pipeline.vae, pipeline.text_encoder), torch.device(training.device))
    factor = pipeline.vae_scale_factor
    sides, default = sides_of(network.config, factor), pipeline.default_sample_size * factor

    def sized(height: int, width: int, frames: int) -> tuple[Architecture, tuple[int, ...]]:
        size = latent_size(height, width, sides, factor=sides.unit, default=default)
        return make(size), (network.config.in_channels, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, guidance)


PIPELINE = Pipeline(given_sizes=(1024,))
