"""Log-mel spectrograms of recordings, and vocoders, which turn them back into recordings.

    mel = log(max(1e-5, bank |STFT|))     24 kHz, window 1024, hop 256, 100 bands (HTK scale), as F5-TTS and Vocos

A vocoder is an object with ``sound(mel)``; one of your own is named ``package.module:Class``. The built-in one has no
weights, so everything runs offline; it sounds metallic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.config.plugins import load_instance

FLOOR, CEILING = math.log(1e-5), 7.0
"""The smallest and the largest logarithm: a full-scale tone has exp(6.2) in its band."""


@dataclass(frozen=True)
class MelFormat:
    """How recordings are shown to the network; the defaults are those of F5-TTS."""

    rate: int = 24_000
    window: int = 1024
    hop: int = 256
    mels: int = 100

    def mel(self, samples: Float[Tensor, " samples"]) -> Float[Tensor, "mels frames"]:
        """The log-mel spectrogram of a recording, 1 + samples / hop frames."""
        window = torch.hann_window(self.window)
        # As an image would be, a recording shorter than half a window is padded before it is reflected.
        samples = torch.nn.functional.pad(samples, (0, max(0, self.window - len(samples))))
        magnitude = torch.stft(samples, self.window, self.hop, window=window, return_complex=True).abs()
        return (bank(self) @ magnitude).clamp(min=math.exp(FLOOR)).log()

    def frames(self, seconds: float) -> int:
        """Frames of so many seconds."""
        return round(seconds * self.rate / self.hop)


@cache
def bank(form: MelFormat) -> Float[Tensor, "mels bins"]:
    """Triangular filters, equally spaced in mels, each of height 1."""
    from transformers.audio_utils import mel_filter_bank

    bins = form.window // 2 + 1
    filters = mel_filter_bank(bins, form.mels, 0.0, form.rate / 2, form.rate, norm=None, mel_scale="htk")
    return torch.from_numpy(filters).float().T.contiguous()


@cache
def inverse_bank(form: MelFormat) -> Float[Tensor, "bins mels"]:
    """The pseudo-inverse of the filters."""
    return torch.linalg.pinv(bank(form).double()).float()


@runtime_checkable
class Vocoder(Protocol):
    """Turns a log-mel spectrogram of ``MelFormat`` into a waveform."""

    def sound(self, mel: Float[Tensor, "mels frames"]) -> Float[Tensor, " samples"]:
        """Samples at ``MelFormat.rate``, ``MelFormat.hop`` for each frame."""
        ...


@dataclass(frozen=True)
class GriffinLim:
    """Phases that fit the magnitudes (Griffin & Lim 1984, with the momentum of Perraudin et al. 2013).

    They start at zero: the same spectrogram has the same recording.
    """

    form: MelFormat = MelFormat()
    rounds: int = 16
    momentum: float = 0.99

    def sound(self, mel: Float[Tensor, "mels frames"]) -> Float[Tensor, " samples"]:
        """Samples from magnitudes of non-negative energy."""
        form, window = self.form, torch.hann_window(self.form.window)
        length = mel.shape[1] * form.hop
        # One frame more: the transform of n hops of samples has n + 1.
        energy = mel.float().cpu().clamp(FLOOR, CEILING).exp()
        magnitude = (inverse_bank(form) @ torch.cat([energy, energy[:, -1:]], 1)).clamp(min=0)
        spectrum, before = magnitude.to(torch.complex64), torch.zeros_like(magnitude)
        for _ in range(self.rounds):
            samples = torch.istft(spectrum, form.window, form.hop, window=window, length=length)
            # Zero at the ends rather than reflected, so one frame has enough samples.
            now = torch.stft(samples, form.window, form.hop, window=window, pad_mode="constant", return_complex=True)
            fitted = now + self.momentum / (1 + self.momentum) * (now - before)
            before = now
            spectrum = magnitude * fitted / fitted.abs().clamp(min=1e-8)
        return torch.istft(spectrum, form.window, form.hop, window=window, length=length)


GRIFFIN_LIM = "griffin_lim"
"""Name of the built-in vocoder."""


def vocoder(name: str, form: MelFormat) -> Vocoder:
    """The built-in vocoder for a format, or what ``package.module:Class`` names: a vocoder, or what makes one."""
    if ":" in name:
        return load_instance(name, "model.vocoder", Vocoder)
    if name != GRIFFIN_LIM:
        raise ValueError(
            f"model.vocoder: unknown vocoder '{name}', expected {GRIFFIN_LIM}, or package.module:Class of your own"
        )
    return GriffinLim(form)
