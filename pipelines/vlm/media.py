"""Images and clips of prompts, from disk or memory, as frames at the resolution of a model's input.

Images are decoded and resized by Pillow, clips decoded by av; torchvision is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image as Pil
from torch import Tensor

from mmgrpo.data.images import IMAGE_CACHE, decode_image
from mmgrpo.data.limits import Unreadable
from mmgrpo.data.perturbations import mask_pixels
from mmgrpo.report.audio_player import Sound
from mmgrpo.report.media import FRAMES, strip, thumbnail, to_pil
from mmgrpo.types import Audio, Image, Media, Prompt, Video
from pipelines.containers import Choose, FrameSet, check_selection, decode, frame_indices, frame_range, shuffle
from pipelines.readable import open_each, same_medium

DEFAULT_FPS = 2.0
"""Default number of frames sampled per second of a clip."""


CLIP_PIXELS = int(128_000 * 28 * 28 * 0.9)
"""Maximum number of pixels of all frames of a clip together (qwen-vl-utils)."""


@dataclass(frozen=True)
class Clip:
    """The sampled frames of a clip."""

    frames: UInt8[Tensor, "frames 3 height width"]
    sample_fps: float
    """Sampled frames per second of the clip."""
    seconds: tuple[float, ...]
    """Time of each position of ``frames``, relative to the beginning of the clip; ascending even where the frames are
    shuffled."""
    reader: str
    """What decoded it (``containers.READERS``), ``files`` (one image per frame) or ``memory``."""


@dataclass(frozen=True)
class Measure:
    """Size and duration of a medium before resizing. An image has one frame and 0 seconds."""

    height: int
    width: int
    frames: int = 1
    seconds: float = 0.0


def frame_pixel_limit(frames: int, low: int, frame_pixels: int, temporal: int, clip_pixels: int = CLIP_PIXELS) -> int:
    """Maximum number of pixels per frame of a clip of ``frames`` frames, ``temporal`` of which are merged.

    All frames of a clip share the budget ``clip_pixels``; the limit is at least 1.05 times the minimum size
    (qwen-vl-utils).
    """
    return max(min(frame_pixels, clip_pixels * temporal // frames), int(1.05 * low))


def resize(
    frames: Float[Tensor, "frames 3 _ _"] | UInt8[Tensor, "frames 3 _ _"], height: int, width: int
) -> Float[Tensor, "frames 3 {height} {width}"]:
    """Every frame at another size, in [0, 1]: bicubic with antialiasing on 8 bits, as in Pillow and the processors of
    transformers. Frames that already have the size are unchanged."""
    if frames.shape[-2:] == (height, width):
        return frames.float() / 255 if frames.dtype == torch.uint8 else frames.float()
    pixels = eight_bits(frames).permute(0, 2, 3, 1).numpy()
    resized = [Pil.fromarray(frame).resize((width, height), Pil.Resampling.BICUBIC) for frame in pixels]
    return torch.from_numpy(np.stack([np.array(frame) for frame in resized])).permute(0, 3, 1, 2).float() / 255


def eight_bits(pixels: Tensor) -> UInt8[Tensor, "..."]:
    """Pixels in [0, 1] as integers from 0 to 255; integers are unchanged."""
    return pixels if pixels.dtype == torch.uint8 else (pixels * 255).round_().clamp_(0, 255).to("cpu", torch.uint8)


def read_image(media: Media) -> Image:
    """The image, RGB in [0, 1], upright, on white where it is transparent; ``Unreadable`` where it cannot be read."""
    if "mask" in media.options:
        options = {name: value for name, value in media.options.items() if name != "mask"}
        return Image(mask_pixels(media, read_image(replace(media, options=options)).pixels))
    if isinstance(media.source, Image):
        return media.source
    if not isinstance(media.source, str):
        raise Unreadable(f"got an image of kind {type(media.source).__name__}, expected one file or an Image")
    return IMAGE_CACHE.read(media.source)


def read_video(media: Media, *, fps: float = DEFAULT_FPS, min_frames: int = 4, max_frames: int = 768) -> Clip:
    """The sampled frames of a clip (``frame_indices``); the medium's own options take precedence over the arguments.

    Options: ``fps`` or ``frames``, ``start`` and ``end`` in seconds, ``shuffle`` (a seed). The source is a video
    file, a Video, or files of frames at ``fps`` per second or at ``times``, one of each (the last is repeated where
    their number is odd), as frames in memory may be.
    ``Unreadable`` where a selected frame cannot be read; it is not replaced by another.
    """
    options = media.options
    fps = rate_of(options, fps)
    span = span_of(options)
    number = {"fps": fps, "min_frames": min_frames, "max_frames": max_frames, "frames": options.get("frames", 0)}
    view = partial(frame_indices, **number, **span)

    def choose(total: int, source_fps: float) -> list[int]:
        indices = view(total, source_fps)
        return shuffle(indices, options["shuffle"]) if "shuffle" in options else indices

    selected = _decode(media, choose, fps)
    total = len(selected.times)
    first, last = frame_range(total, selected.fps, **span)
    indices = view(total, selected.fps)  # not shuffled: times stay those of the positions
    sample_fps = len(indices) / (last - first + 1) * selected.fps
    frames = mask_pixels(media, selected.frames) if "mask" in options else selected.frames
    return Clip(frames, sample_fps, tuple(selected.times[index] for index in indices), selected.reader)


def _decode(media: Media, choose: Choose, fps: float) -> FrameSet:
    """The selected frames of a clip from any source; ``fps`` is the rate of frames in separate files."""
    source = media.source
    if isinstance(source, str):
        return decode(source, choose)
    if isinstance(source, Video):
        rate = fps if "times" in media.options else source.fps
        frames = source.frames[list(choose(len(source.frames), rate))]
        return FrameSet(eight_bits(frames), _times(media, len(source.frames), rate), rate, "memory")
    if not isinstance(source, tuple) or not source:
        raise Unreadable(f"got a clip of kind {type(source).__name__}, expected one file, files of frames or a Video")
    files = source + source[-1:] * (len(source) % 2)
    selection = [files[index] for index in choose(len(files), fps)]
    images: dict[str, Tensor] = {}
    for file in dict.fromkeys(selection):
        images[file] = eight_bits(decode_image(file).pixels)
        (height, width), size = images[file].shape[1:], images[selection[0]].shape[1:]
        check_selection(len(selection), height, width)
        if (height, width) != size:
            raise Unreadable(
                f"{file}: got {height} x {width} pixels, expected {size[0]} x {size[1]} as in {selection[0]} of the "
                "same clip; frames of a clip have one size"
            )
    frames = torch.stack([images[file] for file in selection])
    return FrameSet(frames, _times(media, len(files), fps), fps, "files")


def preview(media: Media | Audio) -> Pil.Image | Sound:
    """A thumbnail of an image, a strip of a few frames of a video, or a small file of a recording."""
    if isinstance(media, Audio) or media.kind == "audio":
        from pipelines.speech.audio import small_sound, sound_of

        return small_sound(media) if isinstance(media, Audio) else sound_of(media)
    if media.kind == "image":
        return thumbnail(to_pil(read_image(media)))
    clip = read_video(media, max_frames=FRAMES)
    return strip([Pil.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip.frames])


def rate_of(options: Mapping[str, Any], default: float) -> float:
    """Frames per second of a clip of separate frames: the mean of their ``times``, 1 where there is no time between
    them; without times ``fps``, else the default."""
    times = options.get("times")
    if times is None:
        return options.get("fps", default)
    return (len(times) - 1) / (times[-1] - times[0]) if times[-1] > times[0] else 1.0


def _times(media: Media, frames: int, fps: float) -> tuple[float, ...]:
    """The time of each frame in seconds: its own, that of the last for one that repeats it, or by the rate."""
    times = tuple(map(float, media.options.get("times", ())))
    if len(times) > frames:
        raise Unreadable(f"got {len(times)} times of {frames} frames, expected one for each")
    return times + times[-1:] * (frames - len(times)) if times else tuple(index / fps for index in range(frames))


def span_of(options: Mapping[str, Any]) -> dict[str, float]:
    """``start`` and ``end`` of a clip in seconds."""
    return {"start": options.get("start", 0.0), "end": options.get("end", math.inf)}


def measure(media: Media, max_seconds: float = math.inf) -> Measure:
    """Size and duration of a medium; ``Unreadable`` where it cannot be opened, and for a recording of more than
    ``max_seconds``.

    Images and audio are decoded completely, clips at the first and last frame of their range, which detects a
    truncated file.
    """
    if media.kind == "image":
        height, width = read_image(media).pixels.shape[1:]
        return Measure(height, width)
    if media.kind == "video":
        ends = _decode(
            media,
            lambda total, fps: frame_range(total, fps, **span_of(media.options)),
            rate_of(media.options, DEFAULT_FPS),
        )
        height, width = ends.frames.shape[2:]
        return Measure(height, width, len(ends.times), len(ends.times) / ends.fps)
    from pipelines.speech.audio import read_audio

    sound = read_audio(media, max_seconds=max_seconds, setting="--seconds or --windows")
    return Measure(0, 0, 0, sound.samples.shape[1] / sound.rate)


def measure_all(
    prompts: Sequence[Prompt], workers: int = 1, title: str = "", max_seconds: float = math.inf
) -> list[tuple[Measure | Unreadable, ...]]:
    """``measure`` of the media of each prompt, or the error; a file of several prompts is opened once.

    A title shows a progress bar.
    """
    distinct = {same_medium(media): media for prompt in prompts for media in prompt.media}
    inspect = partial(_measure_or_error, max_seconds=max_seconds)
    measures = dict(zip(distinct, open_each(list(distinct.values()), inspect, workers, title), strict=True))
    return [tuple(measures[same_medium(media)] for media in prompt.media) for prompt in prompts]


def _measure_or_error(media: Media, max_seconds: float) -> Measure | Unreadable:
    try:
        return measure(media, max_seconds)
    except Unreadable as error:
        return error
