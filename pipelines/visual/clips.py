"""Generated clips as files: grids that move for reports, strips of frames where nothing can, and one mp4 per clip."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from mmgrpo.files import write_bytes
from mmgrpo.report.audio_player import Sound
from mmgrpo.report.completions import write_images
from mmgrpo.report.media import png, strip, to_pil
from mmgrpo.report.plots import sample_grid
from mmgrpo.types import Audio, Image, Output, Video
from pipelines import require
from pipelines.visual.images import captions, side_by_side

if TYPE_CHECKING:
    from PIL import Image as Pil

    from mmgrpo.evaluation import Shown

FRAMES = 24
"""Most frames of a grid that moves; of longer clips it shows as many, evenly spaced, at their own pace."""

ROWS = 40
"""Most rows of a grid that moves, since WebP has no images higher than 16,383 pixels."""

STILL = 80
"""Height in pixels to which small frames are enlarged in strips, by a whole factor."""

WATCHABLE = 240
"""Height in pixels to which small clips are enlarged in mp4 files, by a whole factor."""


def are_clips(sets: Iterable[Shown]) -> bool:
    """Whether outputs are clips, rather than images."""
    return any(isinstance(output, Video) for shown in sets for output in shown.outputs)


def write_grid(stem: Path, shown: Shown) -> None:
    """``<stem>.webp``, videos with their prompts and rewards that play, ``<stem>.png``, the same as strips, and each
    video alone, with ``<stem>.jsonl``, for the report."""
    _write_grids(stem, shown.outputs, captions(shown), columns=4)
    files, sizes, sounds = [], [], []
    for video in shown.outputs:
        frames = frames_of(video)
        assert isinstance(video, Video)
        files.append((moving(frames, video.fps), ".webp"))
        sizes.append(f"{frames[0].width} x {frames[0].height}, {len(frames)} frames, {len(frames) / video.fps:.1f} s")
        sounds.append(m4a(video.sound) if video.sound else None)
    write_images(stem, shown, files, sizes, sounds)


def write_clips(folder: Path, sets: Mapping[str, Shown], samples: int, columns: int) -> Path:
    """One mp4 per clip, ``<prompt>-<sample>-<title>.mp4``, and ``grid.webp`` and ``grid.png`` with the sets side by
    side."""
    tiles, columns = side_by_side(sets, samples, columns)
    for tile in tiles:
        write_bytes(folder / f"{tile.name}.mp4", mp4(tile.output))
    _write_grids(folder / "grid", [tile.output for tile in tiles], [tile.caption for tile in tiles], columns)
    return folder / "grid.webp"


def _write_grids(stem: Path, clips: Sequence[Output], texts: Sequence[str], columns: int) -> None:
    few = columns * ROWS
    write_bytes(stem.with_suffix(".webp"), animation(clips[:few], texts[:few], columns))
    strips = [strip([enlarge(frame, STILL) for frame in frames_of(clip)]) for clip in clips]
    write_bytes(stem.with_suffix(".png"), png(sample_grid(strips, texts, columns, tile=max(s.width for s in strips))))


def frames_of(clip: Output) -> list[Pil.Image]:
    """Every frame as an image."""
    if not isinstance(clip, Video):
        raise TypeError(f"got {type(clip).__name__}, expected a Video among clips")
    return [to_pil(Image(frame)) for frame in clip.frames]


def enlarge(frame: Pil.Image, height: int) -> Pil.Image:
    """A small frame with every pixel repeated, to at most ``height`` pixels."""
    factor = max(1, height // frame.height)
    return frame.resize((factor * frame.width, factor * frame.height), 0)  # nearest pixel


def animation(clips: Sequence[Output], texts: Sequence[str], columns: int) -> bytes:
    """A grid of clips with captions as a WebP that plays for ever, at the pace of the first clip.

    Small frames keep their exact colours, others are compressed with losses.
    """
    videos, first = [frames_of(clip) for clip in clips], clips[0]
    assert isinstance(first, Video)
    longest = max(map(len, videos))
    times = _times(longest)
    sheets = [sample_grid([video[min(time, len(video) - 1)] for video in videos], texts, columns) for time in times]
    return _webp(sheets, longest / first.fps, lossless=max(videos[0][0].size) <= 128)


def moving(frames: Sequence[Pil.Image], fps: float) -> bytes:
    """One video as a WebP that plays for ever, of at most ``FRAMES`` frames; small ones keep their exact pixels."""
    return _webp([frames[time] for time in _times(len(frames))], len(frames) / fps, max(frames[0].size) <= 128)


def _times(count: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, FRAMES)).round().astype(int).tolist()


def _webp(frames: Sequence[Pil.Image], seconds: float, lossless: bool) -> bytes:
    buffer = io.BytesIO()
    arguments: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "loop": 0}
    frames[0].save(buffer, "WEBP", lossless=lossless, duration=round(1000 * seconds / len(frames)), **arguments)
    return buffer.getvalue()


def mp4(clip: Output) -> bytes:
    """The clip as H.264 in an mp4 file, at its own rate, with its sound as AAC.

    Small clips are enlarged by a whole factor; a last row or column is repeated where a side is odd, which H.264 needs
    even.
    """
    pixels = [even(np.asarray(enlarge(frame, WATCHABLE))) for frame in frames_of(clip)]
    assert isinstance(clip, Video)
    rate = Fraction(clip.fps).limit_denominator()
    return h264(pixels, rate, "libx264", "yuv420p", {"crf": "18"}, clip.sound)


def lossless_mp4(clip: Video) -> bytes:
    """The clip as H.264 in RGB at quantizer 0 and its sound in 16 bits, from which rewards have the values of the clip
    itself.

    Browsers do not play it; ``mp4`` writes for them.
    """
    pixels = (clip.frames.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    rate = Fraction(clip.fps).limit_denominator(1001)
    return h264([*pixels], rate, "libx264rgb", "rgb24", {"crf": "0", "preset": "veryfast"}, clip.sound, "alac")


def h264(
    frames: Sequence[Any],
    rate: Fraction,
    codec: str,
    pixel_format: str,
    options: dict[str, str],
    sound: Audio | None = None,
    sound_codec: str = "aac",
) -> bytes:
    """Frames of 8-bit RGB, [h, w, 3] each, as an mp4 file, and what is heard with them."""
    require("visual", "av")
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt, stream.options = pixel_format, options
        heard = sound_stream(container, sound, sound_codec) if sound else None  # before the header is written
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
        if sound:
            add_sound(container, heard, sound)
    return buffer.getvalue()


def m4a(sound: Audio) -> Sound:
    """A recording as AAC, about 16 KB per second, for the report."""
    require("visual", "av")
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        add_sound(container, sound_stream(container, sound, "aac"), sound)
    return Sound(buffer.getvalue(), ".m4a")


def sound_stream(container: Any, sound: Audio, codec: str) -> Any:
    """A stream of an open file for a recording of one or two channels."""
    channels = len(sound.samples)
    if channels > 2:
        raise ValueError(f"got sound of {channels} channels, expected one or two; mix it down")
    return container.add_stream(codec, rate=sound.rate, layout=("mono", "stereo")[channels - 1])


def add_sound(container: Any, stream: Any, sound: Audio) -> None:
    """Encode a recording into its stream."""
    import av

    levels = (sound.samples.detach().cpu().float().clamp(-1, 1) * 32767).round().short().contiguous().numpy()
    whole: Any = av.AudioFrame.from_ndarray(levels, format="s16p", layout=stream.layout.name)
    whole.sample_rate, whole.pts = sound.rate, 0
    for frame in [whole, None]:
        container.mux(stream.encode(frame))


def even(pixels: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "H W 3"]:
    """The image with its last row or column repeated where a side is odd."""
    height, width, _ = pixels.shape
    return np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
