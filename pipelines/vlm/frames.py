"""Selection of the frames of a clip, and the two libraries that decode them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mmgrpo.data.images import Unreadable
from mmgrpo.runtime.randomness import stream
from pipelines import require

Choose = Callable[[int, float], Sequence[int]]
"""From the number of frames of a clip and its frames per second to the indices of the selected frames."""


@dataclass(frozen=True)
class FrameSet:
    """The selected frames of a file, in the order of their selection."""

    frames: UInt8[Tensor, "frames 3 height width"]
    times: tuple[float, ...]
    """Time in seconds of every frame of the file, relative to the first."""
    fps: float
    """Mean frames per second of the file."""
    reader: str
    """The library that read it: ``decord`` or ``av``."""


def frame_range(total: int, source_fps: float, start: float = 0.0, end: float = math.inf) -> tuple[int, int]:
    """First and last frame between two times (seconds, both included); an empty range is ``Unreadable``."""
    # Times are decimals: at 30 frames per second frame 249 is at 8.3 s, and 8.3 * 30 is slightly more than 249.
    first = math.ceil(start * source_fps - 1e-6)
    last = min(math.floor(min(end * source_fps, total) + 1e-6), total - 1)
    if not 0 <= first <= last:
        raise Unreadable(
            f"no frame between {start:g} s and {end:g} s, expected a range within the clip of {total} frames in "
            f"{total / source_fps:g} s"
        )
    return first, last


def frame_indices(
    total: int,
    source_fps: float,
    *,
    fps: float = 2.0,
    min_frames: int = 4,
    max_frames: int = 768,
    frames: int = 0,
    start: float = 0.0,
    end: float = math.inf,
) -> list[int]:
    """The sampled frames: evenly spaced from the first to the last between ``start`` and ``end``.

    n = total / source_fps * fps, at least min_frames, at most max_frames and total, rounded down to an even number;
    index_k = round(first + (last - first) k / (n - 1)). A nonzero ``frames`` replaces n and ignores both limits. A clip
    of one frame yields it twice, since models merge frames in pairs.
    Source: qwen-vl-utils (github.com/QwenLM/Qwen3-VL), vision_process.py, smart_nframes.
    """
    if min(fps, source_fps, min_frames, max_frames) <= 0 or frames < 0:
        raise ValueError(
            f"frames of a clip: got fps={fps:g} (source {source_fps:g}), min_frames={min_frames}, "
            f"max_frames={max_frames}, frames={frames}, expected positive numbers, and 0 or more for frames"
        )
    first, last = frame_range(total, source_fps, start, end)
    available = last - first + 1
    requested = frames or min(max(available / source_fps * fps, min_frames), max_frames)
    count = max(2, math.floor(min(requested, available)) // 2 * 2)
    return [round(first + (last - first) * k / (count - 1)) for k in range(count)]


def shuffle(indices: Sequence[int], seed: int) -> list[int]:
    """The same frames in another order, a function of ``seed``; unchanged only where all frames are equal."""
    indices, attempt = list(indices), 0
    while True:
        order = torch.randperm(len(indices), generator=stream(seed, "frames", attempt)).tolist()
        shuffled = [indices[place] for place in order]
        if shuffled != indices or len(set(indices)) < 2:
            return shuffled
        attempt += 1


def decode(path: str, choose: Choose) -> FrameSet:
    """Decode the selected frames of a file with decord, or with av where decord is not installed or fails.

    A failure of decord is a warning; a file that neither can read is ``Unreadable``, with both reasons. No frame is
    replaced by another.
    """
    if not Path(path).is_file():
        raise Unreadable(f"{path}: there is no such file (looked from {Path.cwd()})")
    reasons = []
    for name, read in READERS.items():
        try:
            frames = read(path, choose)
        except Unreadable as error:
            raise Unreadable(f"{path}: {error}") from error
        except ModuleNotFoundError as error:
            reasons.append(f"{name}: '{error.name}' is not installed")
        except Exception as error:  # the exceptions of the two libraries have no common class
            reasons.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            if any("not installed" not in reason for reason in reasons):
                warnings.warn(f"{path}: read with {name}, since {'; '.join(reasons)}", stacklevel=3)
            return frames
    require("vlm", "av")
    raise Unreadable(f"{path}: cannot be read as a video ({'; '.join(reasons)})")


def _decord(path: str, choose: Choose) -> FrameSet:
    import decord

    # By default decord silently returns a neighbour for a frame that it cannot decode.
    tolerance: Any = 1e-9  # a fraction of the frames, though decord annotates an integer
    reader = decord.VideoReader(path, ctx=decord.cpu(0), fault_tol=tolerance)
    times = reader.get_frame_timestamp(list(range(len(reader))))[:, 0]
    fps = float(reader.get_avg_fps())
    indices = choose(len(reader), fps)
    frames = torch.from_numpy(reader.get_batch(list(indices)).asnumpy()).permute(0, 3, 1, 2).contiguous()
    return FrameSet(frames, tuple((times - times[0]).tolist()), fps, "decord")


def _av(path: str, choose: Choose) -> FrameSet:
    import av

    with av.open(path) as container:
        stream: Any = container.streams.video[0]
        # Packets are counted, since the header of a webm file does not state its number of frames.
        times = sorted(
            float((p.dts if p.pts is None else p.pts) * p.time_base) for p in container.demux(stream) if p.size
        )
        fps = float(stream.average_rate or stream.guessed_rate)
        if len(times) < stream.frames:
            raise ValueError(f"truncated: got {len(times)} frames, expected {stream.frames}")
    indices = choose(len(times), fps)
    selection, last, pixels = set(indices), max(indices), {}
    with av.open(path) as container:
        container.streams.video[0].thread_type = "AUTO"
        for place, frame in enumerate(container.decode(video=0)):
            if place in selection:
                pixels[place] = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            if place >= last:
                break
    if missing := selection - pixels.keys():
        raise ValueError(
            f"frame {min(missing)} of {len(times)} cannot be decoded; {len(pixels)} of {len(selection)} selected can"
        )
    frames = torch.from_numpy(np.stack([pixels[place] for place in indices])).permute(0, 3, 1, 2).contiguous()
    return FrameSet(frames, tuple(time - times[0] for time in times), fps, "av")


READERS: dict[str, Callable[[str, Choose], FrameSet]] = {"decord": _decord, "av": _av}
"""Decoders of files, in the order in which they are tried."""
