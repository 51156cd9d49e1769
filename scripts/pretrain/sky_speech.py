"""Write clips of other actors with their lines, a guard against forgetting on which nothing is chosen.

    python -m scripts.pretrain.sky_speech --game /usr/share/scummvm/beneath-a-steel-sky

The folder is that of Debian's package beneath-a-steel-sky 0.0372-8 (LICENSES.md next to the clips). All numbers are
little-endian. ``sky.dnr`` is the table of ``sky.dsk``: a count (four bytes) and, per file, its number (two), its offset
(three; with the highest bit set, in units of 16 bytes) and its size (22 bits of three). Files of one section:

- 60600 + section: its texts in blocks of 32: the address of the table of single sizes, that of the texts, sizes of the
  blocks (two bytes each), sizes of the texts (one byte each, in units of eight if the highest bit is set), and the
  texts in a Huffman code. Sizes count pairs of bits.
- 60400 + section: its scripts, words of two bytes. The call of one of four functions that speak is 2, the text (section
  * 4096 + its number), 2, the animation of the mouth, 11, 3, four times the number of the function.
- 50000 + the first recording of the section + the number of the text: its recording, a header of 22 bytes and samples
of eight
  bits at 11,025 Hz, packed by Rob Northen's method 1.

A row:

    {"id": "sky-51308", "text": "", "audio": "sky/51308.opus", "answer": "But I don't think he can hear me, either.",
     "task": "transcribe", "meta": {"voice": "anita", "source": "beneath-a-steel-sky/sky.dsk/51308"}}
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from scripts.pretrain.actor_speech import Line, suitable, write_lines
from scripts.pretrain.rob_northen import unpack
from scripts.pretrain.speech_data import RATE

if TYPE_CHECKING:
    import numpy as np

CHARACTERS = {
    9: "foster", 59: "joey", 26: "lamb", 25: "anita", 100: "anchor", 157: "gardener", 151: "henri", 146: "danielle",
    153: "vincent", 171: "judge",
}  # fmt: skip
"""Animations of characters of unlike voices: GE2E's mean embeddings of two of them have a cosine of at most 0.89, those
of two halves of the clips of one character 0.90 to 0.97. The game's credits do not say who speaks whom."""
SPEAKING = (35, 36, 37, 38)
"""Numbers of the functions that speak."""
SOUNDS = (0, 600, 1100, 2430, 3380, 4530, 5080)
"""The first recording of each section."""
NAMES = {"LINC", "LINCS", "ID", "VHS", "SANICOOL", "RADICHEM"}
"""Names that the script has in capitals only. Other words in capitals are emphasized."""
CODE = (
    "||| |ea|||os|tn||.ir|||||\0Eu|mA|||lI|dR||NST|||||Ohc|Dg|||LC|pU||!yM|||||PvH|?b|||'f,|GB|||||VkF|qw|||K-W|J*"
    "||||zY|j+|||Q~)||Z~<|||||~~~|~:|||~]#||xX~~"
)
"""The tree of the texts: ``|`` and its branches for 0 and 1, or a character. ``~`` is digits, foreign letters and rare
signs, whose branches are left out, ``\\0`` the end."""


@dataclass
class Args:
    """Where the game is, and where the clips go."""

    game: Path
    """The folder with sky.dnr and sky.dsk."""
    output: Path = Path("pipelines/speech/assets")
    """Output folder: sky.jsonl and sky/."""


def main() -> None:
    args = tyro.cli(Args, description=__doc__)
    files = read_files((args.game / "sky.dnr").read_bytes(), (args.game / "sky.dsk").read_bytes())
    print(f"{args.output / 'sky'}.jsonl: {write_sky(args.output, files)} clips")


def read_files(table: bytes, disk: bytes) -> dict[int, bytes]:
    """The files within the game's file, by number."""
    files, count = {}, int.from_bytes(table[:4], "little")
    if len(table) != 4 + 8 * count:
        raise SystemExit(f"--game: sky.dnr has {len(table)} bytes, expected {4 + 8 * count}; name the game's folder")
    for number, *entry in struct.iter_unpack("<H3s3s", table[4:]):
        start, size = (int.from_bytes(part, "little") for part in entry)
        start = (start & 0x7FFFFF) * (16 if start >> 23 else 1)
        files[number] = disk[start : start + (size & 0x3FFFFF)]
    return files


