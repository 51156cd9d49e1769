"""Sounds, and what was heard in them, as parts of a page: a player that needs no other file, and words aligned.

The core decodes no sound: what is played are the bytes of a file that browsers know, made by whoever can make them
(scripts/sounds_shown.py makes small ones). An alignment is data too: a list of (kind, reference, hypothesis), with
the kinds ``equal``, ``replace``, ``delete`` (only in the reference) and ``insert`` (only in the hypothesis).
"""

from __future__ import annotations

import wave
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mmgrpo.types import Audio

Aligned: TypeAlias = Sequence[Sequence[str]]
"""(kind, reference, hypothesis) of every place; the word that is not there is empty."""

MIME = {
    ".opus": "audio/ogg",
    ".ogg": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".wav": "audio/wav",
}
"""Suffixes of the files that browsers play, and what they are told of them."""

MOST_BYTES = 512 * 1024
"""A larger sound is named instead of played, so that a page of many stays one that can be opened."""

LETTERS = {"replace": "S", "delete": "D", "insert": "I"}
NAMES = {"replace": "substituted", "delete": "left out", "insert": "inserted"}
LEGEND = (
    '<ins class="replace">said</ins> <del>wanted</del><sup>S</sup>, '
    '<del class="delete">left out</del><sup>D</sup>, <ins class="insert">inserted</ins><sup>I</sup>'
)
"""What the marks mean: colours, and lines and letters for those who do not see them."""


class Sound(NamedTuple):
    """The bytes of a sound file, and its suffix, one of ``MIME``."""

    content: bytes
    suffix: str


def wav(audio: Audio) -> Sound:
    """A sound as 16-bit PCM, which needs no library; it is about ten times as large as Opus."""
    levels = (audio.samples.detach().cpu().float().clamp(-1, 1) * 32767).round().short()
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(levels))
        file.setsampwidth(2)
        file.setframerate(audio.rate)
        file.writeframes(levels.T.contiguous().numpy().astype("<i2").tobytes())
    return Sound(buffer.getvalue(), ".wav")


def player(folder: Path, name: str, label: str) -> str:
    """The player of the file ``<folder>/<name>``, which it holds; what is missing or too large is named."""
    path = folder / name
    if not path.is_file():
        return f'<small class="soft">({escape(name)} is missing)</small>'
    content = path.read_bytes()
    if len(content) > MOST_BYTES:
        return f'<small class="soft">({escape(name)} is too large to be played here: {len(content):,} bytes)</small>'
    data = b64encode(content).decode()
    source = f"data:{MIME[path.suffix]};base64,{data}"
    return f'<audio controls preload="metadata" aria-label="{escape(label)}" src="{source}"></audio>'


def alignment(aligned: Aligned) -> str:
    """The transcript word by word with its errors marked, and their number."""
    found = {kind: sum(place[0] == kind for place in aligned) for kind in LETTERS}
    wanted = sum(bool(place[1]) for place in aligned)
    named = ", ".join(f"{count} {NAMES[kind]}" for kind, count in found.items() if count)
    marked = " ".join(_word(*place) for place in aligned)
    total = sum(found.values())
    count = f"{total} {'error' if total == 1 else 'errors'} in {wanted} words{f': {named}' if named else ''}"
    return f'<p class="aligned">{marked}</p><small class="soft">{count}</small>'


def errors(aligned: Aligned) -> int:
    """How many words are wrong, left out or inserted."""
    return sum(place[0] != "equal" for place in aligned)


def _word(kind: str, reference: str, hypothesis: str) -> str:
    if kind == "equal":
        return f"<span>{escape(hypothesis)}</span>"
    wanted = f'<del class="{escape(kind)}">{escape(reference)}</del>' if reference else ""
    said = f'<ins class="{escape(kind)}">{escape(hypothesis)}</ins>' if hypothesis else ""
    title = f"{NAMES[kind]}: wanted “{reference}”, said “{hypothesis}”"
    return f'<span title="{escape(title)}">{said}{wanted}<sup>{LETTERS[kind]}</sup></span>'
