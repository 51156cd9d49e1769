"""Recordings and videos of benchmarks: wav files, which need no library, and what PyAV decodes."""

from __future__ import annotations

import io
import math
import wave
from pathlib import Path
from typing import Any

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


def read_video(source: Path | bytes, frames: int = FRAMES, start: float = 0.0, end: float = math.inf) -> Video:
    """The frames of a video from ``start`` to ``end`` in seconds, at most ``frames``; ``fps`` is lowered by what is
    left out. It is decoded twice, so no more frames are in memory than are returned.

    OSError for a file that is missing or cannot be decoded; ModuleNotFoundError without PyAV.
    """
    try:
        import av
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading videos needs PyAV: {install('visual')}") from error
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError(f"no such file: {source}")
    name = source if isinstance(source, Path) else "a video"

    def open_container() -> Any:
        return av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source), "r")

    try:
        with open_container() as container:
            stream = container.streams.video[0]
            fps = float(stream.average_rate or 1)
            times = [
                number / fps if frame.time is None else frame.time
                for number, frame in enumerate(container.decode(stream))
            ]
        inside = [number for number, time in enumerate(times) if start <= time - times[0] <= end]
        if not inside:
            raise OSError(f"{name} has no frame" + f" from {start:g} to {end:g} s" * bool(times))
        places = np.linspace(0, len(inside) - 1, min(frames, len(inside))).round().astype(int)
        chosen = {inside[place] for place in places}
        with open_container() as container:
            shown = [
                frame.to_ndarray(format="rgb24")
                for number, frame in enumerate(container.decode(container.streams.video[0]))
                if number in chosen
            ]
    except (av.FFmpegError, IndexError) as error:
        raise OSError(f"{name} cannot be decoded ({error})") from error
    pixels = torch.from_numpy(np.stack(shown)).permute(0, 3, 1, 2).float() / 255
    return Video(pixels, fps * len(chosen) / len(inside))
