"""Uploads as outputs of a model, and outputs as parts of the page."""

from __future__ import annotations

import html
import io
from base64 import b64encode
from pathlib import Path

import torch
from PIL import Image as Pil

from mmgrpo.cli.score import kind_of, read_output
from mmgrpo.data.limits import Unreadable, open_picture, regular_file
from mmgrpo.report.audio_player import sound_uri, wav
from mmgrpo.report.media import picture_uri
from mmgrpo.report.plots import to_pil
from mmgrpo.types import Audio, Image, Media, Output, Prompt, Text, Video

MAX_PIXELS = 1 << 24
"""Pixels of an uploaded image, 4096 x 4096: attacks keep several copies of it as floats."""
MAX_CLIP_PIXELS = 64 * 1920 * 1088
"""Pixels of all frames of an uploaded clip that are read: 1.6 GB as floats."""
FRAMES = 64
"""Most frames of an uploaded clip, evenly spaced, as 'mmgrpo evaluate-rewards' reads clips."""
LETTERS = 20_000
"""Longest text."""
SHOWN = 768
"""Longer side in pixels at which an image is sent to the page."""

STYLE = """<style>
.mm-sides { display: flex; flex-wrap: wrap; gap: 12px; }
.mm-sides figure { flex: 1 1 150px; max-width: 640px; min-width: 0; margin: 0; }
.mm-sides figure .mm-medium { display: block; width: 100%; max-width: 360px; margin: 0; border-radius: 6px;
  border: 1px solid var(--border-color-primary); }
.mm-sides figure .mm-small { image-rendering: pixelated; }
.mm-sides audio { width: 100%; min-width: 0; }
.mm-text { white-space: pre-wrap; overflow-wrap: anywhere; padding: 10px; border-radius: 6px; max-height: 22em;
  overflow-y: auto; border: 1px solid var(--border-color-primary); background: var(--background-fill-secondary); }
.mm-wide { overflow-x: auto; }
.mm-wide table.mm-table { border-collapse: collapse; width: 100%; margin: 8px 0; border: 0; }
.mm-wide table.mm-table tr { border: 0; }
.mm-wide table.mm-table th, .mm-wide table.mm-table td { text-align: left; padding: 4px 8px; vertical-align: top;
  border: 0; border-bottom: 1px solid var(--border-color-primary); }
.mm-wide table.mm-table td.mm-number { font-variant-numeric: tabular-nums; white-space: nowrap; }
.mm-wide .mm-rose { color: #b91c1c; font-weight: 600; }
.dark .mm-wide .mm-rose { color: #f87171; }
.mm-note { color: var(--body-text-color-subdued); }
</style>"""
"""Of the tabs Rewards and Vote; colours are those of the theme, light or dark."""


def read_upload(file: str | None, text: str) -> Output | None:
    """An upload, else the text, as what a model could have made; None if there is neither.

    Sizes are compared with limits before anything is decoded. ``Unreadable`` or ValueError names the file without its
    folder, which is the server's.
    """
    if not file:
        checked_text(text, "the text")
        return Text(text) if text.strip() else None
    try:
        return _read(file)
    except (OSError, ValueError) as error:
        raise Unreadable(str(error).replace(file, Path(file).name)) from error


def _read(file: str) -> Output:
    kind = kind_of(file)
    if kind == "image":
        with open_picture(file) as picture:
            width, height = picture.size
        if width * height > MAX_PIXELS:
            raise Unreadable(f"{file}: got {width} x {height} pixels, expected at most {MAX_PIXELS:,}; scale it down")
    if kind == "video":
        return _clip(file)
    if kind == "text":
        regular_file(file, 4 * LETTERS)
    output = read_output(file)
    if isinstance(output, Text):
        checked_text(output.text, file)
    return output


