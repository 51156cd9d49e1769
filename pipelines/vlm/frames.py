"""Which frames of a clip a model sees, and the two libraries that decode them."""

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
"""From the number of frames of a clip and its frames per second to the frames that are wanted."""


@dataclass(frozen=True)
class Decoded:
    """The wanted frames of a file, in the order in which they were wanted."""

    frames: UInt8[Tensor, "frames 3 height width"]
    times: tuple[float, ...]
    """Second at which each frame of the whole file is shown, counted from the first."""
    fps: float
    """Mean frames per second of the file."""
    reader: str
    """The library that read it: ``decord`` or ``av``."""


def frame_range(total: int, source_fps: float, start: float = 0.0, end: float = math.inf) -> tuple[int, int]:
    """First and last frame shown between two times (seconds, both included); an empty range is ``Unreadable``."""
    # Times are written in decimals: of 30 frames a second 249 is shown at 8.3, and 8.3 * 30 is a little more than 249.
    first = math.ceil(start * source_fps - 1e-6)
    last = min(math.floor(min(end * source_fps, total) + 1e-6), total - 1)
    if not 0 <= first <= last:
        raise Unreadable(
            f"no frame is shown from second {start:g} to {end:g}; it has {total} frames in {total / source_fps:g} s"
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
    """The frames that are seen: evenly spaced from the first to the last between ``start`` and ``end``.

    n = total / source_fps * fps, at least min_frames, at most max_frames and total, made even by rounding down;
    index_k = round(first + (last - first) k / (n - 1)). ``frames``, where it is not 0, is taken for n instead, in
    spite of both limits. A clip of one frame is seen as two, since models look at frames in pairs.
    Source: qwen-vl-utils (github.com/QwenLM/Qwen3-VL), vision_process.py, smart_nframes.
    """
    if min(fps, source_fps, min_frames, max_frames) <= 0 or frames < 0:
        raise ValueError(
            f"cannot choose frames: fps {fps:g} of {source_fps:g}, from {min_frames} to {max_frames}, frames {frames}"
        )
    first, last = frame_range(total, source_fps, start, end)
    there = last - first + 1
    wanted = frames or min(max(there / source_fps * fps, min_frames), max_frames)
    count = max(2, math.floor(min(wanted, there)) // 2 * 2)
    return [round(first + (last - first) * k / (count - 1)) for k in range(count)]


def shuffle(indices: Sequence[int], seed: int) -> list[int]:
    """The same frames in another order, a function of ``seed``; the same order only where all frames are one."""
    indices, attempt = list(indices), 0
    while True:
        order = torch.randperm(len(indices), generator=stream(seed, "frames", attempt)).tolist()
        shuffled = [indices[place] for place in order]
        if shuffled != indices or len(set(indices)) < 2:
            return shuffled
        attempt += 1


def decode(path: str, choose: Choose) -> Decoded:
    """Decode the chosen frames of a file with decord, or with av where decord is not installed or cannot read it.

    The second is told as a warning. A file that neither reads is ``Unreadable``, with what each said. A frame is
    never put in another's place.
    """
    if not Path(path).is_file():
        raise Unreadable(f"{path}: there is no such file (looked from {Path.cwd()})")
    reasons = []
    for name, read in READERS.items():
        try:
            decoded = read(path, choose)
        except Unreadable as error:
            raise Unreadable(f"{path}: {error}") from error
        except ModuleNotFoundError as error:
            reasons.append(f"{name}: '{error.name}' is not installed")
        except Exception as error:  # both raise exceptions of their own, for which no common class exists
            reasons.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            if any("not installed" not in reason for reason in reasons):
                warnings.warn(f"{path}: read with {name}, since {'; '.join(reasons)}", stacklevel=3)
            return decoded
    require("vlm", "av")
    raise Unreadable(f"{path}: cannot be read as a video ({'; '.join(reasons)})")


def _decord(path: str, choose: Choose) -> Decoded:
    import decord

    # Without a tolerance decord silently gives a neighbour in place of a frame that it cannot decode.
    tolerance: Any = 1e-9  # a share of the frames; decord declares it whole
    reader = decord.VideoReader(path, ctx=decord.cpu(0), fault_tol=tolerance)
    times = reader.get_frame_timestamp(list(range(len(reader))))[:, 0]
    fps = float(reader.get_avg_fps())
    indices = choose(len(reader), fps)
    frames = torch.from_numpy(reader.get_batch(list(indices)).asnumpy()).permute(0, 3, 1, 2).contiguous()
    return Decoded(frames, tuple((times - times[0]).tolist()), fps, "decord")


def _av(path: str, choose: Choose) -> Decoded:
    import av

    with av.open(path) as container:
        stream: Any = container.streams.video[0]
        # Counted, not read from the header: a webm does not say how many frames it has.
        times = sorted(
            float((p.dts if p.pts is None else p.pts) * p.time_base) for p in container.demux(stream) if p.size
        )
        fps = float(stream.average_rate or stream.guessed_rate)
        if len(times) < stream.frames:
            raise ValueError(f"cut short: {len(times)} of {stream.frames} frames are there")
    indices = choose(len(times), fps)
    wanted, last, found = set(indices), max(indices), {}
    with av.open(path) as container:
        container.streams.video[0].thread_type = "AUTO"
        for place, frame in enumerate(container.decode(video=0)):
            if place in wanted:
                found[place] = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            if place >= last:
                break
    if missing := wanted - found.keys():
        raise ValueError(f"frame {min(missing)} of {len(times)} cannot be decoded; {len(found)} of {len(wanted)} can")
    frames = torch.from_numpy(np.stack([found[place] for place in indices])).permute(0, 3, 1, 2).contiguous()
    return Decoded(frames, tuple(time - times[0] for time in times), fps, "av")


READERS: dict[str, Callable[[str, Choose], Decoded]] = {"decord": _decord, "av": _av}
"""What decodes files, in the order in which they are tried."""
