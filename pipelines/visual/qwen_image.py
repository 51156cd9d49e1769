"""Qwen-Image (Wu et al. 2025, arXiv:2508.02324): Qwen2.5-VL reads the prompt, latents are packed, guidance keeps norms.

Latents are [channels, height, width] outside the network, which reads them packed, 2 x 2 neighbours per token. Guidance
g gives each token the direction of v_empty + g (v_prompt - v_empty) and the norm of v_prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require
from pipelines.conditions import pad_states, refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel, flow_model, shifted_spacing
from pipelines.visual.flux import LORA_TARGETS, pack, unpack
from pipelines.visual.options import QwenImageOptions
from pipelines.visual.pipeline import Pipeline
from pipelines.visual.qwen_image_tiny import tiny
from pipelines.visual.sizes import Sides, latent_size

__all__ = ["LORA_TARGETS", "QwenImage", "load", "tiny"]

NOTHING = " "
"""The words of the unconditional branch: the negative prompt of Qwen's model card."""

TEXT_TOKENS = 1024
"""Tokens of a prompt that the pipeline reads at most."""


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides(2 * factor)


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """Qwen2.5-VL must read the whole prompt, of at most ``most`` tokens."""
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
        return unpack(predicted(network, pack(x), time, conditioning, [(1, height // 2, width // 2)]), height, width)

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
        vae = self.pipeline.vae
        mean, std = (statistic.to(pixels) for statistic in latent_statistics(vae))
        encoded = vae.encode((2 * pixels[:, :, None] - 1).to(vae.dtype)).latent_dist.mode().float()
        return ((encoded - mean) / std)[:, :, 0]

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        return shifted_spacing(scheduler, steps, self.size[0] * self.size[1] // 4)


def predicted(
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


def load(options: QwenImageOptions, training: Training = PLAIN) -> FlowModel:
    """Load a Qwen-Image model for training; text encoder and VAE are frozen.

    The text encoder is stored in the precision of computation, the VAE in fp32. ``guidance`` is the
    pipeline's ``true_cfg_scale``.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderKLQwenImage, QwenImagePipeline, QwenImageTransformer2DModel

    check_text_tokens(options.max_sequence_length, TEXT_TOKENS)
    source = locate(options.path, "Qwen/Qwen-Image", "model_index.json")
    device = torch.device(training.device)
    network = read_network(QwenImageTransformer2DModel, source, training, TRANSFORMER)
    pipeline = read_pipeline(QwenImagePipeline, source, training, vae=AutoencoderKLQwenImage, transformer=network)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    factor = pipeline.vae_scale_factor

    def sized(height: int, width: int, frames: int) -> tuple[QwenImage, tuple[int, ...]]:
        default = pipeline.default_sample_size * factor
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default)
        return QwenImage(pipeline, options.max_sequence_length, device, size), (network.config.in_channels // 4, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.guidance)


def check_text_tokens(tokens: int, most: int) -> None:
    """ValueError for more tokens than a model reads."""
    if tokens > most:
        raise ValueError(f"max_sequence_length: got {tokens}, expected at most {most}, which the model reads")


PIPELINE = Pipeline(noise=pack, no_words=NOTHING)
