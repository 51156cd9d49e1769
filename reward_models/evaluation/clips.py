"""Clips of benchmarks, decoded with PyAV."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch

from mmgrpo.config.extras import install
from mmgrpo.types import Video

FRAMES = 64
"""Largest number of frames of a clip, evenly spaced from the first to the last."""


def read_clip(source: Path | bytes, frames: int = FRAMES) -> Video:
    """The frames of a clip, at most ``frames``; ``fps`` is lowered by what is left out.

    OSError for a file that is missing or cannot be decoded; ModuleNotFoundError without PyAV.
    """
    try:
        import av
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"reading clips needs PyAV: {install('visual')}") from error
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError(f"there is no file {source}")
    try:
        with av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source), "r") as container:
            stream = container.streams.video[0]
            fps = float(stream.average_rate or 1)
            decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    except (av.FFmpegError, IndexError) as error:
        raise OSError(f"{source if isinstance(source, Path) else 'a clip'} cannot be decoded ({error})") from error
    if not decoded:
        raise OSError(f"{source if isinstance(source, Path) else 'a clip'} has no frame")
    chosen = np.unique(np.linspace(0, len(decoded) - 1, min(frames, len(decoded))).round().astype(int))
    pixels = torch.from_numpy(np.stack([decoded[number] for number in chosen])).permute(0, 3, 1, 2).float() / 255
    return Video(pixels, fps * len(chosen) / len(decoded))
