"""aMUSEd (Patil et al. 2024, arXiv:2401.01808): masked image tokens, revealed in a few passes of a small transformer.

A pass reads the image's codes, with masks where there are none yet, CLIP's states of the prompt, and the micro
conditions (width, height, crop, aesthetic score 6) of diffusers' pipeline. How many codes a pass reveals is the
checkpoint's masking schedule; which ones is drawn beforehand, where the pipeline takes the most confident
(``mmgrpo.policies.parallel_tokens`` says why). With guidance g, the pipeline's guidance_scale,

    logits = logits_negative + g (logits_prompt - logits_negative)

are the policy's, drawn and scored alike.

    load(options)  an ordinary folder or hub id, amused/amused-512; or a small one, whose prompts ``words/`` reads
                   (``pipelines.visual.words``) and whose images ``patches/`` makes (``pipelines.visual.patches``)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.policies.parallel_tokens import Conditions
from mmgrpo.runtime.devices import autocast
from mmgrpo.types import Image, Output, Prompt, Reference
from pipelines import require
from pipelines.conditions import Encoding, Encodings, negative_of, refuse_cut, refuse_media, stack_rows
from pipelines.lora import lora_weights
from pipelines.pretrained import check_pipeline, locate, read_encoders, read_json, read_network, read_part, reading
from pipelines.training import PLAIN, Training, freeze, make_trainable
from pipelines.visual.flow import TRANSFORMER
from pipelines.visual.options import AmusedOptions
from pipelines.visual.patches import PATCHES, PatchTokenizer
from pipelines.visual.sizes import Sides, latent_size
from pipelines.visual.small import is_small, read_words
from pipelines.visual.words import WordEncoder

__all__ = ["LORA_TARGETS", "Amused", "load"]

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
"""Projections of self- and cross-attention, as in diffusers' training script of aMUSEd."""

EXAMPLE = "amused/amused-512"
"""A hub id, for errors."""

PASSES = 12
"""The pipeline's number of passes."""

AESTHETIC = 6.0
"""The pipeline's micro condition of the aesthetic score."""

MASKING = {"cosine": lambda ratio: torch.cos(ratio * math.pi / 2), "linear": lambda ratio: 1 - ratio}
"""The share of masks that is left when a share of the passes is done, by the scheduler's ``masking_schedule``."""


def reveal_counts(places: int, passes: int, schedule: str = "cosine") -> list[int]:
    """How many of ``places`` each of ``passes`` reveals, all together: ``AmusedScheduler``'s numbers, in its precision.

    Of 64 and 6 by the cosine: 3, 6, 10, 14, 15, 16.
    """
    left = [places]
    for number in range(1, passes):
        share = MASKING[schedule](torch.tensor(number) / passes)
        left.append(max(1, min(left[-1] - 1, int((places * share).floor()))))
    return [before - after for before, after in zip(left, [*left[1:], 0], strict=True)]


def sides_of(config: Mapping[str, Any], factor: int) -> Sides:
    """The sides of images that its network takes, with ``factor`` pixels per side of a latent position."""
    return Sides((1 + bool(config["downsample"])) * factor)


def check_words(pipeline: Any, prompt: Prompt, most: int = 0) -> None:
    """CLIP must read the whole prompt; ``most`` is its own."""
    refuse_cut(prompt, pipeline.tokenizer, pipeline.tokenizer.model_max_length, "CLIP", advice="")


@dataclass(frozen=True)
class Published:
    """CLIP and the VQ-VAE of a checkpoint, which are not trained."""

    tokenizer: Any
    text_encoder: Any
    vqvae: Any

    @property
    def scale(self) -> int:
        """Pixels per side of a code."""
        return 2 ** (len(self.vqvae.config.block_out_channels) - 1)

    def networks(self) -> dict[str, nn.Module]:
        """Text encoder and VQ-VAE by name."""
        return {"text_encoder": self.text_encoder, "vqvae": self.vqvae}

    def check(self, prompt: Prompt) -> None:
        """ValueError for a prompt of which CLIP would cut something."""
        check_words(self, prompt)

    def encode(self, text: str) -> Encoding:
        """CLIP's states before the last layer, and its projection."""
        ids = self.tokenizer(
            [text], return_tensors="pt", padding="max_length", max_length=self.tokenizer.model_max_length
        ).input_ids
        encoded = self.text_encoder(ids.to(self.text_encoder.device), output_hidden_states=True)
        return encoded.hidden_states[-2][0].float(), encoded.text_embeds[0].float()

    def pixels(self, codes: Int[Tensor, "N h w"]) -> Float[Tensor, "N 3 height width"]:
        """Images in [0, 1], about."""
        shape = (*codes.shape, self.vqvae.config.latent_channels)
        return self.vqvae.decode(codes, force_not_quantize=True, shape=shape).sample.float()

    def save(self, folder: Path) -> None:
        """Nothing: they are those of the checkpoint."""


