"""Recordings of sets: read from files, cut into windows, and as vectors without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mmgrpo.types import Audio, Output
from reward_models.speech.audio import import_library

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".opus")
"""Of the files that soundfile reads."""

LOWEST, BANDS = 50.0, 16
"""Lower edge in Hz of the first band of ``bands``, and their number: each is half an octave, up to 12.8 kHz."""

FRAME = 0.1
"""Seconds of a frame of ``bands``."""

FLOOR = 1e-9
"""Power, relative to that of a constant 1, that is added to each band: -90 dB."""


def bands(outputs: Sequence[Output]) -> Float[Tensor, "n 32"]:
    """How loud a recording is in each of 16 half octaves (the mean over frames of log10 of the power), and how much
    that changes (the standard deviation); NaN for a recording that is empty or not finite.

    A factor of 10 in amplitude is 2. It tells timbre and level apart and needs no model; what a recording is of, it
    does not know.
    """
    return torch.stack([_bands(audio_of(output, "bands")) for output in outputs])


def _bands(sound: Audio) -> Float[Tensor, "32"]:
    samples = sound.samples.double().mean(0)
    if not samples.numel() or not bool(samples.isfinite().all()):
        return torch.full((2 * BANDS,), math.nan, dtype=torch.float64)
    size = 2 ** math.ceil(math.log2(FRAME * sound.rate))
    samples = torch.nn.functional.pad(samples, (0, max(0, size - len(samples))))
    window = torch.hann_window(size, dtype=torch.float64)
    frames = samples.unfold(0, size, size // 2) * window
    power = torch.fft.rfft(frames).abs().square() / window.sum().square()  # a constant 1 has power 1 in its bin
    place = torch.log2(torch.arange(power.shape[1]).clamp(min=1e-9) * sound.rate / size / LOWEST) * 2
    sums = [power[:, (place >= band) & (place < band + 1)].sum(1) for band in range(BANDS)]
    levels = (torch.stack(sums, 1) + FLOOR).log10()
    return torch.cat([levels.mean(0), levels.std(0, unbiased=False)])


def windows(sound: Audio, seconds: float) -> list[Audio]:
    """Consecutive parts of ``seconds`` each; a rest of less than half of one is left out, unless it is all there is."""
    length = max(1, round(seconds * sound.rate))
    parts = [part for part in sound.samples.split(length, dim=1) if part.shape[1] >= length / 2]
    return [Audio(part, sound.rate) for part in parts or [sound.samples]]


def read_sound(file: Path, reward: str) -> Audio:
    """The recording of a file, all of it."""
    soundfile = import_library("soundfile")
    try:
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"{reward}: {file} cannot be read as a recording ({error}); remove or convert it") from error
    return Audio(torch.from_numpy(samples.T.copy()), rate)


def audio_of(output: Output, what: str) -> Audio:
    """The output, which must be a recording."""
    if not isinstance(output, Audio):
        raise TypeError(f"embed: got an output of kind {type(output).__name__}, expected an Audio for {what}")
    return output
