"""Vocoders: the tokens of a speech codec to a recording. No gradient passes through them, and they are deterministic.

codec    a codec of transformers with as many codebooks as the model has codes of a frame: one (X-codec2 of Llasa,
         NeuCodec of NeuTTS, DAC of one codebook), or several (Higgs Audio's)
tones    a tone for every token, which can be read back exactly, and for several of a frame their mean; for tests
package.module:attribute   one of your own, e.g. around CosyVoice 2's flow and HiFT
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isfunction
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from mmgrpo.config.names import nearest
from mmgrpo.config.plugins import load_object, locate, made_of
from mmgrpo.scoring.manifest import find_in_cache
from mmgrpo.types import Audio, Prompt
from pipelines import pretrained, require
from pipelines.training import Training


@runtime_checkable
class Vocoder(Protocol):
    """The recording of speech tokens."""

    def size(self) -> int:
        """The number of its tokens, which are 0, 1, ..., size - 1."""
        ...

    def render(self, prompt: Prompt, codes: Int[Tensor, "*codebooks frames"]) -> Audio:
        """The recording of at least one frame, a token or one of each codebook; ``prompt`` may hold the recording of a
        voice. Equal codes of one prompt have equal recordings."""
        ...


class Codec:
    """A codec of transformers, whose number of codebooks must be that of the model's codes of a frame."""

    def __init__(self, network: Any, name: str, device: str | torch.device = "cpu", books: int = 1) -> None:
        config = network.config
        codebooks = getattr(config, "n_codebooks", None) or getattr(config, "num_quantizers", 1)
        if books == 1 != codebooks:
            raise ValueError(
                f"model.vocoder_path: '{name}': got a codec of {codebooks} codebooks, expected one, since a speech "
                "token is one code; name X-codec2, NeuCodec or another codec of one codebook"
            )
        if codebooks != books:
            raise ValueError(
                f"model.vocoder_path: '{name}': got a codec of {codebooks} codebooks, expected {books}, the codes of a "
                "frame of the model; name the model's own codec"
            )
        self.network = network.requires_grad_(False)
        self.device = torch.device(device)
        # NeuCodec reads one rate and writes another; Higgs Audio's has its own name of it.
        rates = (getattr(config, name, None) for name in ("output_sampling_rate", "sampling_rate", "sample_rate"))
        self.rate = int(next(filter(None, rates)))

    def size(self) -> int:
        """The size of the codebook, or the product of the levels of a scalar quantizer."""
        levels = getattr(self.network.config, "quantization_levels", None)
        return math.prod(levels) if levels else int(self.network.config.codebook_size)

    @torch.no_grad()
    def render(self, prompt: Prompt, codes: Int[Tensor, "*codebooks frames"]) -> Audio:
        """The codec's decoder; the prompt is not read."""
        rows = codes.to(self.device).view(1, -1, codes.shape[-1])
        values = self.network.decode(audio_codes=rows).audio_values
        return Audio(values.reshape(1, -1).float().cpu().clamp(-1, 1), self.rate)


class Tones:
    """Token k is a tone of 200 + 50 k Hz for 20 ms, so the spectrum of a frame has its peak at bin 4 + k."""

    rate, hop = 8_000, 160

    def size(self) -> int:
        """64: the highest tone has 3350 Hz."""
        return 64

    def render(self, prompt: Prompt, codes: Int[Tensor, "*codebooks frames"]) -> Audio:
        """One tone after the other; the prompt is not read."""
        time = torch.arange(self.hop) / self.rate
        rows = codes.cpu().view(-1, codes.shape[-1], 1)
        frames = torch.sin(2 * math.pi * (200 + 50 * rows) * time).mean(0)
        return Audio(0.5 * frames.reshape(1, -1), self.rate)


@contextmanager
def naming() -> Iterator[None]:
    """Errors of reading a codec begin with the setting that names it, and are of one line."""
    try:
        yield
    except OSError as error:  # also those of the hub, of many lines
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise FileNotFoundError(f"model.vocoder_path: {first}") from error
    except ValueError as error:
        raise ValueError(f"model.vocoder_path: {error}") from error


def source_of(path: str) -> str:
    """The folder or hub id of a codec; FileNotFoundError for what is none, as far as its folder or the hub shows
    without weights."""
    with naming():
        source = pretrained.locate(locate(path), "HKUSTAudio/xcodec2-hf")
        if not Path(source).is_dir() and find_in_cache(source) is None:
            pretrained.read_json(source, "config.json")
    return source


def codec(path: str, device: str | torch.device = "cpu", books: int = 1) -> Codec:
    """A codec of ``books`` codebooks from a folder or hub id."""
    require("speech", "transformers")
    from transformers import AutoModelForAudioTokenization

    source = source_of(path)
    with naming():
        network = pretrained.read_network(AutoModelForAudioTokenization, source, Training(device=device))
    return Codec(network, path, device, books)


VOCODERS: dict[str, Callable[[str, str | torch.device, int], Vocoder]] = {
    "codec": codec,
    "tones": lambda path, device, books: Tones(),
}
"""Name to a function of path, device and number of codebooks that returns the vocoder."""


def vocoder(name: str, path: str = "", device: str | torch.device = "cpu", books: int = 1) -> Vocoder:
    """A vocoder of ``books`` codebooks by name, or the one that ``package.module:attribute`` names, as a vocoder or as
    what returns one.

    A class of vocoders is called without arguments, and so is a function that is annotated to return a vocoder.
    """
    if ":" in name:
        named = load_object(name, "model.vocoder", kind=made_of(Vocoder))
        return named() if isinstance(named, type) or isfunction(named) else named
    if name not in VOCODERS:
        raise ValueError(
            f"model.vocoder: unknown vocoder '{name}'.{nearest(name, VOCODERS)} A vocoder of your own is written "
            "package.module:attribute."
        )
    return VOCODERS[name](path, device, books)
