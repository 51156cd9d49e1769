"""Pictures and clips of a prompt, from disk or memory to the frames and sizes that a model sees.

Nothing here needs torchvision: pictures are decoded and resized by Pillow, clips decoded by decord or av.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image as Pil
from torch import Tensor

from mmgrpo.data.images import PICTURES, Unreadable, read_picture
from mmgrpo.types import Image, Media, Prompt, Video
from pipelines.reading import open_each, same_medium
from pipelines.vlm.frames import Choose, Decoded, decode, frame_indices, frame_range, shuffle

DEFAULT_FPS = 2.0
"""Frames looked at per second of a clip where nothing else is said."""


CLIP_PIXELS = int(128_000 * 28 * 28 * 0.9)
"""Pixels of all frames of a clip together, at most (qwen-vl-utils)."""


@dataclass(frozen=True)
class Clip:
    """The frames of a clip that a model sees."""

    frames: UInt8[Tensor, "frames 3 height width"]
    sample_fps: float
    """Frames seen per second of the clip."""
    seconds: tuple[float, ...]
    """When each place of ``frames`` is shown, counted from the clip's beginning; ascending even where the frames
    are shuffled."""
    reader: str
    """What read it: ``decord``, ``av``, ``files`` (a picture a frame) or ``memory``."""


@dataclass(frozen=True)
class Measure:
    """What is known of a medium before it is resized. A picture has one frame and lasts 0 seconds."""

    height: int
    width: int
    frames: int = 1
    seconds: float = 0.0


def smart_resize(height: int, width: int, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The nearest size whose sides are multiples of ``factor`` and whose area lies in [min_pixels, max_pixels].

    With h, w the sides rounded to multiples: where h w > max, both are divided by b = sqrt(height width / max) and
    rounded down; where h w < min, multiplied by sqrt(min / (height width)) and rounded up. No side is below
    ``factor``, so that a very long picture may stay above max. Sides more than 200 to 1 are refused.
    Source: transformers, models/qwen2_vl/image_processing_qwen2_vl.py.
    """
    if min(height, width) < 1 or max(height, width) > 200 * min(height, width):
        raise Unreadable(f"{height} x {width} pixels: sides of more than 200 to 1 cannot be shown to the model")
    if not 0 < min_pixels <= max_pixels:
        raise ValueError(f"min_pixels is {min_pixels} and max_pixels {max_pixels}; wanted 0 < min <= max")
    sides = [max(factor, round(side / factor) * factor) for side in (height, width)]
    if math.prod(sides) > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (height, width)]
    elif math.prod(sides) < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        sides = [math.ceil(side * grow / factor) * factor for side in (height, width)]
    return sides[0], sides[1]


