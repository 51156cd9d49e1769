"""CLAP (arXiv:2211.06687): the cosine of a recording and its text, by ``ClapModel`` of transformers."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import normalize

from mmgrpo.scoring.manifest import reward
from mmgrpo.types import Audio, Output, Prompt
from reward_models.checkpoints import read_whole
from reward_models.speech.audio import import_library

WEIGHTS = "laion/larger_clap_general"


@dataclass(frozen=True)
class Clap:
    """The frozen network with its tokenizer and the extractor of its spectrograms."""

    network: Any
    tokenizer: Any
    extractor: Any
    device: torch.device

    @property
    def width(self) -> int:
        """Of an embedding."""
        return self.network.config.projection_dim

    @torch.no_grad()
    def cosine(self, text: str, sound: Audio) -> float:
        """The cosine of the projections of both."""
        heard = self.extractor(
            self.mono(sound), sampling_rate=self.extractor.sampling_rate, truncation="fusion", return_tensors="pt"
        )
        read = self.tokenizer(text, truncation=True, return_tensors="pt")
        both = self.network(**{name: value.to(self.device) for name, value in (*heard.items(), *read.items())})
        return float(torch.nn.functional.cosine_similarity(both.audio_embeds, both.text_embeds)[0])

    @torch.no_grad()
    def of_sound(self, sound: Audio) -> Float[Tensor, " width"]:
        """The mean over parts of ten seconds of the projection of each, of length 1: no part is chosen at random, as
        the extractor does for a longer recording."""
        longest = round(self.extractor.nb_max_samples)
        samples = self.mono(sound)
        parts = [samples[start : start + longest] for start in range(0, len(samples), longest)]
        heard = [
            self.extractor(part, sampling_rate=self.extractor.sampling_rate, return_tensors="pt").to(self.device)
            for part in parts
        ]
        rows = torch.cat([self.network.get_audio_features(**part).pooler_output for part in heard])
        return normalize(normalize(rows).mean(0), dim=0).cpu()

    @torch.no_grad()
    def of_text(self, text: str) -> Float[Tensor, " width"]:
        """The projection of a text, of length 1."""
        read = self.tokenizer(text, truncation=True, return_tensors="pt").to(self.device)
        return normalize(self.network.get_text_features(**read).pooler_output[0], dim=0).cpu()

    def mono(self, sound: Audio) -> np.ndarray:
        """The mean of the channels at the model's rate."""
        samples = sound.samples.mean(0).numpy()
        if sound.rate == self.extractor.sampling_rate:
            return samples
        return import_library("soxr").resample(samples, sound.rate, self.extractor.sampling_rate)


@reward(
    "Audio",
    range=(-1, 1),
    scale="cosine",
    reads=("text",),
    packages=("transformers", "soxr"),
    extra="speech",
    weights={"laion/larger_clap_general": ("config.json", "preprocessor_config.json")},
    licence="Apache-2.0",
    source="CLAP, arXiv:2211.06687",
)
def clap(
    prompts: Sequence[Prompt], outputs: Sequence[Output], weights: str = WEIGHTS, device: str = "cpu"
) -> list[float]:
    """The cosine of each recording with the text of its prompt; NaN for a recording that is empty, silent or not
    finite.

    ``weights`` is a folder or hub id of ``transformers.ClapModel``. Channels are averaged, and recordings of more than
    ten seconds are seen whole and in parts (the model's own "fusion").
    """
    model = load(weights, device)
    values = []
    for prompt, output in zip(prompts, outputs, strict=True):
        if not isinstance(output, Audio):
            raise TypeError(f"clap: got an output of kind {type(output).__name__}, expected an Audio")
        values.append(model.cosine(prompt.text, output) if audible(output) else math.nan)
    return values


def sounds(outputs: Sequence[Output], weights: str = WEIGHTS, device: str = "cpu") -> Float[Tensor, "n width"]:
    """Embeddings of recordings for rewards of sets, of length 1; NaN for a recording that is empty, silent or not
    finite."""
    model, rows = load(weights, device), []
    for output in outputs:
        if not isinstance(output, Audio):
            raise TypeError(f"embed: got an output of kind {type(output).__name__}, expected an Audio for clap")
        rows.append(model.of_sound(output) if audible(output) else torch.full((model.width,), math.nan))
    return torch.stack(rows)


def texts(words: Sequence[str], weights: str = WEIGHTS, device: str = "cpu") -> Float[Tensor, "n width"]:
    """Embeddings of texts in the same space, of length 1."""
    return torch.stack([load(weights, device).of_text(text) for text in words])


def audible(sound: Audio) -> bool:
    """Whether there is something to hear."""
    samples = sound.samples
    return bool(samples.isfinite().all()) and bool(samples.any())


@functools.cache
def load(weights: str, device: str) -> Clap:
    """The model of a folder or hub id, of which every weight must be there."""
    transformers = import_library("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(weights, trust_remote_code=False)
        extractor = transformers.ClapFeatureExtractor.from_pretrained(weights)
        network = read_whole(transformers.ClapModel, weights, {}, "weights")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"clap: {weights} cannot be loaded ({str(error).strip().splitlines()[0]}); expected a folder or hub id of "
            "a ClapModel with its tokenizer"
        ) from error
    return Clap(network.eval().requires_grad_(False).to(device), tokenizer, extractor, torch.device(device))
