"""Write clips of actors with their lines, a guard against forgetting; it decided only how much of a change is kept.

    python -m scripts.pretrain.actor_speech --game /usr/share/scummvm/flight-of-the-amazon-queen/queen.1c

The file is that of Debian's package flight-of-the-amazon-queen 1.0.0-9 (LICENSES.md next to the clips). It begins with
a table: "QTBL", the version in six bytes, two bytes, the compression (1: MP3), and as big-endian numbers the count of
entries (two bytes) and, per entry, a name of twelve bytes, one byte, offset and size (four each). A dialogue X.DOG has
a header of 52 bytes, a tree of 96 bytes per level, the hero's lines and those of character X. A line is two bytes, its
number (two), its length (one) and its text, padded to an address divisible by four. ``*`` and a command of two letters
end each part of a line, which has a recording of its own, <key of the dialogue><number><J or P><part>.SB. A row:

    {"id": "actors-730028J1", "text": "", "audio": "actors/730028J1.opus", "answer": "What sort of advice is that?",
     "task": "transcribe", "meta": {"voice": "joe", "source": "flight-of-the-amazon-queen/queen.1c/730028J1.SB"}}
"""

from __future__ import annotations

import functools
import io
import random
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from mmgrpo.files import write_bytes, write_text
from scripts.pretrain.speech_data import RATE, opus, row

if TYPE_CHECKING:
    import numpy as np

HERO = "JOE"
CHARACTERS = (HERO, "BOB", "JIM", "KLUNK", "HENRY", "CHEF", "FAYE", "NAOMI", "ORACLE", "WITCH")
"""Characters of unlike voices. GE2E's mean embeddings of two of them have a cosine of at most 0.89, those of two halves
of the clips of one character 0.95 to 0.98. The credits name thirteen actors, not their parts."""
CLIPS = 8
"""Clips of each character."""
SECONDS = (1.5, 8.0)
WORDS = 5
"""Shortest and longest clip, and the fewest words of one."""
SPELLING = {"sharpener's": "sharpeners", "water logged": "waterlogged"}
"""Corrections of the script. Whisper's transcripts of all clips were compared with it: no actor says other words."""


@dataclass
class Args:
    """Where the game is, and where the clips go."""

    game: Path
    """The file queen.1c."""
    output: Path = Path("pipelines/speech/assets")
    """Output folder: actors.jsonl and actors/."""


@dataclass(frozen=True)
class Line:
    """A part of a line of dialogue and its recording."""

    voice: str
    text: str
    sound: str


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    print(f"{args.output / 'actors'}.jsonl: {write_actors(args.output, read_table(args.game.read_bytes()))} clips")


def read_table(content: bytes) -> dict[str, bytes]:
    """The files within the game's file, by name."""
    if content[:4] != b"QTBL" or content[12] != 1:
        raise SystemExit(f"--game: got a file that begins with {content[:13]!r}, expected QTBL ... 1; name queen.1c")
    (count,) = struct.unpack_from(">H", content, 13)
    entries = [struct.unpack_from(">12sBII", content, 15 + 21 * number) for number in range(count)]
    return {name.rstrip(b"\0").decode(): content[start : start + size] for name, _, start, size in entries}


def dialogue_lines(name: str, dialogue: bytes) -> Iterator[Line]:
    """The parts of all lines of a dialogue, without those that are commands only."""
    levels, _, key, heros, others = struct.unpack_from(">5h", dialogue, 20)
    (start,) = struct.unpack_from(">H", dialogue, 42)
    character = re.sub(r"\d+$", "", name.removesuffix(".DOG"))
    for voice, letter, at, count in ((HERO, "J", 32 + 96 * abs(levels), heros), (character, "P", start, others)):
        for _ in range(count):
            number, length = struct.unpack_from(">2xHB", dialogue, 20 + at)
            text = dialogue[20 + at + 5 : 20 + at + 5 + length].decode("cp437")
            at = (at + 5 + length + 3) // 4 * 4 if length else at + 5
            prefix = f"{key:2d}{number:4x}{letter}".replace(" ", "0")
            for part, spoken in enumerate(re.split(r"\*(?:XY.{11}|..)", text), start=1):
                if spoken.strip():
                    yield Line(voice, spoken.strip(), f"{prefix}{part:x}.SB".upper())


def suitable(line: Line) -> bool:
    """Whether it is a whole sentence of common words, none of them a name or a shout."""
    words = line.text.split()
    common = all(word[0].islower() or re.match(r"I(\W|$)", word) for word in words[1:])
    sentence = re.fullmatch(r"[A-Z][A-Za-z',;\- ]*[.!?]", line.text)
    return bool(sentence) and len(words) >= WORDS and common


def write_actors(folder: Path, files: dict[str, bytes]) -> int:
    """Write the clips drawn of every character, and their rows; returns their number."""
    lines = [line for name in sorted(files) if name.endswith(".DOG") for line in dialogue_lines(name, files[name])]
    texts: set[str] = set()
    by_voice: dict[str, list[Line]] = {voice: [] for voice in CHARACTERS}
    for line in lines:
        if line.voice in by_voice and line.sound in files and suitable(line) and line.text not in texts:
            texts.add(line.text)
            text = functools.reduce(lambda text, wrong: text.replace(wrong, SPELLING[wrong]), SPELLING, line.text)
            by_voice[line.voice].append(replace(line, text=text))
    source = "flight-of-the-amazon-queen/queen.1c"
    return write_lines(folder, "actors", by_voice, lambda line: decode(files[line.sound]), source)


def write_lines(
    folder: Path, split: str, by_voice: dict[str, list[Line]], clip: Callable[[Line], np.ndarray], source: str
) -> int:
    """Write ``CLIPS`` lines drawn of each voice as Opus, and their rows; returns their number."""
    rows = []
    for voice, candidates in by_voice.items():
        drawn = 0
        for line in random.Random(0).sample(candidates, len(candidates)):
            if drawn == CLIPS or not SECONDS[0] <= len(samples := clip(line)) / RATE <= SECONDS[1]:
                continue
            drawn, name = drawn + 1, line.sound.removesuffix(".SB")
            write_bytes(folder / f"{split}/{name}.opus", opus(samples))
            meta = {"voice": voice.lower(), "source": f"{source}/{line.sound}"}
            rows.append(row(f"{split}-{name}", f"{split}/{name}.opus", line.text, meta))
    write_text(folder / f"{split}.jsonl", "".join(rows))
    return len(rows)


def decode(content: bytes) -> np.ndarray:
    """The samples of an MP3 file at 16 kHz."""
    import av
    import numpy as np
    import torch

    from mmgrpo.types import Audio
    from pipelines.speech.audio import resample

    with av.open(io.BytesIO(content), "r", format="mp3") as container:
        rate = container.streams.audio[0].rate
        samples = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
    return resample(Audio(torch.from_numpy(samples[:1].astype(np.float32)), rate), RATE).samples[0].numpy()


if __name__ == "__main__":
    main()
