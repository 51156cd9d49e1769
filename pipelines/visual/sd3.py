"""Stable Diffusion 3 and 3.5 (Esser et al. 2024, arXiv:2403.03206), and small models of their architecture.

Two kinds of folder load. An ordinary diffusers ``StableDiffusion3Pipeline`` folder or hub id: two CLIP
encoders and T5, pictures through a VAE. And a small one of three parts: ``transformer/`` (the same
``SD3Transformer2DModel``), ``words/`` (``WordEncoder``) and ``scheduler/``, whose latents are the pixels
themselves, in [-1, 1].

Conventions: x_sigma = (1 - sigma) x0 + sigma eps, the network predicts v = eps - x0 and is given
1000 sigma as a float. With guidance g (Ho & Salimans 2022, arXiv:2207.12598, in diffusers' scaling)

    v = v_empty + g (v_prompt - v_empty)

where v_empty is the prediction for the empty prompt; both come from one doubled batch, in rollout and
training alike, so that the likelihood is that of the guided policy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.types import Image, Prompt, to_image
from pipelines import require
from pipelines.lora import adapters_off, add_lora
from pipelines.pretrained import PLAIN, Training, no_reference
from pipelines.visual import sd3_parts as parts
from pipelines.visual.sd3_tiny import tiny, tiny_words
from pipelines.visual.words import WordEncoder

if TYPE_CHECKING:
    from mmgrpo.diffusion.schedules import Grid

__all__ = ["LORA_TARGETS", "Conditioning", "Sd3Family", "load", "tiny", "tiny_words"]

LORA_TARGETS = tuple(
    f"attn.{name}"
    for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
)
"""The joint attention's projections, as Flow-GRPO trains them (Liu et al. 2025, arXiv:2505.05470)."""


@dataclass(frozen=True)
class Conditioning:
    """What the network is told about the prompts: one row a prompt."""

    hidden: Float[Tensor, "N length width"]
    pooled: Float[Tensor, "N pooled"]

    def take(self, index: Int[Tensor, "M"]) -> Conditioning:
        """Rows by number, repeated as asked."""
        return Conditioning(self.hidden[index], self.pooled[index])


