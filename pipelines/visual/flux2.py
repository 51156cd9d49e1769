"""FLUX.2 dev (Black Forest Labs 2025): FLUX.2 klein (``pipelines.visual.flux2_klein``) with embedded guidance and
Mistral 3, which reads a system message before the words.

The checkpoint is distilled: the scale of guidance (``guidance``) is an input, and the network predicts the guided
velocity in one evaluation. ``true_cfg_scale`` adds classifier-free guidance proper, with two evaluations, which
diffusers' pipeline does not have. The words are hidden states 10, 20 and 30 of Mistral 3, padding included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_longer
from pipelines.pretrained import locate, read_network, read_part, read_pipeline
from pipelines.training import PLAIN, Training
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel
from pipelines.visual.flux2_klein import (
    LORA_TARGETS,
    USUAL,
    encode_prompt,
    inputs_of,
    latents_of,
    model_of,
    pixels_of,
    predict_velocity,
    sides_of,
    spacing,
)
from pipelines.visual.options import Flux2Options
from pipelines.visual.pipeline import Pipeline

__all__ = ["LORA_TARGETS", "USUAL", "inputs_of", "Flux2", "load", "sides_of", "words_of"]


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Mistral 3 must read the whole prompt behind the system message, of at most ``most`` tokens together."""
    from diffusers.pipelines.flux2.pipeline_flux2 import format_input

    [messages] = format_input([prompt.text], pipeline.system_message)
    ids = pipeline.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True).input_ids
    refuse_longer(prompt, len(ids), most, "Mistral 3 (system message included)")


@dataclass(frozen=True)
class Flux2(Architecture):
    """Text encoder and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    guidance: float
    device: torch.device
    size: tuple[int, int]
    """Rows and columns of tokens."""
    given_size: int
    """Side of the square of the pixels that a given image has at most."""

    takes_images: ClassVar[bool] = True

    def check(self, prompt: Prompt) -> None:
        """Mistral 3 must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        return encode_prompt(self.pipeline, prompt, "flux2", self.device, self.max_sequence_length, self.given_size)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return predict_velocity(network, x, time, conditioning, self.guidance)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of(self.pipeline.vae, 2 * pixels - 1)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(scheduler, self.size[0] * self.size[1], steps)


def words_of(source: str) -> Any:
    """The tokenizer of a checkpoint with its chat template. The published part is a processor of images, too, which
    needs torchvision, and which the pipeline uses for words only unless it rewrites prompts."""
    from transformers import PreTrainedTokenizerFast

    return read_part(PreTrainedTokenizerFast, source, subfolder="tokenizer")


def load(options: Flux2Options, training: Training = PLAIN) -> FlowModel:
    """Load a FLUX.2 dev model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLFlux2, Flux2Pipeline, Flux2Transformer2DModel

    source = locate(options.path, "black-forest-labs/FLUX.2-dev", "model_index.json")
    network = read_network(Flux2Transformer2DModel, source, training, TRANSFORMER)
    parts = {"transformer": network, "tokenizer": None}
    pipeline = read_pipeline(Flux2Pipeline, source, training, vae=AutoencoderKLFlux2, **parts)
    pipeline.tokenizer = words_of(source)
    most, scale, device = options.max_sequence_length, options.guidance, torch.device(training.device)
    make = lambda size: Flux2(pipeline, most, scale, device, size, options.given_size)  # noqa: E731
    return model_of(network, pipeline, options, training, make, options.true_cfg_scale)


def with_words(pipeline: Any, path: str) -> None:
    """The tokenizer, which is of another class than the checkpoint names."""
    pipeline.tokenizer = words_of(path)


PIPELINE = Pipeline(given_sizes=(1024,), guided=False, parts=lambda path: {"tokenizer": None}, complete=with_words)
