"""Images and audio of a run folder as parts of a self-contained page.

A run folder is untrusted input, and its files refer to other files. Such a file is read only if it lies in the folder
after all links are resolved, and if its type and size are suitable for a page.

Small images for pages with many of them: thumbnails, strips of frames, and drawn boxes. Outputs as images, and prompts
as words in which their media are named.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from PIL import Image as Pil
from PIL import ImageDraw, ImageSequence

from mmgrpo.data.limits import Unreadable, open_image
from mmgrpo.data.messages import format_calls
from mmgrpo.report.figures import is_number
from mmgrpo.types import Image, Output, Prompt

FORMATS = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp"}
"""Image formats that all browsers show, and their media types."""
MEDIA_TYPES = {".jpg": FORMATS["JPEG"], ".png": FORMATS["PNG"], ".webp": FORMATS["WEBP"]}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".gif", ".webp")
MAX_IMAGE_BYTES = 16 * 1024 * 1024
"""Largest image that is embedded; a larger one is only named."""
MAX_PIXELS, MAX_BOXED_PIXELS = 2**26, 2**22
"""Largest image that is embedded, and that is decoded to draw boxes into it; a run writes thumbnails."""
MAX_PAGE_BYTES = 256 * 1024 * 1024
"""All media of a page together."""


@dataclass(frozen=True)
class Medium:
    """An image or audio, embedded in its ``uri``, or a note that states why there is none."""

    kind: Literal["image", "audio", "note"]
    text: str
    """The alternative text for readers who cannot see or hear it; of a note, the note."""
    uri: str = ""
    width: int = 0
    """Width in CSS pixels of a small image that the page enlarges; 0 for natural size."""


class Unavailable(ValueError):
    """A file that a page cannot embed; the page shows the message instead."""


@dataclass
class MediaFolder:
    """A folder whose files a page embeds, at most ``left`` bytes in all, since rows can name one file any number of
    times."""

    path: Path
    left: int = field(default_factory=lambda: MAX_PAGE_BYTES)
    share: int = 0
    """Bytes of an image above which a smaller copy of it is embedded; 0 embeds every image as it is."""
    limit: int = field(init=False)
    """``left`` at first."""

    def __post_init__(self) -> None:
        self.limit = self.left


def resolve_within(folder: Path, name: str) -> Path | None:
    """The path ``<folder>/<name>`` with all links resolved; None if it is not in ``folder`` or is invalid.

    An absolute name is refused, wherever it points.
    """
    if Path(name).is_absolute():
        return None
    try:
        path = (folder / name).resolve()
        return path if path.is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # a cycle of links, a null character
        return None


def read_medium(folder: MediaFolder, name: str, suffixes: Collection[str], max_bytes: int) -> bytes:
    """The content of ``<folder>/<name>``; Unavailable if it has another suffix or more than ``max_bytes``."""
    path = resolve_within(folder.path, name)
    if path is None:
        raise Unavailable(f"{name} is refused: it lies outside {folder.path.name}/")
    if Path(name).suffix.lower() not in suffixes:
        raise Unavailable(f"{name} is refused: expected a file of {', '.join(suffixes)}")
    try:
        if not path.is_file():
            raise Unavailable(f"{name} is missing")
        if (size := path.stat().st_size) > max_bytes:
            raise Unavailable(f"{name} is too large for this page: {size:,} bytes, at most {max_bytes:,}")
        taken = min(size, folder.share) if folder.share and path.suffix.lower() in IMAGE_SUFFIXES else size
        if taken > folder.left:
            raise Unavailable(f"{name} is left out: this page has {folder.limit:,} bytes of media already")
        content = path.read_bytes()
    except OSError as error:
        raise Unavailable(f"{name} cannot be read: {error.strerror}") from error
    folder.left -= taken
    return content


def shown_image(
    folder: MediaFolder,
    name: str,
    description: str,
    boxes: Mapping[str, Sequence[Sequence[int | float]]] | None = None,
) -> Medium:
    """The image ``<folder>/<name>``, with ``boxes`` drawn into it; a note if it cannot be shown."""
    limit = MAX_BOXED_PIXELS if boxes else MAX_PIXELS
    try:
        content = read_medium(folder, name, IMAGE_SUFFIXES, MAX_IMAGE_BYTES)
        with open_image(BytesIO(content), tuple(FORMATS)) as image:
            if image.width * image.height > limit:
                return Medium("note", f"{name} is too large for this page: {image.width} x {image.height} pixels")
            if not min(image.size):
                raise ValueError("got an image without pixels")
            # PIL reports a JPEG that contains further images as MPO.
            media_type, width = FORMATS.get(str(image.format), FORMATS["JPEG"]), enlarged_width(image)
            if boxes:
                # Enlarged before drawing: an outline of two pixels would hide much of an image of 32.
                content, media_type = jpeg(image_with_boxes(enlarge(image.convert("RGB")), boxes)), FORMATS["JPEG"]
                width = 0
            elif folder.share and len(content) > folder.share:
                content, suffix = smaller(image, folder.share)
                media_type, width = MEDIA_TYPES[suffix], 0
    except Unavailable as error:
        return Medium("note", str(error))
    except Unreadable as error:
        return Medium("note", f"{name} is not shown: {error}")
    except Exception:  # decoders raise whatever a damaged file leads them to
        return Medium("note", f"{name} is not a readable image")
    return Medium("image", description, image_uri(content, media_type), width)


def smaller(image: Pil.Image, limit: int) -> tuple[bytes, str]:
    """A copy of an image or a clip of at most ``limit`` bytes, as far as it may be made smaller, and its suffix."""
    if getattr(image, "is_animated", False):
        frames = [frame.convert("RGB") for frame in ImageSequence.Iterator(image)][:MAX_FRAMES]
        content, suffix, _ = webp_within(frames, 1000 / max(1, image.info.get("duration", 100)), limit)
    else:
        content, suffix, _ = jpeg_within(image.convert("RGB"), limit)
    return content, suffix


def image_uri(content: bytes, media_type: str = "image/png") -> str:
    """The bytes of an image as a data URI (RFC 2397)."""
    if media_type not in FORMATS.values():
        raise ValueError(f"got media type {media_type!r}, expected one of {', '.join(FORMATS.values())}")
    return f"data:{media_type};base64,{b64encode(content).decode()}"


SIDE = 160
"""Longer side of a thumbnail in pixels."""
HEIGHT = 96
"""Approximate height in CSS pixels to which a page enlarges a small image."""
GAP = 2
"""Pixels between the frames of a strip."""
FRAMES = 6
"""Largest number of frames in a strip."""
BOXES = 1000
"""Largest number of boxes of a kind that are drawn into an image."""
REFERENCE, PREDICTION = "#1d9a5c", "#d0492f"
"""Colours of reference boxes (key ``gold`` in samples/*.jsonl) and of predicted boxes (key ``said``)."""

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, right and bottom as fractions of the image's width and height."""


def thumbnail(image: Pil.Image) -> Pil.Image:
    """The image on white, scaled down to a longer side of at most ``SIDE`` pixels."""
    opaque = Pil.new("RGB", image.size, "white")
    opaque.paste(image, mask=image.convert("RGBA").getchannel("A"))
    opaque.thumbnail((SIDE, SIDE))
    return opaque


def strip(frames: Sequence[Pil.Image]) -> Pil.Image:
    """At most ``FRAMES`` frames of a clip side by side, evenly spaced from the first to the last.

    Frame i of n has the index round(i (N - 1) / (n - 1)) in a clip of N frames.
    """
    if not frames:
        raise ValueError("got a clip without frames, expected at least one")
    count = min(FRAMES, len(frames))
    indices = [round(i * (len(frames) - 1) / max(1, count - 1)) for i in range(count)]
    tiles = [thumbnail(frames[index]) for index in indices]
    width, height = sum(tile.width for tile in tiles) + GAP * (count - 1), max(tile.height for tile in tiles)
    sheet = Pil.new("RGB", (width, height), "white")
    left = 0
    for tile in tiles:
        sheet.paste(tile, (left, 0))
        left += tile.width + GAP
    return sheet


def png(image: Pil.Image) -> bytes:
    """An image as PNG, without loss, at a level that takes a third of the usual one's time for about as many bytes."""
    buffer = BytesIO()
    image.save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def jpeg(image: Pil.Image) -> bytes:
    """The image as a JPEG of quality 80."""
    buffer = BytesIO()
    image.convert("RGB").save(buffer, format="JPEG", quality=80)
    return buffer.getvalue()


MAX_FRAMES = 256
"""Frames of a clip of which a smaller copy is made."""
CLIP_SIDE = 256
"""Longer side of a clip in pixels."""
CLIP_FRAMES = 24
"""Frames of a clip; of longer ones as many, evenly spaced, at their own pace."""
SMALLEST = 64
"""Longer side in pixels below which nothing is made smaller."""

File: TypeAlias = tuple[bytes, str, str]
"""The content of a file, its suffix, and a note on what is not exact in it (or an empty one)."""


def image_within(image: Pil.Image, limit: int) -> File:
    """A PNG if it has at most ``limit`` bytes, else a JPEG that does, as far as it may be made smaller."""
    # Images of more than four bytes a pixel for each that may be kept are not worth the time of a PNG encoder.
    if image.width * image.height * 3 <= 4 * limit:
        content = png(image)
        if len(content) <= limit:
            return content, ".png", ""
    return jpeg_within(image, limit, "images are compressed with losses")


def jpeg_within(image: Pil.Image, limit: int, note: str = "") -> File:
    """A JPEG, with its sides halved until it has at most ``limit`` bytes."""
    content = jpeg(image)
    while len(content) > limit and max(image.size) > SMALLEST:
        image = image.resize((-(-image.width // 2), -(-image.height // 2)))
        note, content = "images are made smaller", jpeg(image)
    return content, ".jpg", note


def webp_within(frames: Sequence[Pil.Image], fps: float, limit: int) -> File:
    """A WebP that plays for ever at ``fps`` frames per second; small frames keep their exact colours."""
    count = min(len(frames), CLIP_FRAMES)
    indices = np.linspace(0, len(frames) - 1, count).round().astype(int).tolist()
    chosen, exact = [frames[index] for index in indices], max(frames[0].size) <= CLIP_SIDE // 2
    scale = min(1.0, CLIP_SIDE / max(frames[0].size))
    duration = max(1, round(1000 * len(frames) / fps / count))
    note = "" if count == len(frames) else f"clips have {CLIP_FRAMES} frames here"
    while True:
        size = (max(1, round(frames[0].width * scale)), max(1, round(frames[0].height * scale)))
        first, *rest = [frame.resize(size) for frame in chosen]
        options: dict[str, Any] = {"save_all": True, "append_images": rest, "duration": duration, "loop": 0}
        buffer = BytesIO()
        first.save(buffer, "WEBP", lossless=exact, method=2, **options)
        if buffer.tell() <= limit or max(size) <= SMALLEST:
            return buffer.getvalue(), ".webp", note or ("" if scale == 1.0 else "clips are made smaller")
        scale, exact = scale / 2, False


def image_with_boxes(image: Pil.Image, boxes: Mapping[str, Sequence[Sequence[int | float]]]) -> Pil.Image:
    """A copy of the image with reference and predicted boxes; corners may be in either order.

    A completion may contain any numbers: fractions are clipped to [-1, 2], since lines outside the image are not
    visible, and boxes with a non-finite coordinate are left out.
    """
    copy = image.convert("RGB")
    pen = ImageDraw.Draw(copy)
    for name, colour in (("gold", REFERENCE), ("said", PREDICTION)):
        for box in boxes.get(name, ())[:BOXES]:
            if not all(map(is_number, box)):
                continue
            left, top, right, bottom = (min(max(fraction, -1.0), 2.0) for fraction in box)
            x = sorted((left * copy.width, right * copy.width))
            y = sorted((top * copy.height, bottom * copy.height))
            pen.rectangle((x[0], y[0], x[1], y[1]), outline=colour, width=2)
    return copy


def enlarged_width(image: Pil.Image) -> int:
    """Width in CSS pixels at which a small image is about ``HEIGHT`` high; 0 if it is large enough.

    width round(HEIGHT / height): an integer factor, so all pixels are equally large.
    """
    factor = round(HEIGHT / image.height)
    return image.width * factor if factor > 1 else 0


def enlarge(image: Pil.Image) -> Pil.Image:
    """The image with every pixel repeated by the largest integer factor that keeps both sides within ``SIDE``."""
    factor = max(1, SIDE // max(image.size))
    return image.resize((image.width * factor, image.height * factor), Pil.Resampling.NEAREST)


def to_pil(image: Output | Pil.Image) -> Pil.Image:
    """The image as 8-bit RGB: round(255 clip(pixel, 0, 1)), with NaN as 0."""
    if isinstance(image, Pil.Image):
        return image
    if not isinstance(image, Image):
        raise TypeError(f"got {type(image).__name__}, expected a grid of Image outputs")
    levels = image.pixels.detach().cpu().float().nan_to_num(0.0).clamp(0, 1).mul(255).round().byte()
    return Pil.fromarray(levels.permute(1, 2, 0).numpy())


def words(prompt: Prompt) -> str:
    """The text of a prompt, with ``[image]``, ``[video]`` or ``[audio]`` in the place of each medium."""
    if not prompt.turns:
        return prompt.text
    turns = [
        "".join(part if isinstance(part, str) else f"[{part.kind}] " for part in turn.parts) for turn in prompt.turns
    ]
    if len(turns) == 1:
        return turns[0]
    calls = [format_calls(turn.keys.get("tool_calls", ())) for turn in prompt.turns]
    return "\n".join(f"{turn.role}: {text}{call}" for turn, text, call in zip(prompt.turns, turns, calls, strict=True))
