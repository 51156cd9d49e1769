"""FLUX.1 dev and schnell (Black Forest Labs 2024): packed latents, embedded guidance, a dynamic time shift; and
Kontext, which edits a given image.

Latents are [channels, height, width] outside the network, which reads them packed, 2 x 2 neighbours per token. FLUX dev
is distilled: the scale of guidance (``guidance``) is an input, and the network predicts the guided velocity in one
evaluation. ``true_cfg_scale`` adds classifier-free guidance proper, with two evaluations.

FLUX.1 Kontext (2025, arXiv:2506.15742), the family ``flux_kontext``, edits a given image, or draws without one. The
latents of the given image follow those of the image that is made, with 1 as their first position; they are never
noised, and nothing is predicted for them. The image is resized to that of the preferred sizes, of about a megapixel,
whose ratio of sides is nearest to its own, as in the pipeline; with ``given_size`` to one in proportion, and with 0 it
keeps its own (``_auto_resize=False``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pixel_unshuffle

from mmgrpo.runtime.devices import put
from mmgrpo.types import Prompt
from pipelines import require, tiny_text
from pipelines.conditions import mute_summary_warnings, refuse_cut
from pipelines.pretrained import locate, read_network, read_pipeline
from pipelines.training import PLAIN, Training, freeze
from pipelines.visual import tiny_parts
from pipelines.visual.conditioning_image import by_size, optional_image, whole_tokens
from pipelines.visual.flow import (
    TRANSFORMER,
    Architecture,
    FlowModel,
    flow_model,
    latents_of_pixels,
    pixels_of_latents,
    shifted_spacing,
)
from pipelines.visual.options import FluxOptions, KontextOptions
from pipelines.visual.pipeline import Call, Pipeline
from pipelines.visual.sizes import Sample, Sides, latent_size

LORA_TARGETS = tuple(
    f"attn.{name}"
    for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
"""Attention of the double-stream blocks, and queries, keys and values of the single-stream ones."""

PREFERRED = 1024
"""Side of the square among the sizes that Kontext prefers for a given image."""


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
        "pooled_projections": torch.empty(1, config["pooled_projection_dim"]),
        "timestep": torch.empty(1),
        "guidance": torch.empty(1) if config["guidance_embeds"] else None,
        "img_ids": torch.empty(tokens, 3),
        "txt_ids": torch.empty(sample.words, 3),
    }


def check_words(pipeline: Any, prompt: Prompt, most: int) -> None:
    """T5 must read the whole prompt, of at most ``most`` tokens."""
    refuse_cut(prompt, pipeline.tokenizer_2, most, "T5")


@dataclass(frozen=True)
class Flux(Architecture):
    """Text encoders and VAE of a checkpoint, and the packing of latents."""

    pipeline: Any
    max_sequence_length: int
    guidance: float
    device: torch.device
    size: tuple[int, int]
    """Height and width of latents."""

    def check(self, prompt: Prompt) -> None:
        """T5 must read the whole prompt. CLIP, whose part is a summary, reads 77 tokens of it."""
        check_words(self.pipeline, prompt, self.max_sequence_length)

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states of T5 and the pooled vector of CLIP."""
        return self.words(prompt)

    def words(self, prompt: Prompt) -> tuple[Tensor, Tensor]:
        """Hidden states of T5 and the pooled vector of CLIP, as in diffusers."""
        with mute_summary_warnings(self.pipeline):
            hidden, pooled, _ = self.pipeline.encode_prompt(
                prompt=prompt.text, device=self.device, max_sequence_length=self.max_sequence_length
            )
        return hidden[0], pooled[0]

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction for unpacked latents."""
        return self.predict_first(network, [x], time, *conditioning)

    def predict_first(
        self, network: Any, images: Sequence[Tensor], time: Tensor, hidden: Tensor, pooled: Tensor
    ) -> Tensor:
        """The prediction for the first of several images, the others of which are given and follow in the
        sequence; the number of an image is its first position."""
        x, (height, width) = images[0], self.size
        shapes = [image.shape[2:] for image in images]
        guided = network.config.guidance_embeds
        (predicted,) = network(
            hidden_states=torch.cat([pack(image.to(x.dtype)) for image in images], dim=1),
            # Bit for bit as in the pipeline, which divides the scheduler's time of 1000 sigma again.
            timestep=time * 1000 / 1000,
            guidance=torch.full((len(x),), self.guidance, device=x.device) if guided else None,
            pooled_projections=pooled,
            encoder_hidden_states=hidden,
            txt_ids=torch.zeros(hidden.shape[1], 3, device=x.device),
            img_ids=put(torch.cat([places(h // 2, w // 2, i) for i, (h, w) in enumerate(shapes)]), x.device),
            return_dict=False,
        )
        return unpack(predicted[:, : height * width // 4], height, width)

    def pixels(self, latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N 3 H W"]:
        return pixels_of_latents(self.pipeline.vae, latents)

    def encode_pixels(self, pixels: Float[Tensor, "N 3 H W"]) -> Float[Tensor, "N c h w"]:
        return latents_of_pixels(self.pipeline.vae, pixels)

    def spacing(self, scheduler: Any, steps: int) -> dict[str, Any]:
        """Evenly spaced levels from 1 to 1 / steps, shifted according to the number of image tokens."""
        shifted = shifted_spacing(scheduler, steps, self.size[0] * self.size[1] // 4)
        flow_sigmas = scheduler.config.get("use_flow_sigmas")
        return {"num_inference_steps": steps, "mu": shifted["mu"]} if flow_sigmas else shifted


@dataclass(frozen=True)
class Kontext(Flux):
    """FLUX.1 with a given image."""

    given_size: int
    """That of the options."""
    takes_images: ClassVar[bool] = True

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states, pooled vector, packed latents of the given image, their rows and columns."""
        none = torch.zeros(0, 4 * self.pipeline.vae.config.latent_channels, device=self.device)
        return *self.words(prompt), *optional_image(prompt, "flux_kontext", none, self.resize, self.tokens_of)

    def resize(self, image: Any) -> Float[Tensor, "1 3 H W"]:
        """An image in the size in which the network reads it."""
        from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

        processor, unit = self.pipeline.image_processor, 2 * self.pipeline.vae_scale_factor
        height, width = processor.get_default_height_width(image)
        if self.given_size:
            ratio = width / max(1, height)
            _, width, height = min((abs(ratio - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
            height, width = (side * self.given_size // PREFERRED for side in (height, width))
        return processor.preprocess(image, *whole_tokens(image, height, width, unit))

    def tokens_of(self, pixels: Float[Tensor, "1 3 H W"]) -> Float[Tensor, "1 c h w"]:
        """Scaled latents of pixels in [-1, 1], the mode of their distribution, 2 x 2 of them as one token."""
        vae = self.pipeline.vae
        latents = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.mode().float()
        return pixel_unshuffle((latents - vae.config.shift_factor) * vae.config.scaling_factor, 2)

    def velocity(self, network: Any, x: Tensor, time: Tensor, conditioning: tuple[Tensor, ...]) -> Tensor:
        """The transformer's prediction; rows with a given image read it after their own tokens."""
        hidden, pooled, given, sizes = conditioning

        def predict(here: Tensor, rows: Tensor, height: int, width: int) -> Tensor:
            images = [x[rows]]
            if height:
                images.append(unpack(given[rows, : height * width], 2 * height, 2 * width))
            return self.predict_first(network, images, time[rows], hidden[rows], pooled[rows])

        return by_size(sizes, x.device, predict)


def pack(latents: Float[Tensor, "N c h w"]) -> Float[Tensor, "N tokens values"]:
    """2 x 2 neighbours as one token: [c, h, w] to [h/2 * w/2, 4 c]."""
    n, c, h, w = latents.shape
    return latents.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, h * w // 4, 4 * c)


def unpack(tokens: Float[Tensor, "N tokens values"], height: int, width: int) -> Float[Tensor, "N c h w"]:
    """The inverse of ``pack``."""
    n, _, values = tokens.shape
    blocks = tokens.view(n, height // 2, width // 2, values // 4, 2, 2)
    return blocks.permute(0, 3, 1, 4, 2, 5).reshape(n, values // 4, height, width)


def places(height: int, width: int, image: int = 0) -> Float[Tensor, "tokens 3"]:
    """(image, row, column) of every token: 0 for the image that is made."""
    grid = torch.zeros(height, width, 3)
    grid[..., 0] = image
    grid[..., 1] += torch.arange(height)[:, None]
    grid[..., 2] += torch.arange(width)[None]
    return grid.view(-1, 3)


def load(options: FluxOptions, training: Training = PLAIN) -> FlowModel:
    """Load a FLUX.1 model, of ``KontextOptions`` a Kontext, for training; text encoders and VAE are frozen.

    Text encoders are stored in the precision of computation, the VAE in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FluxKontextPipeline, FluxPipeline, FluxTransformer2DModel

    given_size = options.given_size if isinstance(options, KontextOptions) else None
    source = locate(options.path, "black-forest-labs/FLUX.1-dev", "model_index.json")
    device = torch.device(training.device)
    network = read_network(FluxTransformer2DModel, source, training, TRANSFORMER)
    kind = FluxPipeline if given_size is None else FluxKontextPipeline
    pipeline = read_pipeline(kind, source, training, transformer=network)
    vae = pipeline.vae
    freeze((vae, pipeline.text_encoder, pipeline.text_encoder_2), device)
    factor = pipeline.vae_scale_factor

    def sized(height: int, width: int, frames: int) -> tuple[Flux, tuple[int, ...]]:
        default = pipeline.default_sample_size * factor
        size = latent_size(height, width, sides_of(network.config, factor), factor=factor, default=default)
        parts = pipeline, options.max_sequence_length, options.guidance, device, size
        architecture = Flux(*parts) if given_size is None else Kontext(*parts, given_size)
        return architecture, (network.config.in_channels // 4, *size)

    size = (options.height, options.width, 0)
    return flow_model(network, pipeline.scheduler, training, LORA_TARGETS, sized, size, options.true_cfg_scale)


def tiny(folder: str | Path = "", seed: int = 0, guided: bool = True, pipeline: str = "FluxPipeline") -> Path:
    """Write a complete folder (by default a new temporary one) of a class of pipelines and return it.

    The architecture of FLUX.1 dev (of schnell, unless ``guided``) with one block of each kind and width 32; latents of
    4 channels at half the resolution of the images.
    """
    require("visual", "diffusers", "transformers")
    import diffusers

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-flux-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        whole = getattr(diffusers, pipeline)(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                shift=3.0 if guided else 1.0, use_dynamic_shifting=guided
            ),
            transformer=diffusers.FluxTransformer2DModel(
                in_channels=16,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=32,
                pooled_projection_dim=16,
                guidance_embeds=guided,
                axes_dims_rope=(4, 4, 8),
            ),
            vae=tiny_parts.vae(4, scaling_factor=0.3611, shift_factor=0.1159),
            text_encoder=tiny_parts.clip(projection=False),
            tokenizer=tiny_parts.clip_tokenizer(),
            text_encoder_2=tiny_text.t5(),
            tokenizer_2=tiny_text.t5_tokenizer(),
        )
    whole.save_pretrained(folder)
    return folder


def whole_images(pipeline: Any, call: Call) -> Mapping[str, Any]:
    """The arguments by which Kontext's pipeline leaves the size to the caller; that of FLUX.1 has neither."""
    (height, width), given = call.size, call.options.get("given_size")
    return {"max_area": height * width, "_auto_resize": bool(given)}


PIPELINE = Pipeline(noise=pack, given_sizes=(0, 1024), arguments=whole_images)
