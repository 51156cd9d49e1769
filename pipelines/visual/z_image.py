"""Z-Image and Z-Image-Turbo (Cai et al. 2025, arXiv:2511.22699): one stream of tokens, with time and sign reversed.

The network's time is 1 - sigma, and it predicts x0 - eps, the negative of the velocity. The guidance_scale s of
diffusers adds s (v_prompt - v_empty) to v_prompt, so s = 0 is none; here ``guidance`` is g = s + 1, so 1 is
none, as in every other family.
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
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.sequences import Line
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import (
    TRANSFORMER,
    Architecture,
    FlowModel,
    flow_model,
    image_shift,
    latents_of_pixels,
    pixels_of_latents,
)
from pipelines.visual.options import ZImageOptions
from pipelines.visual.pipeline import Call, Pipeline
from pipelines.visual.sequences import SequencePlan
from pipelines.visual.sizes import Sample, Sides, latent_size

LORA_TARGETS = tuple(f"attention.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0"))
"""Projections of the attention of all blocks, the refiners' too."""

PATCH = 2
"""Latent positions per side of a token."""

MULTIPLE = 32
"""The network pads prompt and image to multiples of so many tokens."""

PIXELS = 1024
"""Height and width of the pipeline's images by default."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(2 * factor, 2 * factor * min(config["axes_lens"][1:]))


USUAL = 1, PIXELS, PIXELS
"""Frames, height and width of samples, where the options leave them open."""


def inputs_of(config: Mapping[str, Any], sample: Sample) -> dict[str, Any]:
    """What its network reads of one sample."""
    return {
        "x": [torch.empty(config["in_channels"], 1, sample.height, sample.width)],
        "t": torch.empty(1),
        "cap_feats": [torch.empty(sample.words, config["cap_feat_dim"])],
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Qwen3 must read the whole prompt in its chat template, of at most ``most`` tokens."""
    chat = pipeline.tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt.text}], tokenize=False, add_generation_prompt=True, enable_thinking=True
    )
    refuse_cut(prompt, pipeline.tokenizer, most, "Qwen3 (its chat template included)", chat)


@dataclass(frozen=True)
class ZImage(Architecture):
    """Text encoder and VAE of a checkpoint."""

    pipeline: Any
    max_sequence_length: int
    cfg_normalization: float
    device: torch.device
    tokens: int
    """Image tokens of one latent."""

    def check(self, prompt: Prompt) -> None:
        """Qwen3 must read the whole prompt."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of Qwen3, padded, and which of them are real; an empty prompt is the pipeline's negative."""
        (hidden,), _ = self.pipeline.encode_prompt(
            prompt.text,
            self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
        )
        return pad_states(hidden, self.max_sequence_length)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The velocity of the network's prediction; it takes a list of images and one of prompts."""
        hidden, real = conditioning
        prompts = [row[:length] for row, length in zip(hidden, real.cpu().sum(1).tolist(), strict=True)]
        # Bit for bit as in the pipeline, whose time is that of the scheduler, 1000 sigma.
        (predicted,) = network(list(x[:, :, None]), (1000 - time * 1000) / 1000, prompts, return_dict=False)
        return -torch.stack(predicted)[:, :, 0]

    def guided(self, unconditional: Tensor, conditional: Tensor, scale: float) -> Tensor:
        """Classifier-free guidance; ``cfg_normalization`` limits the norm of each image's prediction."""
        guided = super().guided(unconditional, conditional, scale)
        if not self.cfg_normalization:
            return guided
        most, norm = (v.flatten(1).norm(dim=1)[:, None, None, None] for v in (conditional, guided))
        return guided * (self.cfg_normalization * most / norm).clamp(max=1)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of_pixels(self.pipeline.vae, pixels)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """Evenly spaced levels from 1 to 1 / steps, with the shift of the scheduler."""
        mu = image_shift(scheduler.config, self.tokens, 1.15)
        return {"sigmas": torch.linspace(1.0, 1 / steps, steps).tolist(), "mu": mu}


def load(options: ZImageOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Z-Image model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32. ``guidance`` is the
    pipeline's ``guidance_scale`` plus 1.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import ZImagePipeline, ZImageTransformer2DModel

    source = locate(options.path, "Tongyi-MAI/Z-Image-Turbo", "model_index.json")
    device = torch.device(training.device)
    network = read_network(ZImageTransformer2DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(ZImagePipeline, source, training, transformer=network)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    factor, text = pipeline.vae_scale_factor, network.config.axes_lens[0]
    # The prompt has the positions from 1, padded, and the image the one behind them.
    if options.max_sequence_length > (most := (text - 2) // MULTIPLE * MULTIPLE):
        raise ValueError(
            f"max_sequence_length: got {options.max_sequence_length}, expected at most {most}, for which the network "
            "has positions"
        )
    sides = sides_of(network.config, factor)

    def sized(height: int, width: int, frames: int) -> tuple[ZImage, tuple[int, ...]]:
        size = latent_size(height, width, sides, factor=factor, default=PIXELS)
        tokens = size[0] * size[1] // PATCH**2
        architecture = ZImage(pipeline, options.max_sequence_length, float(options.cfg_normalization), device, tokens)
        return architecture, (network.config.in_channels, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance)


def sequence_plan(network: Any, line: Line) -> SequencePlan:
    """How processes divide the tokens of an image and its words; the first layers, two of images and two of words, are
    not divided."""
    from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput

    tokens, mask = (ContextParallelInput(split_dim=1, expected_dims=dims) for dims in (3, 2))
    *_, last = (name for name, _ in network.all_final_layer.named_children())
    layers = {"layers.0": {"x": tokens}, "layers.*": {"attn_mask": mask, "freqs_cis": tokens}}
    end = {f"all_final_layer.{last}": ContextParallelOutput(1, expected_dims=3)}
    return SequencePlan(layers | end, undivided="*_refiner.*")


def guidance_arguments(pipeline: Any, call: Call) -> Mapping[str, Any]:
    """The arguments of guidance: the pipeline of diffusers adds the scale to the prediction with the prompt."""
    return {"guidance_scale": call.guidance - 1, "cfg_normalization": call.options["cfg_normalization"]}


PIPELINE = Pipeline(arguments=guidance_arguments)