@dataclass(frozen=True)
class Small:
    """What takes their place in a small model; saved with it, so its folder loads by itself."""

    words: WordEncoder
    patches: PatchTokenizer

    @property
    def scale(self) -> int:
        """Pixels per side of a code."""
        return self.patches.size // self.patches.side

    def networks(self) -> dict[str, nn.Module]:
        """Both by name."""
        return {"words": self.words, "patches": self.patches}

    def check(self, prompt: Prompt) -> None:
        """ValueError for a word outside the vocabulary."""
        self.words.tokenize([prompt.text])

    def encode(self, text: str) -> Encoding:
        """States of words, and their pooled vector."""
        hidden, pooled = self.words(self.words.tokenize([text]))
        return hidden[0], pooled[0]

    def pixels(self, codes: Int[Tensor, "N h w"]) -> Float[Tensor, "N 3 height width"]:
        """Images in [0, 1], about."""
        return (self.patches.decode(codes.flatten(1)) + 1) / 2

    def save(self, folder: Path) -> None:
        """Write both."""
        self.words.save(folder / "words")
        self.patches.save(folder / PATCHES)


@dataclass
class Amused:
    """A masked transformer as the model of a policy that draws tokens several at a time; ``load`` returns one."""

    network: nn.Module
    parts: Published | Small
    shape: tuple[int, int]
    """Height and width in codes."""
    passes: int
    schedule: str
    training: Training
    reference: Reference
    guidance: float = 1.0
    negative_prompt: str = ""
    decode_batch_size: int = 8
    causal: bool = False
    independent: bool = False
    """Whether each place draws its pass by itself, with the shares of the schedule as chances."""
    encodings: Encodings = field(init=False)

    def __post_init__(self) -> None:
        self.device = torch.device(self.training.device)
        self.encodings = Encodings(self._encode, self.device)
        self.mask = int(self.network.config.vocab_size) - 1  # type: ignore[union-attr,arg-type]
        places = self.shape[0] * self.shape[1]
        if self.passes > places:
            raise ValueError(
                f"steps: got {self.passes}, expected at most {places}, the codes of an image, since each reveals one "
                "or more"
            )
        counts = torch.tensor(reveal_counts(places, self.passes, self.schedule))
        self.numbers = torch.arange(self.passes).repeat_interleave(counts)

    @property
    def evaluations_per_row(self) -> int:
        """Two with guidance."""
        return 1 if self.guidance == 1 else 2

    def variant(self, passes: int) -> Amused:
        """The same model with another number of passes."""
        other = replace(self, passes=passes)
        other.encodings = self.encodings
        return other

    def order(self, generator: torch.Generator) -> Int[Tensor, "T"]:
        """Places in a random order, so many in a pass as the checkpoint's schedule reveals, or on average."""
        if self.independent:
            left = MASKING[self.schedule](torch.arange(1, self.passes) / self.passes)
            return (torch.rand(len(self.numbers), 1, generator=generator) < left).sum(1)
        return torch.empty_like(self.numbers).scatter_(
            0, torch.randperm(len(self.numbers), generator=generator), self.numbers
        )

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> Conditions:
        """CLIP's states and projections of prompts and of their negative prompts."""
        hidden, pooled = stack_rows(self.encodings.rows(prompts))
        if self.guidance == 1:
            return {"hidden": hidden, "pooled": pooled}
        negatives = [negative_of(prompt, self.negative_prompt) for prompt in prompts]
        negative, negative_pooled = stack_rows(self.encodings.rows(negatives))
        return {"hidden": hidden, "pooled": pooled, "negative": negative, "negative_pooled": negative_pooled}

    def logits(
        self,
        network: nn.Module,
        conditions: Conditions,
        tokens: Int[Tensor, "N T"],
        order: Int[Tensor, "N T"],
        number: Int[Tensor, "N"],
    ) -> Float[Tensor, "N T codes"]:
        """Logits of all places, of which only those of earlier passes are read."""
        codes = torch.where(order < number[:, None], tokens, self.mask)
        hidden, pooled = conditions["hidden"], conditions["pooled"]
        if self.guidance != 1:
            codes = torch.cat([codes, codes])
            hidden = torch.cat([conditions["negative"], hidden])
            pooled = torch.cat([conditions["negative_pooled"], pooled])
        height, width = self.shape
        sizes = [width * self.parts.scale, height * self.parts.scale, 0, 0, AESTHETIC]
        with autocast(self.training.compute_dtype, codes.device):
            logits = network(
                codes.view(-1, height, width),
                encoder_hidden_states=hidden,
                pooled_text_emb=pooled,
                micro_conds=torch.tensor([sizes], device=codes.device, dtype=hidden.dtype).expand(len(codes), -1),
            )
        logits = logits.float().flatten(2).transpose(1, 2)
        if self.guidance == 1:
            return logits
        negative, positive = logits.chunk(2)
        return negative + self.guidance * (positive - negative)

    @torch.no_grad()
    def render(self, prompts: Sequence[Prompt], tokens: Int[Tensor, "N T"]) -> list[Output]:
        """Images of codes, ``decode_batch_size`` at a time."""
        pixels = []
        for codes in tokens.split(self.decode_batch_size):
            pixels += list(self.parts.pixels(codes.view(-1, *self.shape)).clamp(0, 1).cpu())
        return [Image(image) for image in pixels]

    def check(self, prompt: Prompt) -> None:
        """Raise ValueError for a prompt, or a negative prompt that is read, that is not read whole."""
        self.parts.check(prompt)
        if self.guidance != 1:
            try:
                self.parts.check(negative_of(prompt, self.negative_prompt))
            except ValueError as error:
                raise ValueError(f"the negative prompt of prompt '{prompt.id}': {error}") from error

    def frozen_parts(self) -> dict[str, nn.Module]:
        """What reads prompts and what makes images, by name."""
        return self.parts.networks()

    def save(self, folder: Path, network: nn.Module) -> None:
        """Write adapters as diffusers names them, or the whole network into ``transformer/``."""
        from accelerate.utils import extract_model_from_parallel

        network = extract_model_from_parallel(network)
        if not self.training.adapters:
            network.save_pretrained(folder / TRANSFORMER)  # type: ignore[operator]
            self.parts.save(folder)
            return
        from diffusers import StableDiffusion3Pipeline as Writer  # aMUSEd's pipeline has no writer of its own

        weights, config = lora_weights(network)
        Writer.save_lora_weights(folder, transformer_lora_layers=weights, transformer_lora_adapter_metadata=config)

    def _encode(self, prompt: Prompt) -> Encoding:
        refuse_media(prompt)
        self.parts.check(prompt)
        return self.parts.encode(prompt.text)