def write_sky(folder: Path, files: dict[int, bytes]) -> int:
    """Write the clips drawn of every character, and their rows; returns their number."""
    texts: dict[int, str] = {}
    animations: dict[int, set[int]] = {}
    for section in range(len(SOUNDS)):
        for number, text in enumerate(section_texts(files[60600 + section])):
            texts[4096 * section + number] = text
        for number, animation in texts_of_calls(files[60400 + section]):
            animations.setdefault(number, set()).add(animation)
    capitalized = {word for text in texts.values() for word in re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", text)}
    names = NAMES | {word.upper() for word in capitalized}
    by_voice: dict[str, dict[str, Line]] = {voice: {} for voice in CHARACTERS.values()}
    for number in sorted(animations.keys() & texts.keys()):
        (animation, *others), text = animations[number], without_emphasis(texts[number], names)
        line = Line(CHARACTERS.get(animation, ""), text, str(50000 + SOUNDS[number // 4096] + number % 4096))
        named = re.split("[^A-Za-z]", text)[0].upper() in names
        if line.voice and not others and not named and suitable(line) and int(line.sound) in files:
            by_voice[line.voice].setdefault(text, line)
    lines = {voice: list(distinct.values()) for voice, distinct in by_voice.items()}
    return write_lines(folder, "sky", lines, lambda line: decode(files[int(line.sound)]), "beneath-a-steel-sky/sky.dsk")


def section_texts(content: bytes) -> Iterator[str]:
    """The texts of a section; one with a character that is left out of the code ends with ``~``."""
    sizes, start = struct.unpack_from("<HH", content)
    blocks = [0, *struct.unpack_from(f"<{(sizes - 4) // 2}H", content, 4)]
    bits, codes, at = "".join(f"{byte:08b}" for byte in content[start:]), code_table(), 0
    for number, size in enumerate(content[sizes:start] + b"\0"):
        if number % 32 == 0:
            at = sum(blocks[: number // 32 + 1])
        text, begin = "", 2 * at
        while not text.endswith(("\0", "~")):
            end = next((end for end in range(begin, begin + 20) if bits[begin:end] in codes), 0)
            text, begin = text + codes.get(bits[begin:end], "~"), end
        yield text.removesuffix("\0")
        at += (size & 127) * 8 if size & 128 else size


def code_table() -> dict[str, str]:
    """The characters of the tree by their codes, strings of 0 and 1."""
    codes, bits = {}, ""
    for character in CODE:
        if character == "|":
            bits += "0"
        else:
            codes[bits] = character
            bits = bits.rstrip("1")[:-1] + "1"
    return codes


def texts_of_calls(script: bytes) -> Iterator[tuple[int, int]]:
    """Number of the text and animation of every call of a function that speaks."""
    words = struct.unpack(f"<{len(script) // 2}H", script[: len(script) // 2 * 2])
    for at in range(len(words) - 6):
        two, text, also_two, animation, call, count, function = words[at : at + 7]
        if (two, also_two, call, count) == (2, 2, 11, 3) and function // 4 in SPEAKING:
            yield text, animation


def without_emphasis(text: str, names: set[str]) -> str:
    """The text with small letters where words other than names are in capitals."""
    words = text.split()
    for number, word in enumerate(words):
        letters = re.sub(r"[^A-Z']|'S$", "", word)
        if len(letters) > 1 and word.isupper() and letters not in names:
            words[number] = word.lower() if number and letters[:2] != "I'" else word.capitalize()
    return " ".join(words)


def decode(content: bytes) -> np.ndarray:
    """The samples of a recording at 16 kHz."""
    import numpy as np
    import torch

    from mmgrpo.types import Audio
    from pipelines.speech.audio import resample

    samples = (np.frombuffer(unpack(content[22:]), np.uint8).astype(np.float32) - 128) / 128
    return resample(Audio(torch.from_numpy(samples[None]), 11_025), RATE).samples[0].numpy()


if __name__ == "__main__":
    main()
