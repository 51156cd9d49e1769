"""FLUX.2 klein (Black Forest Labs 2026), base and distilled: a Qwen 3 encoder; an image can be given to edit.

Latents are those of the network: 2 x 2 neighbours of the VAE's latents as channels of one position, normalized by the
statistics of the VAE's batch normalization. Positions have four axes (image, row, column, word); those of a given
image are 10 on the first. The base checkpoints take classifier-free guidance, the distilled ones none. The words are
encoded by three layers of Qwen 3, of which padding is a part, as in diffusers' pipeline.

A given image keeps its size as in the pipeline, cropped to whole tokens; one of more than ``given_size`` x
``given_size`` pixels, a megapixel in the pipeline, is reduced to as many in its own proportions.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from pipelines.training import PLAIN, Training, freeze, make_trainable
from pipelines.visual.conditioning_image import by_size, optional_image, whole_tokens
from pipelines.visual.flow import TRANSFORMER, Architecture, FlowModel
from pipelines.visual.options import KleinOptions
from pipelines.visual.sizes import latent_size, sides_of

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
        """Hidden states of Qwen 3, tokens of the given image, and their rows and columns."""
        hidden, _ = self.pipeline.encode_prompt(
            prompt.text, device=self.device, max_sequence_length=self.max_sequence_length
        )
        none = torch.zeros(0, self.pipeline.vae.bn.num_features, device=self.device)
        return hidden[0], *optional_image(prompt, "flux2_klein", none, self.resized, self.latents_of)

    def resized(self, image: Any) -> Float[Tensor, "1 3 H W"]:
        """An image in the size in which the network reads it; ValueError for a strip, which the pipeline refuses."""
        processor, unit, (width, height) = self.pipeline.image_processor, 2 * self.pipeline.vae_scale_factor, image.size
        if max(width, height) > LONGEST * min(width, height):
            raise ValueError(
                f"a given image has {width} x {height} pixels, expected sides of at most {LONGEST} : 1; crop it"
            )
        if width * height > self.given_size**2:
            image = processor._resize_to_target_area(image, self.given_size**2)
        height, width = whole_tokens(image, image.height, image.width, unit)
        return processor.preprocess(image, height, width, resize_mode="crop")

    def check_guidance(self, scale: float) -> None:
        """A distilled checkpoint takes none."""
        if self.pipeline.config.is_distilled and scale != 1:
            raise ValueError(f"guidance: got {scale}, expected 1, since the checkpoint is distilled and takes none")

    def latents_of(self, pixels: Float[Tensor, "1 3 H W"]) -> Float[Tensor, "1 c h w"]:
        """Normalized latents of pixels in [-1, 1]."""
        mean, deviation = self.statistics
        pixels = pixels.to(self.pipeline.vae.device, self.pipeline.vae.dtype)
        return (pixel_unshuffle(self.pipeline.vae.encode(pixels).latent_dist.mode().float(), 2) - mean) / deviation

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction; rows with a given image read it after their own tokens."""
        hidden, given, sizes = conditioning

        def predict(here: Tensor, rows: Tensor, height: int, width: int) -> Tensor:
            sequence = [x[rows].flatten(2).mT, given[rows, : height * width].to(x.dtype)]
            positions = [places(0, *self.size), *([places(10, height, width)] if height else [])]
            (predicted,) = network(
                hidden_states=torch.cat(sequence, dim=1),
                # Bit for bit as in the pipeline, which divides the scheduler's time of 1000 sigma again.
                timestep=time[rows] * 1000 / 1000,
                encoder_hidden_states=hidden[rows],
                txt_ids=put(places(words=hidden.shape[1]), x.device),
                img_ids=put(torch.cat(positions), x.device),
                return_dict=False,
            )
            return predicted[:, : x[0, 0].numel()].mT.reshape(x[rows].shape)

        return by_size(sizes, x.device, predict)

    @property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the channels of the VAE's latents."""
        vae = self.pipeline.vae
        mean, variance = vae.bn.running_mean.float(), vae.bn.running_var.float()
        return mean.view(1, -1, 1, 1), torch.sqrt(variance + vae.config.batch_norm_eps).view(1, -1, 1, 1)

    def denormalized(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N c/4 2*h 2*w"]:
        """The VAE's own latents."""
        mean, deviation = self.statistics
        return pixel_shuffle(latents.float() * deviation + mean, 2)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        vae = self.pipeline.vae
        return vae.decode(self.denormalized(latents).to(vae.dtype)).sample.float() / 2 + 0.5

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """Evenly spaced levels from 1 to 1 / steps, shifted according to the numbers of tokens and steps."""
        from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

        mu = compute_empirical_mu(self.size[0] * self.size[1], steps)
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
    device = torch.device(training.device)
    freeze((pipeline.vae, pipeline.text_encoder), device)
    sides, default = (
        sides_of(network, pipeline.vae_scale_factor),
        pipeline.default_sample_size * pipeline.vae_scale_factor,
    )

    def sized(height: int, width: int, frames: int) -> tuple[Klein, tuple[int, ...]]:
        size = latent_size(height, width, sides, factor=sides.unit, default=default)
        return Klein(pipeline, options.max_sequence_length, device, size, options.given_size), (
            network.config.in_channels,
            *size,
        )

    return FlowModel(
        network,
        *sized(options.height, options.width, 0),
        pipeline.scheduler,
        training,
        make_trainable(network, training, LORA_TARGETS),
        guidance=float(options.guidance),
        sized=sized,
    )