def _clip(file: str) -> Video:
    from pipelines.vlm.frames import decode

    height, width = decode(file, lambda frames, fps: [0]).frames.shape[2:]
    most = min(FRAMES, MAX_CLIP_PIXELS // (height * width))
    # One frame of the largest video that is decoded at all is within the limit.
    clip = decode(file, lambda frames, fps: spaced(frames, most))
    return Video(clip.frames.float() / 255, clip.fps * len(clip.frames) / len(clip.times))


def spaced(total: int, most: int) -> list[int]:
    """At most ``most`` of ``total`` numbers from 0, evenly spaced from the first to the last."""
    count = min(total, most)
    return [round(place * (total - 1) / max(1, count - 1)) for place in range(count)]


def checked_text(text: str, name: str) -> str:
    """The text, if it is not too long."""
    if len(text) > LETTERS:
        raise ValueError(f"{name}: got {len(text):,} characters, expected at most {LETTERS:,}; shorten it")
    return text


def figure(output: Output, label: str, caption: str = "") -> str:
    """An output as mark-up; ``label`` is read to who cannot see or hear it, and is the caption unless there is one."""
    words = html.escape(caption or label)
    return f"<figure>{medium(output, label)}<figcaption>{words}</figcaption></figure>"


def medium(output: Output, label: str) -> str:
    """An image, a clip that plays, a recording with its player, or a text, with nothing outside the mark-up itself."""
    name = html.escape(label, quote=True)
    if isinstance(output, Image):
        shown = to_pil(output)
        small = " mm-small" if max(shown.size) < 128 else ""
        shown.thumbnail((SHOWN, SHOWN))
        return f'<img class="mm-medium{small}" alt="{name}" src="{picture_uri(png(shown))}">'
    if isinstance(output, Video):
        return clip_player(output, name)
    if isinstance(output, Audio):
        return f'<audio controls aria-label="{name}" src="{sound_uri(wav(output).content, ".wav")}"></audio>'
    text = html.escape(output.text) or "(no text)"
    return f'<div class="mm-text" role="group" tabindex="0" aria-label="{name}">{text}</div>'


def clip_player(clip: Video, name: str) -> str:
    """A clip as an mp4 that repeats."""
    from pipelines.visual.clips import mp4

    uri = f"data:video/mp4;base64,{b64encode(mp4(clip)).decode()}"
    return f'<video class="mm-medium" controls loop muted autoplay playsinline aria-label="{name}" src="{uri}"></video>'


def png(picture: Pil.Image) -> bytes:
    """An image as PNG, without loss."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()


def decoded(one: Media) -> Output:
    """A medium of a prompt; of a clip at most ``FRAMES`` frames."""
    from mmgrpo.data.images import read_picture
    from pipelines.speech.audio import read_audio

    if not isinstance(one.source, str | tuple):
        return one.source
    if isinstance(one.source, tuple):
        files = [one.source[place] for place in spaced(len(one.source), FRAMES)]
        return Video(torch.stack([read_picture(file).pixels for file in files]), float(one.options.get("fps", 2)))
    if one.kind == "audio":
        return read_audio(one)
    return read_picture(one.source) if one.kind == "image" else _clip(one.source)


def prompt_medium(one: Media, label: str) -> str:
    """A medium of a prompt as mark-up, or a note that says why it is not shown."""
    try:
        return medium(decoded(one), label)
    except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
        return f'<p class="mm-note">{html.escape(label)} is not shown: {html.escape(one_line(error))}</p>'


def prompt_html(prompt: Prompt) -> str:
    """The prompt as a visitor is asked it: its media and its text."""
    names = {"image": "picture", "video": "clip", "audio": "sound"}
    media = "".join(
        f"<figure>{prompt_medium(one, f'{names.get(one.kind, one.kind)} of the prompt')}</figure>"
        for one in prompt.media
    )
    text = f'<div class="mm-text">{html.escape(prompt.text)}</div>' if prompt.text.strip() else ""
    return f'<div class="mm-sides">{media}</div>{text}'


def one_line(error: BaseException) -> str:
    """The message of an error in one line of at most 300 characters."""
    from mmgrpo.scoring.isolation import in_words

    line = " ".join((str(error) or in_words(error)).split())
    return line if len(line) <= 300 else f"{line[:299]}…"
