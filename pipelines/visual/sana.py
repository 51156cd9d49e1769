"""Sana 1.0 and 1.5 (Xie et al. 2024, arXiv:2410.10629): linear attention, a deep-compression VAE, a Gemma 2 encoder.

Gemma reads an instruction to embellish before the prompt (the "complex human instruction", the default of diffusers'
pipeline), which is then left out of the encoding. The unconditional branch has none. Sizes are taken as they are, as
with ``use_resolution_binning=False`` of the pipeline.

Noise levels: published checkpoints come with a DPM solver of second order, which has no transition densities; Euler
steps take its place here. The solver's levels are s u / (1 + (s - 1) u), s being the checkpoint's ``flow_shift``, for u
evenly from .999 to .999 / T, then 0. Ours are the same for u from 1 to 1 / T: exactly pure noise at the start, as the
solver assumes, too, and less than .001 apart elsewhere. They are those of the pipeline with
``FlowMatchEulerDiscreteScheduler(shift=s)`` and ``sigmas=linspace(1, 1 / T, T)`` (by itself, this scheduler ends much
closer to 0). The solver rounds the network's time 1000 sigma down; it is not rounded here. A checkpoint that comes with
the Euler scheduler keeps its own levels.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, latents_of_pixels, pixels_of_latents
from pipelines.visual.options import SanaOptions
from pipelines.visual.sizes import Sample, Sides, latent_size

LORA_TARGETS = tuple(f"{attn}.{name}" for attn in ("attn1", "attn2") for name in ("to_q", "to_k", "to_v", "to_out.0"))
"""Projections of the linear self-attention and of the cross-attention, as in cosmos-rl's recipe for Sana."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(factor * config["patch_size"])


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    return {
        "hidden_states": torch.empty(1, config["in_channels"], sample.height, sample.width),
        "encoder_hidden_states": torch.empty(1, sample.words, config["caption_channels"]),
        "encoder_attention_mask": torch.ones(1, sample.words, device="cpu"),
        "timestep": torch.empty(1),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Gemma must read the whole prompt, of at most ``most`` tokens."""
    instruction = "\n".join(instruction_of(pipeline))
    # Of the instruction, the first and the last token are kept, and so are not added to the length.
    tokens = len(pipeline.tokenizer.encode(instruction))
    encoder = f"Gemma (instruction of {tokens} tokens included)"
    text = instruction + prompt.text.lower().strip()
    refuse_cut(prompt, pipeline.tokenizer, most + tokens - 2, encoder, text=text)


@dataclass(frozen=True)
class Sana(Architecture):
    """Text encoder and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    device: torch.device
    even: bool
    """Even levels before the shift, which replace those of a DPM solver."""

    def check(self, prompt: Prompt) -> None:
        """Gemma must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Gemma 2, and the mask of those that are words."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device)

    def check_negative(self, prompt: Prompt) -> None:
        check_bare_words(self.pipeline, prompt, self.max_sequence_length)

    def encode_negative(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """The same without the instruction, as in diffusers."""
        return encode_words(self.pipeline, prompt, self.max_sequence_length, self.device, bare=True)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        return velocity(network, x, time * 1000 * network.config.timestep_scale, conditioning)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of_pixels(self.pipeline.vae, pixels)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return spacing(self.even, steps)


def check_bare_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Gemma must read the whole negative prompt, which stands by itself."""
    refuse_cut(prompt, pipeline.tokenizer, most, "Gemma", text=prompt.text.lower().strip())


def encode_words(
    pipeline: Any, prompt: Prompt, most: int, device: torch.device, *, bare: bool = False
) -> tuple[Float[Tensor, "length width"], Float[Tensor, " length"]]:
    """Hidden states of Gemma 2 and the mask of those that are words; ``bare``, as without a text, of the prompt without
    the instruction."""
    hidden, mask, _, _ = pipeline.encode_prompt(
        prompt.text,
        do_classifier_free_guidance=False,
        device=device,
        max_sequence_length=most,
        complex_human_instruction=[] if bare or not prompt.text else instruction_of(pipeline),
    )
    return hidden[0], mask[0]


def velocity(
    network: Any, x: Float[Tensor, "N c *sides"], times: Float[Tensor, " N"], words: tuple[Tensor, ...]
) -> Float[Tensor, "N c *sides"]:
    """The transformer's prediction at its own ``times``."""
    hidden, mask = words
    (predicted,) = network(
        x, encoder_hidden_states=hidden, encoder_attention_mask=mask, timestep=times, return_dict=False
    )
    return predicted


def spacing(even: bool, steps: int) -> dict[str, Any]:
    """Levels from 1 to 1 / steps, which the scheduler shifts, where they are ``even``; else those of the scheduler."""
    return {"sigmas": np.linspace(1, 1 / steps, steps)} if even else {"num_inference_steps": steps}


def instruction_of(pipeline: Any) -> list[str]:
    """The instruction before every prompt, a default of the pipeline's call."""
    return inspect.signature(type(pipeline).__call__).parameters["complex_human_instruction"].default


def euler(scheduler: Any, source: str) -> tuple[Any, bool]:
    """The Euler scheduler with the shift of the checkpoint's, and whether it replaces a DPM solver.

    Raises ValueError for a scheduler that is not of a flow.
    """
    from diffusers import FlowMatchEulerDiscreteScheduler

    config = scheduler.config
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        return scheduler, False
    prediction, flow_sigmas = config.get("prediction_type"), config.get("use_flow_sigmas")
    if prediction != "flow_prediction" or not flow_sigmas:
        raise ValueError(
            f"scheduler/ of '{source}': got prediction_type {prediction} and use_flow_sigmas {flow_sigmas}, expected "
            "flow_prediction and true, or FlowMatchEulerDiscreteScheduler; correct scheduler_config.json"
        )
    return FlowMatchEulerDiscreteScheduler(shift=config["flow_shift"]), True


def load(options: SanaOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Sana model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderDC, SanaPipeline, SanaTransformer2DModel

    source = locate(options.path, "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers", "model_index.json")
    network = read_network(SanaTransformer2DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(SanaPipeline, source, training, vae=AutoencoderDC, transformer=network)
    device = torch.device(training.device)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    scheduler, even = euler(pipeline.scheduler, source)
    factor, config = pipeline.vae_scale_factor, network.config
    architecture = Sana(pipeline, options.max_sequence_length, device, even)

    def sized(height: int, width: int, frames: int) -> tuple[Sana, tuple[int, ...]]:
        default = config.sample_size * factor
        return architecture, (
            config.in_channels,
            *latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default),
        )

    size = (options.height, options.width, 0)
    return flow_model(network, scheduler, training, LORA_TARGETS, sized, size, options.guidance)
