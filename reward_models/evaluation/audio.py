"""Recordings of benchmarks: wav files, which need no library."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import torch

from mmgrpo.types import Audio


def read_wav(source: Path | bytes) -> Audio:
    """The recording of a wav file of 16 bits per sample, in [-1, 1]; OSError for another or a damaged one."""
    content = io.BytesIO(source if isinstance(source, bytes) else source.read_bytes())
    try:
        with wave.open(content) as file:
            channels, width, rate, frames = file.getparams()[:4]
            levels = np.frombuffer(file.readframes(frames), dtype="<i2" if width == 2 else np.uint8)
    except (wave.Error, EOFError) as error:
        raise OSError(f"cannot be read as a wav file ({error})") from error
    if width != 2 or not levels.size or levels.size != frames * channels:
        raise OSError(f"got {levels.size} samples of {8 * width} bits, expected {frames * channels} of 16")
    samples = levels.astype(np.float32).reshape(-1, channels).T / 32767
    return Audio(torch.from_numpy(samples).clamp(min=-1), rate)