@dataclass
class Sd3Family:
    """The answers of a Stable Diffusion 3 model to a denoising policy's questions; ``load`` makes one."""

    network: nn.Module
    """The trained ``SD3Transformer2DModel``, adapters inside when there are any."""
    guidance: float
    """g of the formula above; 1 is no guidance and one evaluation instead of two."""
    shape: tuple[int, int, int]
    """Channels, height and width of one latent."""
    shift: float
    """Time shift of the checkpoint's scheduler."""
    dtype: torch.dtype
    """What the network computes in; predictions come back in fp32."""
    device: torch.device
    encoder: Callable[[str], tuple[Tensor, Tensor]]
    """One text to its hidden states and pooled vector."""
    decoder: Callable[[Tensor], Tensor]
    """Latents to pixels in [0, 1]."""
    reference: Callable[[], AbstractContextManager[nn.Module]]
    """Context manager that gives the network as it was before training."""
    saver: Callable[[Path, nn.Module], None]
    """Writes what is trained of an unwrapped network."""
    decode_batch_size: int = 8
    """Memory limit of decoding, in pictures."""
    encodings_kept: int = 1024
    """Memory limit of the cache of encoded prompts; the oldest go first."""
    encodings: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    prediction: str = "flow"
    """The network predicts the velocity eps - x0."""

    @property
    def evaluations_per_row(self) -> int:
        return 1 if self.guidance == 1 else 2

    def latent_shape(self) -> tuple[int, ...]:
        """Channels, height and width of one sample."""
        return self.shape

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditioning:
        """One row a prompt, on the device.

        Texts are encoded one at a time, so that an encoding depends on its text alone and neither on its
        neighbours nor on how prompts are spread over ranks.
        """
        rows = {}
        for text in dict.fromkeys(prompt.text for prompt in prompts):
            rows[text] = self.encodings[text] if text in self.encodings else self.encoder(text)
        self.encodings.update(rows)
        while len(self.encodings) > self.encodings_kept:
            del self.encodings[next(iter(self.encodings))]
        hidden, pooled = zip(*(rows[prompt.text] for prompt in prompts), strict=True)
        return Conditioning(torch.stack(hidden), torch.stack(pooled))

    def forget_encoders(self, prompts: Iterable[Prompt]) -> None:
        """Encode these prompts and the empty one, keep that, and free the memory of the text encoders."""
        needed = {prompt.text: prompt for prompt in (Prompt(""), *prompts)}
        self.encodings_kept = len(self.encodings) + len(needed)
        self.encode(list(needed.values()))
        self.encoder = parts.forgotten

    def predict(
        self,
        network: nn.Module,
        x: Float[Tensor, "N c h w"],
        time: Float[Tensor, " N"],
        conditioning: Conditioning,
    ) -> Float[Tensor, "N c h w"]:
        """The (guided) velocity v at sigma = ``time`` in [0, 1], in fp32."""
        given = conditioning
        if self.guidance != 1:
            nothing = self.encode([Prompt("")]).take(torch.zeros(len(x), dtype=torch.long, device=self.device))
            given = Conditioning(
                torch.cat([nothing.hidden, conditioning.hidden]),
                torch.cat([nothing.pooled, conditioning.pooled]),
            )
            x, time = torch.cat([x, x]), torch.cat([time, time])
        with self._computing(self.dtype):
            (velocity,) = network(
                hidden_states=x,
                timestep=time * 1000,
                encoder_hidden_states=given.hidden,
                pooled_projections=given.pooled,
                return_dict=False,
            )
        velocity = velocity.float()
        if self.guidance == 1:
            return velocity
        empty, prompted = velocity.chunk(2)
        return empty + self.guidance * (prompted - empty)

    @torch.no_grad()
    def decode(self, latents: Float[Tensor, "N c h w"]) -> list[Image]:
        """Pictures of finished latents, a few at a time."""
        with self._computing(torch.float32):
            pieces = [self.decoder(piece) for piece in latents.to(self.device).split(self.decode_batch_size)]
        return [to_image(pixels) for piece in pieces for pixels in piece]

    def grid(self, steps: int) -> Grid:
        """The checkpoint's sigma schedule with ``steps`` steps, from 1 to 0."""
        from mmgrpo.diffusion.schedules import flow_grid

        return flow_grid(steps, self.shift)

    def save(self, folder: Path | str, network: nn.Module) -> None:
        """Adapters as ``pytorch_lora_weights.safetensors``, or a full network as ``transformer/``.

        Both are diffusers' own formats. A model with ``words/`` is saved whole, so that it loads by itself.
        """
        from accelerate.utils import extract_model_from_parallel

        Path(folder).mkdir(parents=True, exist_ok=True)
        self.saver(Path(folder), extract_model_from_parallel(network))

    def _computing(self, dtype: torch.dtype) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32)


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    height: int,
    width: int,
    guidance: float = 1.0,
    max_sequence_length: int = 256,
) -> Sd3Family:
    """Read a Stable Diffusion 3 model for training; text encoders and VAE are frozen.

    ``path`` is a folder or a hub id. Text encoders are stored in what is computed in, the VAE in fp32. ``height`` and
    ``width`` in pixels; T5 reads ``max_sequence_length`` tokens.

    Raises FileNotFoundError for a folder that is no model, ValueError for sizes or settings it cannot do.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FlowMatchEulerDiscreteScheduler

    if guidance < 1:
        raise ValueError(f"guidance: came {guidance}, wanted 1 (none) or more")
    if training.lora_rank < 0:
        raise ValueError(f"lora_rank: came {training.lora_rank}, wanted 0 (train the whole network) or more")
    source, compute, place = parts.locate(path), training.compute, torch.device(training.device)
    network = parts.read_transformer(training.network_path or source, training.stored).to(place)
    scheduler: Any = FlowMatchEulerDiscreteScheduler.from_pretrained(str(source), subfolder="scheduler")
    saver: Callable[[Path, nn.Module], None]
    reference: Callable[[], AbstractContextManager[nn.Module]]

    if parts.has_words(source):
        words = WordEncoder.load(Path(source) / "words").to(place).requires_grad_(False)
        factor, encoder, decoder = 1, partial(parts.read_words, words), parts.pixels_of_signed
        saver = partial(parts.save_whole, words, scheduler)
    else:
        pipeline = parts.read_pipeline(source, network, compute, place)
        factor = pipeline.vae_scale_factor
        encoder = partial(parts.read_prompt, pipeline, max_sequence_length, place)
        decoder, saver = partial(parts.pixels_of_latents, pipeline.vae), parts.save_transformer
    shape = parts.latent_shape(network.config, height, width, factor)
    shift = parts.static_shift(scheduler.config, str(source))

    if str(training.lora_path):
        parts.continue_adapters(network, Path(training.lora_path), training.lora_rank)
    elif training.adapters:
        targets = training.lora_targets or LORA_TARGETS
        add_lora(network, training.lora_rank, training.lora_alpha, targets, training.lora_seed)
    if training.adapters:
        reference, saver = partial(adapters_off, network), parts.save_adapters
    elif training.keep_reference:
        reference = partial(nullcontext, copy.deepcopy(network).requires_grad_(False))
    else:
        reference = no_reference
    if training.gradient_checkpointing:
        network.enable_gradient_checkpointing()
    return Sd3Family(network, float(guidance), shape, shift, compute, place, encoder, decoder, reference, saver)
