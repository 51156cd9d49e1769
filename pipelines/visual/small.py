"""Small models: a network in pixel space with a word encoder, complete in a folder of a few megabytes.

Its parts are ``transformer/``, ``words/`` (``WordEncoder``) and ``scheduler/``. There is no VAE: the latents are the
pixels themselves, in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Prompt
from pipelines.pretrained import reading
from pipelines.training import freeze
from pipelines.visual.flow import Architecture
from pipelines.visual.words import WordEncoder


@dataclass(frozen=True)
class SmallModel(Architecture):
    """What small models of all families share. All parts are saved, so the folder loads by itself."""

    words: WordEncoder
    scheduler: Any
    pipeline: ClassVar[None] = None

    def check(self, prompt: Prompt) -> None:
        """Every word must be in the vocabulary."""
        self.words.tokenize([prompt.text])

    def encode(self, prompt: Prompt) -> tuple[Tensor, ...]:
        """Hidden states and pooled vector of one prompt from word vectors."""
        hidden, pooled = self.words(self.words.tokenize([prompt.text]))
        return hidden[0], pooled[0]

    def pixels(self, latents: Float[Tensor, "N 3 *frames h w"]) -> Float[Tensor, "N 3 *frames h w"]:
        return (latents.float() + 1) / 2

    def encode_pixels(self, pixels: Float[Tensor, "N *frames 3 h w"]) -> Float[Tensor, "N *frames 3 h w"]:
        return 2 * pixels.float() - 1

    def save(self, folder: Path, network: Any) -> None:
        super().save(folder, network)
        self.words.save(folder / "words")
        self.scheduler.save_pretrained(folder / "scheduler")


def is_small(source: str) -> bool:
    """True for the folder of a small model."""
    return (Path(source) / "words").is_dir()


def read_words(source: str, device: torch.device) -> WordEncoder:
    """The frozen word encoder of a small model."""
    with reading(source, "words"):
        words = WordEncoder.load(Path(source) / "words")
    freeze([words], device)
    return words
