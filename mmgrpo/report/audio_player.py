"""Recordings and aligned transcripts as parts of a page.

Recordings are not decoded here: a player embeds the bytes of a file in a format that browsers play. An alignment is
plain data as well: a list of (kind, reference, hypothesis), with the kinds ``equal``, ``replace``, ``delete`` (only
in the reference) and ``insert`` (only in the hypothesis).
"""

from __future__ import annotations

import wave
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mmgrpo.report.media import MediaFolder, Medium, Unavailable, read_medium
from mmgrpo.report.render import render
from mmgrpo.types import Audio

Aligned: TypeAlias = Sequence[Sequence[str]]
"""(kind, reference, hypothesis) per position; the word of a side without one is empty."""

MIME = {
    ".opus": "audio/ogg",
    ".ogg": "audio/ogg",
    ".mp3": "audio/mpeg",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".wav": "audio/wav",
}
"""Suffixes of audio files that browsers play, and their media types."""

MAX_BYTES = 512 * 1024
"""Largest audio file that is embedded, so a page with many of them still opens; a larger one is only named."""

KINDS = {
    "equal": ("", "", ""),
    "replace": ("S", "substitution", "substitutions"),
    "delete": ("D", "deletion", "deletions"),
    "insert": ("I", "insertion", "insertions"),
}
"""Each kind's letter (so that colour is not the only mark), and its name in singular and plural."""


class Sound(NamedTuple):
    """The bytes of an audio file, and its suffix (a key of ``MIME``)."""

    content: bytes
    suffix: str


class Word(NamedTuple):
    """One position of an alignment, with its mark and its tooltip."""

    kind: str
    reference: str
    hypothesis: str
    letter: str
    title: str


def wav(audio: Audio) -> Sound:
    """Encode a recording as 16-bit PCM, which needs no library and is about ten times the size of Opus.

    level = round(32767 clip(sample, -1, 1)), channels interleaved.
    """
    levels = (audio.samples.detach().cpu().float().clamp(-1, 1) * 32767).round().short()
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(levels))
        file.setsampwidth(2)
        file.setframerate(audio.rate)
        file.writeframes(levels.T.contiguous().numpy().astype("<i2").tobytes())
    return Sound(buffer.getvalue(), ".wav")


def player(folder: Path, name: str, label: str) -> str:
    """Mark-up of a player that embeds the file ``<folder>/<name>``, or of a note that says why it cannot."""
    return render("medium.html", {"medium": sound(MediaFolder(folder), name, label)})


def sound(folder: MediaFolder, name: str, label: str) -> Medium:
    """The recording ``<folder>/<name>``; a note if it lies outside the folder, is too large, or has another suffix."""
    try:
        content = read_medium(folder, name, MIME, MAX_BYTES)
    except Unavailable as error:
        return Medium("note", str(error))
    return Medium("audio", label, sound_uri(content, Path(name).suffix.lower()))


def sound_uri(content: bytes, suffix: str) -> str:
    """The bytes of an audio file as a data URI (RFC 2397)."""
    return f"data:{MIME[suffix]};base64,{b64encode(content).decode()}"


def alignment(aligned: Aligned) -> str:
    """Mark-up of a transcript with its errors marked word by word, and of the error counts."""
    return render("alignment.html", {"words": words(aligned), "summary": error_summary(aligned)})


def errors(aligned: Aligned) -> int:
    """The number of substitutions, deletions and insertions."""
    return sum(kind != "equal" for kind, _, _ in aligned)


def words(aligned: Aligned) -> list[Word]:
    """The positions of an alignment, with letters and tooltips."""
    return [
        Word(kind, reference, hypothesis, KINDS[kind][0], _title(kind, reference, hypothesis))
        for kind, reference, hypothesis in aligned
    ]


def error_summary(aligned: Aligned) -> str:
    """The number of errors by kind, and of words of the reference, as a sentence."""
    total, length = errors(aligned), sum(bool(reference) for _, reference, _ in aligned)
    counts = {kind: sum(kind == other for other, _, _ in aligned) for kind in KINDS if kind != "equal"}
    kinds = ", ".join(f"{count} {KINDS[kind][1 if count == 1 else 2]}" for kind, count in counts.items() if count)
    summary = f"{total} {'error' if total == 1 else 'errors'} in {length} {'word' if length == 1 else 'words'}"
    return f"{summary}: {kinds}" if kinds else summary


def _title(kind: str, reference: str, hypothesis: str) -> str:
    if kind == "equal":
        return ""
    return f"{KINDS[kind][1]}: reference “{reference}”, hypothesis “{hypothesis}”"