def load(options: AmusedOptions, training: Training = PLAIN) -> Amused:
    """Load an aMUSEd pipeline for training; text encoder and VQ-VAE are frozen, the latter in fp32.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes, settings or checkpoints.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import UVit2DModel

    source = locate(options.path, EXAMPLE, "model_index.json", "words")
    check_pipeline(source)
    network = read_network(UVit2DModel, source, training, TRANSFORMER)
    parts = read_small(source, training) if is_small(source) else read_published(source, training)
    scheduler = read_json(source, "scheduler/scheduler_config.json") or {}
    schedule = scheduler.get("masking_schedule", "cosine")
    if schedule not in MASKING:
        raise ValueError(
            f"'{source}': scheduler/scheduler_config.json: masking_schedule: got {schedule!r}, expected "
            f"{' or '.join(MASKING)}"
        )
    sides, default = sides_of(network.config, parts.scale), parts.scale * network.config.sample_size
    sides = sides._replace(unit=parts.patches.size, most=parts.patches.size) if isinstance(parts, Small) else sides
    shape = latent_size(options.height, options.width, sides, factor=parts.scale, default=default)
    return Amused(
        network,
        parts,
        shape,
        min(PASSES, math.prod(shape)),
        schedule,
        training,
        make_trainable(network, training, LORA_TARGETS),
        guidance=float(options.guidance),
        negative_prompt=options.negative_prompt,
        decode_batch_size=options.decode_batch_size,
    )


def read_published(source: str, training: Training) -> Published:
    """CLIP in the precision of computation, the VQ-VAE in fp32."""
    from diffusers import VQModel
    from transformers import CLIPTokenizer

    frozen = Training(device=training.device, allow_pickle=training.allow_pickle)
    vqvae = read_network(VQModel, source, frozen, "vqvae")
    index = read_json(source, "model_index.json") or {}
    text_encoder = read_encoders(source, index, ("text_encoder",), training)["text_encoder"]
    freeze((vqvae, text_encoder), training.device)
    return Published(read_part(CLIPTokenizer, source, subfolder="tokenizer"), text_encoder, vqvae)


def read_small(source: str, training: Training) -> Small:
    """Words and patches of a small model."""
    device = torch.device(training.device)
    with reading(source, PATCHES):
        patches = PatchTokenizer.load(Path(source) / PATCHES)
    freeze((patches,), device)
    return Small(read_words(source, device), patches)
