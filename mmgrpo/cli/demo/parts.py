"""Parts that several tabs share: errors as one line, events, uploads, and outputs, media and rewards as mark-up.

Every text is escaped; braces too, since Gradio's components of HTML take them for templates.
"""

from __future__ import annotations

import html
import math
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
import torch

from mmgrpo.cli.demo.models import in_a_line
from mmgrpo.cli.errors import is_user_error
from mmgrpo.cli.score import kind_of, read_output
from mmgrpo.data.limits import Unreadable, open_image, regular_file
from mmgrpo.report.audio_player import sound_uri, wav
from mmgrpo.report.media import image_uri, png, to_pil
from mmgrpo.types import Audio, Image, Media, Output, Prompt, Text, Video

MAX_PIXELS = 1 << 24
"""Pixels of an uploaded image, 4096 x 4096: attacks keep several copies of it as floats."""
MAX_VIDEO_PIXELS = 64 * 1920 * 1088
"""Pixels of all frames of an uploaded video that are read: 1.6 GB as floats."""
FRAMES = 64
"""Most frames of an uploaded video, evenly spaced, as 'mmgrpo evaluate-rewards' reads videos."""
MAX_TEXT = 20_000
"""Characters of a text that a visitor writes or uploads."""
SHOWN = 768
"""Longer side in pixels at which an image is sent to the page."""
PRIVATE: dict[str, Any] = {"api_visibility": "private"}
QUIET: dict[str, Any] = {**PRIVATE, "show_progress": "hidden"}
PROGRESS: Any = gr.Progress()
"""A default argument of an event's function, by which Gradio hands it the progress bar."""


# ---- errors


@contextmanager
def one_line_errors(file: str = "") -> Iterator[None]:
    """Turn errors of the block into messages on the page; the traceback of a defect goes to the terminal."""
    try:
        yield
    except gr.Error:
        raise
    except Exception as error:
        kind = "" if is_user_error(error) else f"{type(error).__name__}: "
        if kind:
            traceback.print_exc()
        raise gr.Error(escape(f"{kind}{in_a_line(error, file)}"), print_exception=False) from error


def refusal_html(error: Exception, file: str) -> str:
    """Mark-up of why an upload cannot be used."""
    return f'<p role="alert" class="failed">{escape(in_a_line(error, file))}</p>'


# ---- events


def at_choice(
    options: gr.Dropdown,
    last: gr.State,
    act: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    **listening: Any,
) -> None:
    """Run ``act`` when another option is chosen than ``last`` holds.

    Gradio calls it an input, too, when a list only loses the focus: without ``last``, somebody who passes over the list
    with the keyboard would lose what he had typed into ``outputs``. What sets the list must set ``last``.
    """

    def run(chosen: Any, before: Any, *values: Any) -> Sequence[Any]:
        return [gr.skip()] * (len(outputs) + 1) if chosen == before else [chosen, *act(*values)]

    options.input(run, [options, last, *inputs], [last, *outputs], **listening)


def at_cancel(
    button: gr.Button,
    running: list[Any],
    say: Callable[..., Any],
    inputs: list[Any],
    outputs: list[Any],
    **listening: Any,
) -> None:
    """Stop the events ``running`` when the button is pressed, and then say so.

    In two steps: in one, the browser may close the stream of events that ended while the words are on their way in it.
    """
    button.click(None, None, None, cancels=running, **listening).then(say, inputs, outputs, **listening)


def computing(name: str, **more: Any) -> dict[str, Any]:
    """How an event runs that computes: one visitor at a time, and a click right after a cancellation counts, which ends
    with the batch."""
    return {**PRIVATE, "concurrency_limit": 1, "concurrency_id": name, "trigger_mode": "multiple", **more}


# ---- mark-up


def escape(text: str) -> str:
    """A text as mark-up that shows it, whatever it contains."""
    return html.escape(text).replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def frame(text: str) -> str:
    """Mark-up in the look of the reports."""
    return f'<div class="report">{text}</div>' if text else ""


def note(text: str) -> str:
    """A note as mark-up, which is not escaped."""
    return f'<p class="soft">{text}</p>'


def status(text: str) -> str:
    """Mark-up of what happens now, which a screen reader announces."""
    return f'<p role="status" aria-live="polite" class="soft">{escape(text)}</p>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Mark-up of a table whose cells are mark-up; the first cell of a row is its title."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return frame(f'<div class="wide">{table}</div>')


def figure(output: Output, label: str, caption: str = "") -> str:
    """An output as mark-up; ``label`` is read to who cannot see or hear it, and is the caption unless there is one."""
    return f"<figure>{medium(output, label)}<figcaption>{escape(caption or label)}</figcaption></figure>"


def figures(*parts: str) -> str:
    """Figures next to each other, below each other on a narrow screen."""
    return f"<div class='mm-sides'>{''.join(parts)}</div>"


