"""Containers of clips and audio, recognized by their first bytes and opened by av with limits on what it decodes, and
the frames of clips: their selection, and their decoding by av, decord or torchcodec (``data.video_reader``).

FFmpeg guesses among some 300 formats, of which playlists, concatenations and image sequences read other files or the
network. Here the format is one of a few, and chosen before FFmpeg sees the file. Whatever decodes the frames, av opens
the file before: it counts the frames, tells their times, and checks the limits.
"""

from __future__ import annotations

import importlib
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from mmgrpo.config.extras import install
from mmgrpo.config.registry import nearest
from mmgrpo.config.settings import Config
from mmgrpo.data.limits import Unreadable, open_source
from mmgrpo.data.values import reason_of
from mmgrpo.randomness import stream
from pipelines import require

MAX_FRAME_PIXELS = 8192 * 4352
"""Pixels of a frame, 8K in whole blocks. A decoder keeps up to 16 frames and one per thread, here about 1.7 GiB."""

MAX_AUDIO_FRAME = 1 << 20
"""Samples of one frame of a recording stream, of which codecs have up to some ten thousand."""

MAX_PACKETS = 1_000_000
"""Packets of a stream: those of four hours at 60 frames per second. A file of nothing but empty ones ends there."""

SIGNATURES = (
    *((4, kind, "mov") for kind in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (0, b"OggS", "ogg"),
    (0, b"FLV\x01", "flv"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (0, b"\x00\x00\x01\xba", "mpeg"),
    (188, b"\x47", "mpegts"),
    (0, b"GIF8", "gif"),
    (0, b"#!AMR", "amr"),
    (0, b"ID3", "mp3"),
    *((0, b"\xff" + second, "aac") for second in (b"\xf0", b"\xf1", b"\xf8", b"\xf9")),
    *((0, b"\xff" + second, "mp3") for second in (b"\xfa", b"\xfb", b"\xf2", b"\xf3", b"\xe2", b"\xe3")),
)
"""Place and content of the bytes by which a container is recognized, and FFmpeg's name of it."""

KNOWN = ", ".join(sorted({name for _, _, name in SIGNATURES}))

T = TypeVar("T")

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


READERS = ("av", "decord", "torchcodec")
"""Packages that decode the selected frames of a file; those after the first are extras of their own."""

TIME_OFF = 0.002
"""Seconds by which the time of a frame may differ between two readers, which round it."""


def rewound(file: str | BytesIO) -> str | BytesIO:
    """The same file; one in memory is at its beginning."""
    if isinstance(file, BytesIO):
        file.seek(0)
    return file


def beginning(file: str | BytesIO, count: int) -> bytes:
    """The first bytes of a file."""
    if isinstance(file, BytesIO):
        return bytes(file.getbuffer()[:count])
    with open(file, "rb") as stream:
        return stream.read(count)


def container_format(file: str | BytesIO) -> str:
    """FFmpeg's name of the container that a file begins as; ValueError where it is none of ``SIGNATURES``."""
    head = beginning(file, 256)
    for place, content, name in SIGNATURES:
        if head[place:].startswith(content):
            return name
    raise ValueError(f"begins as no known container ({KNOWN}); convert it")


def open_container(file: str | BytesIO, *, edit_lists: bool = True) -> Any:
    """The opened container; without ``edit_lists`` also what those cut away is demultiplexed.

    Frames beyond the limits are errors of the decoder, before memory is reserved for them.
    """
    import av

    limits = {"max_pixels": str(MAX_FRAME_PIXELS), "max_samples": str(MAX_AUDIO_FRAME)}
    container = av.open(
        # An absolute path names no protocol of FFmpeg.
        str(Path(file).absolute()) if isinstance(file, str) else rewound(file),
        format=container_format(file),
        options={"protocol_whitelist": "file", "advanced_editlist": str(int(edit_lists)), **limits},
    )
    for track in (*container.streams.video, *container.streams.audio):
        track.codec_context.options = limits
    return container


def within_limit(packets: Iterable[T]) -> Iterator[T]:
    """The packets or frames of a stream; beyond ``MAX_PACKETS`` the file is ``Unreadable``."""
    for number, packet in enumerate(packets):
        if number >= MAX_PACKETS:
            raise Unreadable(f"got more than {MAX_PACKETS:,} packets, expected at most as many; cut it")
        yield packet


@dataclass
class Reader:
    """The package that decodes video files in this process (``data.video_reader``)."""

    name: str = "av"

    def use(self, name: str) -> None:
        """Decode with this package from now on; ModuleNotFoundError where it is not installed, which names its extra,
        ValueError where it cannot be loaded."""
        if name not in READERS:
            raise ValueError(f"data.video_reader: unknown '{name}'.{nearest(name, READERS)}")
        if name != "av":
            try:
                importlib.import_module("torchcodec.decoders" if name == "torchcodec" else name)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(
                    f"data.video_reader: '{error.name}' is not installed; install it: {install(name)}, or set av",
                    name=error.name,
                ) from error
            except Exception as error:  # a library of FFmpeg or of torch that it lacks is an error of any kind
                raise ValueError(
                    f"data.video_reader: {name} is installed and cannot be loaded; torchcodec needs the shared "
                    "libraries of FFmpeg (4 to 8) and a torch of its own version; install them, or set av "
                    f"({reason_of(error)[:300]})"
                ) from error
        self.name = name


READER = Reader()


def use_video_reader(config: Config) -> None:
    """Decode video files with ``data.video_reader``; errors are those of ``Reader.use``."""
    READER.use(config.data.video_reader)


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
    """What read it: ``av``, ``decord``, ``torchcodec``, ``files`` or ``memory``."""


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
    return decode_by_time(path, lambda times, fps: choose(len(times), fps))


def decode_by_time(path: str, choose: Callable[[Sequence[float], float], Sequence[int]]) -> FrameSet:
    """The same with a selection by the time of every frame in seconds, from the first on, and the mean rate."""
    file = open_source(path)
    try:
        return _decode(file, choose)
    except ModuleNotFoundError:
        require("vlm", "av")  # names the extra that brings it
        raise
    except Unreadable as error:
        raise Unreadable(f"{path}: {error}") from error
    except Exception as error:  # the errors of av have no common class
        raise Unreadable(f"{path}: cannot be read as a video ({reason_of(error)})") from error


def _decode(path: str | BytesIO, choose: Callable[[Sequence[float], float], Sequence[int]]) -> FrameSet:
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
        if len(packets) < stream.frames and (count := _count_frames(path)) < stream.frames:
            raise Unreadable(f"is truncated: got {count} frames, expected {stream.frames}")
        base, indexed = stream.time_base, container.format.name in INDEXED
    packets = [packet for packet in packets if not packet[3]]  # without what an edit list cuts away
    if not packets:
        raise Unreadable("has no frames")
    stamps = sorted(dts if pts is None else pts for pts, dts, *_ in packets)
    # Where every packet has a presentation time of its own, it tells which frame comes out of the decoder.
    timed = indexed and len(set(stamps)) == len(stamps) and None not in (pts for pts, *_ in packets)
    places = {stamp: place for place, stamp in enumerate(stamps)} if timed else {}
    seeks = sorted(places[pts] for pts, _, is_key, _ in packets if is_key and places)
    times = tuple(float((stamp - stamps[0]) * base) for stamp in stamps)
    indices = choose(times, fps)
    if READER.name != "av":
        height, width, rotation = _first(path)
        if READER.name == "decord" and rotation % 360:
            raise Unreadable(f"is shown turned by {rotation} degrees, which decord cannot do; set data.video_reader av")
        check_selection(len(indices), height, width)
        check_decoded(sum(run_length(seeks, sorted({*indices}))) * height * width)
        frames = _by_package(path, READER.name, times if timed else (), len(stamps), indices)
        shown = (height, width) if rotation % 180 == 0 else (width, height)
        if frames.shape[2:] != shown:
            raise Unreadable(
                f"got frames of {frames.shape[2]} x {frames.shape[3]} pixels by {READER.name}, expected {shown[0]} x "
                f"{shown[1]}; set data.video_reader av"
            )
        return FrameSet(frames, times, fps, READER.name)
    try:
        frames = _frames(path, stamps, places, seeks, indices)
    except NotDecoded:
        if not seeks:
            raise
        frames = _frames(path, stamps, places, [], indices)  # the index may be wrong
    return FrameSet(frames, times, fps, "av")


def _first(path: str | BytesIO) -> tuple[int, int, int]:
    """Height and width of the first frame as it is stored, whatever the header says, and the degrees by which it is
    turned to be shown."""
    with open_container(path) as container:
        frame = next(iter(container.decode(_video_of(container))), None)
    if frame is None:
        raise NotDecoded("its first frame cannot be decoded; encode the clip again")
    return frame.height, frame.width, int(frame.rotation)


def run_length(seeks: Sequence[int], targets: Sequence[int]) -> list[int]:
    """How many frames are decoded for each of the ascending ``targets``, from the last frame of ``seeks`` before it or
    from behind the last target."""
    counts, place = [], -1
    for target in targets:
        key = seeks[earlier - 1] if (earlier := bisect_right(seeks, target)) else 0
        counts.append(target - max(place, key - 1))
        place = target
    return counts


def _by_package(
    file: str | BytesIO, name: str, times: Sequence[float], total: int, indices: Sequence[int]
) -> UInt8[Tensor, "frames 3 height width"]:
    """The frames ``indices`` by decord or torchcodec; ``Unreadable`` where it counts other frames than ``total``, or
    gives them other times than ``times`` (empty: not compared)."""
    source: Any = str(Path(file).absolute()) if isinstance(file, str) else rewound(file)
    wanted = list(indices)
    if name == "decord":
        from decord import VideoReader, cpu

        reader: Any = VideoReader(source, ctx=cpu(0), num_threads=1)
        count, frames = len(reader), torch.from_numpy(reader.get_batch(wanted).asnumpy()).permute(0, 3, 1, 2)
        stamps = [float(reader.get_frame_timestamp(index)[0]) for index in wanted] if times else []
        first = float(reader.get_frame_timestamp(0)[0]) if times else 0.0
    else:
        from torchcodec.decoders import VideoDecoder

        decoder: Any = VideoDecoder(source if isinstance(source, str) else source.getvalue(), num_ffmpeg_threads=1)
        count, batch = len(decoder), decoder.get_frames_at(wanted)
        frames, stamps = batch.data, batch.pts_seconds.tolist()
        first = decoder.get_frame_at(0).pts_seconds if times else 0.0
    if count != total:
        raise Unreadable(f"{name} counts {count} frames, and the file has {total}; set data.video_reader av")
    for index, at in zip(wanted, stamps if times else ()):
        if abs(at - first - times[index]) > TIME_OFF:
            raise Unreadable(
                f"{name} puts frame {index} at {at - first:.3f} s, and the file at {times[index]:.3f} s; set "
                "data.video_reader av"
            )
    return frames.contiguous()


def _count_frames(path: str | BytesIO) -> int:
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
                check_decoded(decoded)
                place = places.get(frame.pts, -1) if places else place + 1
                if place >= target:
                    break
            if place != target or frame.is_corrupt:
                raise NotDecoded(f"frame {target} of {total} cannot be decoded; encode the clip again")
            image = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            if pixels is None:
                check_selection(len(indices), *image.shape[:2])
                pixels = torch.empty((len(indices), 3, *image.shape[:2]), dtype=torch.uint8)
            if image.shape[:2] != pixels.shape[2:]:
                raise Unreadable(
                    f"frame {target} has {image.shape[0]} x {image.shape[1]} pixels, the first selected one "
                    f"{pixels.shape[2]} x {pixels.shape[3]}; frames of a clip have one size"
                )
            pixels[rows[target]] = torch.from_numpy(image.copy()).permute(2, 0, 1)
    assert pixels is not None
    return pixels


def check_decoded(pixels: int) -> None:
    """``Unreadable`` for more decoded pixels than ``MAX_DECODED_PIXELS``."""
    if pixels > MAX_DECODED_PIXELS:
        raise Unreadable(
            f"needs more than {MAX_DECODED_PIXELS:,} decoded pixels, the limit; cut the clip, or give it 'start' and "
            "'end'"
        )


def check_selection(frames: int, height: int, width: int) -> None:
    """``Unreadable`` for a selection of more than ``MAX_CLIP_PIXELS``."""
    if frames * height * width > MAX_CLIP_PIXELS:
        raise Unreadable(
            f"got {frames} selected frames of {height} x {width} pixels, expected at most {MAX_CLIP_PIXELS:,} pixels "
            "in all; select fewer (fps, frames, max_frames) or scale the clip down"
        )