def frame_share(frames: int, low: int, frame_pixels: int, temporal: int, clip_pixels: int = CLIP_PIXELS) -> int:
    """The most pixels of one of ``frames`` frames, of which ``temporal`` together are one step of time.

    All frames of a clip share a budget, but none falls below 1.05 of the least size (qwen-vl-utils).
    """
    return max(min(frame_pixels, clip_pixels * temporal // frames), int(1.05 * low))


def resize(
    frames: Float[Tensor, "frames 3 _ _"] | UInt8[Tensor, "frames 3 _ _"], height: int, width: int
) -> Float[Tensor, "frames 3 {height} {width}"]:
    """Every frame in another size, in [0, 1]; bicubic with antialiasing on 8 bits, as Pillow and so the processors
    of transformers do. Each frame is resized by itself; frames that have the size already are not touched."""
    if frames.shape[-2:] == (height, width):
        return frames.float() / 255 if frames.dtype == torch.uint8 else frames.float()
    pixels = eight_bits(frames).permute(0, 2, 3, 1).numpy()
    resized = [Pil.fromarray(frame).resize((width, height), Pil.Resampling.BICUBIC) for frame in pixels]
    return torch.from_numpy(np.stack([np.array(frame) for frame in resized])).permute(0, 3, 1, 2).float() / 255


def eight_bits(pixels: Tensor) -> UInt8[Tensor, "..."]:
    """Pixels in [0, 1] as whole numbers from 0 to 255; what is whole already stays."""
    return pixels if pixels.dtype == torch.uint8 else (pixels.clamp(0, 1) * 255).round().to("cpu", torch.uint8)


def read_image(media: Media) -> Image:
    """The picture, RGB in [0, 1], upright and on white where it is transparent. ``Unreadable`` says what is wrong."""
    if isinstance(media.source, Image):
        return media.source
    if not isinstance(media.source, str):
        raise Unreadable(f"a picture is one file or an Image, not {type(media.source).__name__}")
    return PICTURES.read(media.source)


def read_video(media: Media, *, fps: float = DEFAULT_FPS, min_frames: int = 4, max_frames: int = 768) -> Clip:
    """The frames of a clip that a model sees (``frame_indices``); the medium's own options come before the arguments.

    Options: ``fps`` or ``frames``, ``start`` and ``end`` in seconds, ``shuffle`` (a seed). The source is a video
    file, a Video, or files of frames that are ``fps`` a second (the last is shown twice where their number is odd).
    ``Unreadable`` says what is wrong; no other frames are ever given in place of the wanted ones.
    """
    options = media.options
    fps = options.get("fps", fps)
    span = span_of(options)
    number = {"fps": fps, "min_frames": min_frames, "max_frames": max_frames, "frames": options.get("frames", 0)}
    view = partial(frame_indices, **number, **span)

    def choose(total: int, source_fps: float) -> list[int]:
        indices = view(total, source_fps)
        return shuffle(indices, options["shuffle"]) if "shuffle" in options else indices

    decoded = _decode(media, choose, fps)
    total = len(decoded.times)
    first, last = frame_range(total, decoded.fps, **span)
    indices = view(total, decoded.fps)
    sample_fps = len(indices) / (last - first + 1) * decoded.fps
    return Clip(decoded.frames, sample_fps, tuple(decoded.times[index] for index in indices), decoded.reader)


def _decode(media: Media, choose: Choose, fps: float) -> Decoded:
    """The chosen frames of whatever a clip may come from; ``fps`` is that of frames in files."""
    source = media.source
    if isinstance(source, str):
        return decode(source, choose)
    if isinstance(source, Video):
        frames = source.frames[list(choose(len(source.frames), source.fps))]
        return Decoded(eight_bits(frames), _times(len(source.frames), source.fps), source.fps, "memory")
    if not isinstance(source, tuple) or not source:
        raise Unreadable(f"a clip is one file, the files of its frames or a Video, not {type(source).__name__}")
    files = source + source[-1:] * (len(source) % 2)
    wanted = [files[index] for index in choose(len(files), fps)]
    pictures = {file: eight_bits(read_picture(file).pixels) for file in dict.fromkeys(wanted)}
    size = pictures[wanted[0]].shape
    for file, pixels in pictures.items():
        if pixels.shape != size:
            raise Unreadable(
                f"{file}: has {pixels.shape[1]} x {pixels.shape[2]} pixels, but {wanted[0]} of the same clip has "
                f"{size[1]} x {size[2]}; frames of a clip have one size"
            )
    return Decoded(torch.stack([pictures[file] for file in wanted]), _times(len(files), fps), fps, "files")


def _times(frames: int, fps: float) -> tuple[float, ...]:
    return tuple(index / fps for index in range(frames))


def span_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Between which seconds a clip is seen."""
    return {"start": options.get("start", 0.0), "end": options.get("end", math.inf)}


def measure(media: Media) -> Measure:
    """Open one medium: a picture is decoded whole, of a clip the first and the last frame that may be
    seen, so that a file cut short is found; a sound is decoded whole.

    What cannot be opened is ``Unreadable``.
    """
    if media.kind == "image":
        height, width = read_image(media).pixels.shape[1:]
        return Measure(height, width)
    if media.kind == "video":
        decoded = _decode(
            media,
            lambda total, fps: frame_range(total, fps, **span_of(media.options)),
            media.options.get("fps", DEFAULT_FPS),
        )
        height, width = decoded.frames.shape[2:]
        return Measure(height, width, len(decoded.times), len(decoded.times) / decoded.fps)
    from pipelines.speech.audio import read_audio

    sound = read_audio(media)
    return Measure(0, 0, 0, sound.samples.shape[-1] / sound.rate)


def measure_all(prompts: Sequence[Prompt], workers: int = 1, title: str = "") -> list[tuple[Measure | Unreadable, ...]]:
    """What is known of the media of each prompt, or why it is not; a file that many prompts show is opened once.

    With a title a progress bar is shown.
    """
    distinct = {same_medium(media): media for prompt in prompts for media in prompt.media}
    measures = open_each(list(distinct.values()), _measure_or_reason, workers, title)
    known = dict(zip(distinct, measures, strict=True))
    return [tuple(known[same_medium(media)] for media in prompt.media) for prompt in prompts]


def _measure_or_reason(media: Media) -> Measure | Unreadable:
    try:
        return measure(media)
    except Unreadable as error:
        return error
