"""Recordings and videos of benchmarks: wav files, which need no library, and what PyAV decodes."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import torch

from mmgrpo.config.extras import install
from mmgrpo.types import Audio, Video

FRAMES = 64
"""Largest number of frames of a video, evenly spaced from the first to the last."""


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


def read_video(source: Path | bytes, frames: int = FRAMES) -> Video:
    """The frames of a video, at most ``frames``; ``fps`` is lowered by what is left out.

    OSError for a file that is missing or cannot be decoded; ModuleNotFoundError without PyAV.
    """
    try:
        import av
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading videos needs PyAV: {install('visual')}") from error
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    try:
        with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source), "r") as container:
            stream = container.streams.video[0]
            fps = float(stream.average_rate or 1)
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    except (av.FFmpegError, IndexError) as error:
        raise OSError(f"{source if isinstance(source, Path) else 'a video'} cannot be decoded ({error})") from error
    if not decoded:
        raise OSError(f"{source if isinstance(source, Path) else 'a video'} has no frame")
    chosen = np.unique(np.linspace(0, len(decoded) - 1, min(frames, len(decoded))).round().astype(int))
    pixels = torch.from_numpy(np.stack([decoded[number] for number in chosen])).permute(0, 3, 1, 2).float() / 255
    return Video(pixels, fps * len(chosen) / len(decoded))
