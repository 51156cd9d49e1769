"""The file of votes: one JSON line per vote, as 'mmgrpo evaluate-rewards --data votes:FILE' reads it, media next to it.

Of a visitor nothing is stored: neither name nor address nor session.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mmgrpo.cli.demo.models import AFTER, BEFORE
from mmgrpo.files import write_bytes
from mmgrpo.report.audio_player import wav
from mmgrpo.report.media import png, to_pil
from mmgrpo.runtime.folder import UNSUPPORTED
from mmgrpo.statistics import Interval
from mmgrpo.types import Audio, Image, Output, Text, Video

LEFT, RIGHT, TIE, BOTH_BAD = "leftvote", "rightvote", "tievote", "bothbad_vote"
"""GenAI-Bench's types of votes (arXiv:2406.04485)."""
VOTES = (LEFT, RIGHT, TIE, BOTH_BAD)
MAX_VOTES = 5_000
"""Most votes in a file, each with two media; a visitor cannot fill the disk."""


def append_vote(
    file: Path, row: Mapping[str, Any], outputs: Mapping[str, Output], about: Sequence[Output] = ()
) -> None:
    """Add one line to the file: ``row`` with its ``outputs`` (``left``, ``right``) and the media that its prompt asks
    about, written into the folder ``<name of the file>-media``.

    Any number of threads and processes can add at once. A part of a line, which a process left that was killed, is
    removed. ValueError for a file that is full or that the evaluation would not read.
    """
    if file.suffix != ".jsonl":
        raise ValueError(f"--votes {file}: got a file of {file.suffix or 'no suffix'}, expected .jsonl")
    if row["vote_type"] not in VOTES:
        raise ValueError(f"got the vote '{str(row['vote_type'])[:80]}', expected one of {', '.join(VOTES)}")
    with lock_file(file) as stream:
        if whole_lines(stream) >= MAX_VOTES:
            raise ValueError(f"{file.name}: got {MAX_VOTES:,} votes, which is the most; move it away with its media")
        media = {side: store(output, file) for side, output in outputs.items()}
        if about:
            media["about"] = [store(output, file) for output in about]
        line = json.dumps({**row, **media}, default=str) + "\n"
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def lock_file(file: Path) -> Iterator[BinaryIO]:
    """The file, created if there is none, held against all other writers; what is written goes to its end."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        yield stream


def whole_lines(stream: BinaryIO) -> int:
    """The lines of an open file, after what follows its last end of line is removed, or ended if it is whole."""
    stream.seek(0)
    content = stream.read()
    end, lines = content.rfind(b"\n") + 1, content.count(b"\n")
    try:
        json.loads(content[end:])
    except ValueError:  # also where there is nothing
        stream.truncate(end)
        return lines
    stream.write(b"\n")
    return lines + 1


def store(output: Output, file: Path) -> Any:
    """An output as a value of a line: a text itself, else the name of a file relative to that of the votes.

    Files are named by their content, so one image is stored once.
    """
    if isinstance(output, Text):
        return {"text": output.whole}
    content, suffix = encode(output)
    name = f"{file.stem}-media/{hashlib.blake2b(content, digest_size=16).hexdigest()}{suffix}"
    if not (file.parent / name).is_file():
        write_bytes(file.parent / name, content)
    return name


def encode(output: Output) -> tuple[bytes, str]:
    """An image, clip or audio without loss beyond 8 (of recordings 16) bits, and its suffix."""
    if isinstance(output, Image):
        return png(to_pil(output)), ".png"
    if isinstance(output, Audio):
        return wav(output).content, ".wav"
    from pipelines.visual.clips import lossless_mp4

    assert isinstance(output, Video)
    return lossless_mp4(output), ".mp4"


def read_votes(file: Path) -> list[Mapping[str, Any]]:
    """The votes of a file so far, without lines that are no object; empty if there is no file."""
    rows = []
    for line in file.read_bytes().split(b"\n") if file.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


@dataclass(frozen=True)
class Tally:
    """How often people preferred the trained model, the initial one, or neither."""

    after: int = 0
    before: int = 0
    neither: int = 0

    @property
    def votes(self) -> int:
        return self.after + self.before + self.neither

    @property
    def win_rate(self) -> Interval | None:
        """Win rate of the trained model, ties half, and its interval; None without a vote."""
        return wilson((self.after + self.neither / 2) / self.votes, self.votes) if self.votes else None


def tally(file: Path, pair: str) -> Tally:
    """The votes on a pair."""
    counts = {AFTER: 0, BEFORE: 0, "": 0}
    for row in read_votes(file):
        sides = row.get("sides")
        if row.get("pair") == pair and row.get("vote_type") in VOTES and isinstance(sides, dict):
            preferred = sides.get({LEFT: "left", RIGHT: "right"}.get(str(row["vote_type"]), ""), "")
            counts[preferred if preferred in counts else ""] += 1
    return Tally(counts[AFTER], counts[BEFORE], counts[""])


def wilson(share: float, n: int) -> Interval:
    """Wilson's 95 % interval of a share of n votes (Wilson 1927, J. Am. Stat. Assoc. 22, 209).

    (p + z^2 / 2n ± z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n), z = 1.96. Unlike the bootstrap it is not of
    width zero where all votes are equal; for ties, which count half, it is too wide rather than too narrow.
    """
    z = 1.959963984540054
    centre, width = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Interval(share, max(0.0, (centre - width) / scale), min(1.0, (centre + width) / scale), n)