def medium(source: Output | Media, label: str) -> str:
    """An image, a video that plays, a recording with its player, or a text, with nothing outside the mark-up itself."""
    output, name = decode(source) if isinstance(source, Media) else source, escape(label)
    if isinstance(output, Image):
        shown = to_pil(output)
        small = " mm-small" if max(shown.size) < 128 else ""
        shown.thumbnail((SHOWN, SHOWN))
        return f'<img class="mm-medium{small}" alt="{name}" src="{image_uri(png(shown))}">'
    if isinstance(output, Video):
        from pipelines.visual.clips import mp4

        uri = f"data:video/mp4;base64,{b64encode(mp4(output)).decode()}"
        playing = "controls loop muted autoplay playsinline"
        return f'<video class="mm-medium" {playing} aria-label="{name}" src="{uri}"></video>'
    if isinstance(output, Audio):
        return f'<audio controls aria-label="{name}" src="{sound_uri(wav(output).content, ".wav")}"></audio>'
    text = escape(output.text) or "(no text)"
    return f'<div class="mm-text" role="group" tabindex="0" aria-label="{name}">{text}</div>'


def prompt_html(prompt: Prompt) -> str:
    """The prompt as a visitor is asked it: its media, or why one is not shown, and its text."""
    media = []
    for item in prompt.media:
        label = f"{item.kind} of the prompt"
        try:
            media.append(f"<figure>{medium(item, label)}</figure>")
        except (OSError, ValueError, RuntimeError, ModuleNotFoundError) as error:
            media.append(note(f"{escape(label)} is not shown: {escape(in_a_line(error))}"))
    text = f'<div class="mm-text">{escape(prompt.text)}</div>' if prompt.text.strip() else ""
    return f"{figures(*media)}{text}"


def digits(value: float, form: str = ".3g") -> str:
    """A value as text; a dash for one that is not defined."""
    return "–" if math.isnan(value) else f"{value + 0.0:{form}}"


def reward_value(value: float, reason: str = "", form: str = ".3g") -> str:
    """Mark-up of a value of a reward: ``failed`` where there is none for a reason, a dash where it does not apply."""
    if math.isnan(value) and reason:
        return f'<span class="failed" title="{escape(reason)}">failed</span>'
    return digits(value, form)


def rewards_list(values: Mapping[str, float], reasons: Mapping[str, str], *facts: str) -> str:
    """Mark-up of rewards by name, then of ``facts``."""
    cells = {name: reward_value(value, reasons.get(name, ""), ".3f") for name, value in values.items()}
    items = [f"<li>{escape(name)} <b>{cell}</b></li>" for name, cell in cells.items()]
    items += [f"<li>{escape(fact)}</li>" for fact in facts]
    return f'<ul class="rewards">{"".join(items)}</ul>' if items else ""


def reasons_list(reasons: Mapping[str, str]) -> str:
    """Mark-up of which rewards failed, and why."""
    items = "".join(f"<li><b>{escape(name)}</b> failed: {escape(reason)}</li>" for name, reason in reasons.items())
    return f'<ul class="note">{items}</ul>' if items else ""


# ---- uploads


def read_upload(file: str | None, text: str) -> Output | None:
    """An upload, else the text, as what a model could have made; None if there is neither.

    Sizes are compared with limits before anything is decoded. ``Unreadable`` names the file without its folder, which
    is the server's.
    """
    if not file:
        return Text(checked_text(text, "the text")) if text.strip() else None
    try:
        return _read(file)
    except (OSError, ValueError) as error:
        raise Unreadable(str(error).replace(file, Path(file).name)) from error


def _read(file: str) -> Output:
    kind = kind_of(file)
    if kind == "image":
        with open_image(file) as image:
            width, height = image.size
        if width * height > MAX_PIXELS:
            raise Unreadable(f"{file}: got {width} x {height} pixels, expected at most {MAX_PIXELS:,}; scale it down")
    if kind == "video":
        return _video(file)
    if kind == "text":
        regular_file(file, 4 * MAX_TEXT)
    output = read_output(file)
    if isinstance(output, Text):
        checked_text(output.text, file)
    return output


def decode(medium: Media) -> Output:
    """A medium of a prompt; of a video at most ``FRAMES`` frames."""
    from mmgrpo.data.images import decode_image
    from pipelines.speech.audio import read_audio
    from pipelines.vlm.media import DEFAULT_FPS, rate_of

    if not isinstance(medium.source, str | tuple):
        return medium.source
    if isinstance(medium.source, tuple):
        files = [medium.source[place] for place in evenly_spaced(len(medium.source), FRAMES)]
        rate = rate_of(medium.options, DEFAULT_FPS) * len(files) / len(medium.source)  # fewer frames, as long
        return Video(torch.stack([decode_image(file).pixels for file in files]), rate)
    if medium.kind == "audio":
        return read_audio(medium)
    return decode_image(medium.source) if medium.kind == "image" else _video(medium.source)


def _video(file: str) -> Video:
    from pipelines.containers import decode

    height, width = decode(file, lambda frames, fps: [0]).frames.shape[2:]
    most = min(FRAMES, MAX_VIDEO_PIXELS // (height * width))
    # One frame of the largest video that is decoded at all is within the limit.
    video = decode(file, lambda frames, fps: evenly_spaced(frames, most))
    return Video(video.frames.float() / 255, video.fps * len(video.frames) / len(video.times))


def evenly_spaced(total: int, most: int) -> list[int]:
    """At most ``most`` of ``total`` numbers from 0, evenly spaced from the first to the last."""
    count = min(total, most)
    return [round(place * (total - 1) / max(1, count - 1)) for place in range(count)]


def checked_text(text: str, name: str, most: int = MAX_TEXT) -> str:
    """The text, if it is not too long."""
    if len(text) > most:
        raise ValueError(f"{name}: got {len(text):,} characters, expected at most {most:,}; shorten it")
    return text
