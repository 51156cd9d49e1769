"""Selection of the frames of a clip, and their decoding by av."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mmgrpo.data.inside import opened
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.values import reason_of
from mmgrpo.randomness import stream
from pipelines import require
from pipelines.containers import MAX_FRAME_PIXELS, open_container, within_limit

MAX_CLIP_PIXELS = 768 * 1920 * 1088
"""Pixels of all selected frames of a clip together: the largest default number of frames, in full HD. They take
4.5 GiB."""

MAX_DECODED_PIXELS = 60 * 60 * 30 * 1920 * 1088
"""Pixels that are decoded for one clip: one hour of full HD, minutes of work. Frames count also where they are only
needed to decode the selected ones; a clip is entered at its key frames."""

INDEXED = ("mov", "matroska")
"""Containers with one sequence of times and an index, in which a key frame is found exactly; others may be joined from
several files."""

Choose = Callable[[int, float], Sequence[int]]
"""From the number of frames of a clip and its frames per second to the indices of the selected frames."""


class NotDecoded(Unreadable):
    """A selected frame that the decoder does not return."""


@dataclass(frozen=True)
class FrameSet:
    """The selected frames of a file, in the order of their selection."""

    frames: UInt8[Tensor, "frames 3 height width"]
    times: tuple[float, ...]
    """Time in seconds of every frame of the file, relative to the first."""
    fps: float
    """Mean frames per second of the file."""
    reader: str
    """What read it: ``av``, ``files`` or ``memory``."""


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
    for attempt in itertools.count():
        order = torch.randperm(len(indices), generator=stream(seed, "frames", attempt)).tolist()
        shuffled = [indices[place] for place in order]
        if shuffled != list(indices) or len(set(indices)) < 2:
            break
    return shuffled


def decode(path: str, choose: Choose) -> FrameSet:
    """Decode the selected frames of a file; no frame is replaced by another.

    A file that is damaged, no video, or beyond the limits is ``Unreadable``.
    """
    file = opened(path)
    require("vlm", "av")
    try:
        return _decode(file, choose)
    except Unreadable as error:
        raise Unreadable(f"{path}: {error}") from error
    except Exception as error:  # the errors of av have no common class
        raise Unreadable(f"{path}: cannot be read as a video ({reason_of(error)})") from error


def _decode(path: str | BytesIO, choose: Choose) -> FrameSet:
    with open_container(path) as container:
        stream = _video_of(container)
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        if fps <= 0:
            raise Unreadable("states no frames per second; encode it again")
        # Packets are counted, since the header of a webm file does not state its number of frames.
        packets = [
            (packet.pts, packet.dts, packet.is_keyframe, packet.is_discard)
            for packet in within_limit(container.demux(stream))
            if packet.size
        ]
        if len(packets) < stream.frames and (found := _stored(path)) < stream.frames:
            raise Unreadable(f"is truncated: got {found} frames, expected {stream.frames}")
        base, indexed = stream.time_base, container.format.name in INDEXED
    packets = [packet for packet in packets if not packet[3]]  # without what an edit list cuts away
    if not packets:
        raise Unreadable("has no frames")
    stamps = sorted(dts if pts is None else pts for pts, dts, *_ in packets)
    # Where every packet has a presentation time of its own, it tells which frame comes out of the decoder.
    timed = indexed and len(set(stamps)) == len(stamps) and None not in (pts for pts, *_ in packets)
    places = {stamp: place for place, stamp in enumerate(stamps)} if timed else {}
    seeks = sorted(places[pts] for pts, _, is_key, _ in packets if is_key and places)
    indices = choose(len(stamps), fps)
    try:
        frames = _frames(path, stamps, places, seeks, indices)
    except NotDecoded:
        if not seeks:
            raise
        frames = _frames(path, stamps, places, [], indices)  # the index may be wrong
    return FrameSet(frames, tuple(float((stamp - stamps[0]) * base) for stamp in stamps), fps, "av")


def _stored(path: str | BytesIO) -> int:
    """The frames of a file, with those that an edit list cuts away."""
    with open_container(path, edit_lists=False) as container:
        return sum(packet.size > 0 for packet in within_limit(container.demux(_video_of(container))))


def _video_of(container: Any) -> Any:
    """The first video stream, within the limit of pixels."""
    if not container.streams.video:
        raise Unreadable("has no video")
    stream = container.streams.video[0]
    if (pixels := stream.width * stream.height) > MAX_FRAME_PIXELS:
        raise Unreadable(f"got frames of {pixels:,} pixels, expected at most {MAX_FRAME_PIXELS:,}; scale the clip down")
    stream.thread_type = "AUTO"
    return stream


def _frames(
    path: str | BytesIO, stamps: Sequence[int], places: Mapping[int, int], seeks: Sequence[int], indices: Sequence[int]
) -> UInt8[Tensor, "frames 3 height width"]:
    """The frames ``indices`` of a file, whose frames have the times ``stamps``.

    ``places`` are the frames by time, empty where frames are counted; ``seeks`` are the frames at which decoding may
    begin.
    """
    rows: dict[int, list[int]] = {}
    for row, index in enumerate(indices):
        rows.setdefault(index, []).append(row)
    if (last := max(rows)) >= (total := len(stamps)):
        raise Unreadable(f"frame {last} of {total} does not exist")
    pixels, decoded, place = None, 0, -1
    with open_container(path) as container:
        stream = _video_of(container)
        frames = within_limit(container.decode(stream))
        for target in sorted(rows):
            key = seeks[earlier - 1] if (earlier := bisect_right(seeks, target)) else 0
            if key > place + 1:  # skip what no selected frame depends on
                container.seek(stamps[key], stream=stream)
                frames = within_limit(container.decode(stream))
            for frame in frames:
                decoded += frame.width * frame.height
                if decoded > MAX_DECODED_PIXELS:
                    raise Unreadable(
                        f"needs more than {MAX_DECODED_PIXELS:,} decoded pixels, the limit; cut the clip, or give it "
                        "'start' and 'end'"
                    )
                place = places.get(frame.pts, -1) if places else place + 1
                if place >= target:
                    break
            if place != target or frame.is_corrupt:
                raise NotDecoded(f"frame {target} of {total} cannot be decoded; encode the clip again")
            picture = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            if pixels is None:
                check_selection(len(indices), *picture.shape[:2])
                pixels = torch.empty((len(indices), 3, *picture.shape[:2]), dtype=torch.uint8)
            if picture.shape[:2] != pixels.shape[2:]:
                raise Unreadable(
                    f"frame {target} has {picture.shape[0]} x {picture.shape[1]} pixels, the first selected one "
                    f"{pixels.shape[2]} x {pixels.shape[3]}; frames of a clip have one size"
                )
            pixels[rows[target]] = torch.from_numpy(picture.copy()).permute(2, 0, 1)
    assert pixels is not None
    return pixels


def check_selection(frames: int, height: int, width: int) -> None:
    """``Unreadable`` for a selection of more than ``MAX_CLIP_PIXELS``."""
    if frames * height * width > MAX_CLIP_PIXELS:
        raise Unreadable(
            f"got {frames} selected frames of {height} x {width} pixels, expected at most {MAX_CLIP_PIXELS:,} pixels "
            "in all; select fewer (fps, frames, max_frames) or scale the clip down"
        )
