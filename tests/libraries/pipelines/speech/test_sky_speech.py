"""The clips of other actors: how they are read from the files of their game."""

from __future__ import annotations

import struct

import pytest

from scripts.pretrain import rob_northen
from scripts.pretrain import sky_speech as script


def packed(size: int, packed_content: bytes, checksum: int) -> bytes:
    return struct.pack(">4sIIHHBB", b"RNC\1", size, len(packed_content), checksum, 0, 0, 1) + packed_content


class Writer:
    """Writes what is read by ``Bits``: bits of words, raw bytes behind the word that holds the last bit."""

    def __init__(self) -> None:
        self.words: list[bytearray | bytes] = []
        self.word, self.count = bytearray(), 16

    def bits(self, number: int, count: int) -> None:
        for place in range(count):
            if self.count == 16:
                self.words.append(word := bytearray(2))
                self.word, self.count = word, 0
            self.word[self.count // 8] |= (number >> place & 1) << self.count % 8
            self.count += 1

    def raw(self, content: bytes) -> None:
        self.words.append(content)

    def table(self, *lengths: int) -> None:
        self.bits(len(lengths), 5)
        for length in lengths:
            self.bits(length, 4)


def abracadabra() -> bytes:
    """The word as "abracad" and the repetition of four letters seven back."""
    writer = Writer()
    writer.bits(0, 2)
    writer.table(2, 0, 0, 1)  # counts: the code of three bits (with the highest) is 0, that of none 10, the 1 first
    writer.table(0, 0, 0, 1)  # offsets less one: three bits, whose code is 0
    writer.table(0, 0, 1)  # lengths less two: two bits, whose code is 0
    writer.bits(2, 16)
    writer.bits(0, 1)  # seven raw letters: the code and 3, the two lower bits of 7
    writer.bits(7 & 3, 2)
    writer.raw(b"abracad")
    writer.bits(0, 1)  # seven back: 6 of three bits, 4 and 2
    writer.bits(6 & 3, 2)
    writer.bits(0, 1)  # four letters: 2 of two bits
    writer.bits(2 & 1, 1)
    writer.bits(0b01, 2)  # no letters behind
    return b"".join(writer.words)


def test_what_is_packed_repeats_what_was_before_it():
    assert rob_northen.crc16(b"123456789") == 0xBB3D  # the check value of CRC-16/ARC
    checksum = rob_northen.crc16(b"abracadabra")
    assert rob_northen.unpack(packed(11, abracadabra(), checksum)) == b"abracadabra"
    with pytest.raises(ValueError, match="11.*checksum"):
        rob_northen.unpack(packed(11, abracadabra(), checksum + 1))
    with pytest.raises(ValueError, match="expected b'RNC"):
        rob_northen.unpack(b"RNC\2" + bytes(20))


def encoded(text: str) -> str:
    """The bits of a text and its end."""
    codes: dict[str, str] = {}

    def walk(at: int, bits: str) -> int:
        if script.CODE[at] != "|":
            codes.setdefault(script.CODE[at], bits)
            return at + 1
        return walk(walk(at + 1, bits + "0"), bits + "1")

    assert walk(0, "") == len(script.CODE)
    return "".join(codes[character] for character in text + "\0")


def section(texts: list[str]) -> bytes:
    """Texts as the game stores them: each begins at an even bit, what follows a long one at a multiple of 16."""
    bits = [encoded(text) for text in texts]
    bits = [part + "0" * (-len(part) % (2 if len(part) < 250 else 16)) for part in bits]
    sizes = [len(part) // 2 for part in bits]
    blocks = [sum(sizes[first : first + 32]) for first in range(0, len(sizes) - 32, 32)]
    single = bytes(size if size < 128 else 128 | size // 8 for size in sizes[:-1])
    head = struct.pack(f"<{2 + len(blocks)}H", 4 + 2 * len(blocks), 4 + 2 * len(blocks) + len(single), *blocks)
    whole = "".join(bits)
    return head + single + int(whole + "1" * (-len(whole) % 8), 2).to_bytes(-(-len(whole) // 8), "big")


def test_texts_of_all_blocks_are_read():
    texts = [f"Text {'AbC'[: number % 3]} of many, {'long ' * (number % 4 * 7)}." for number in range(70)]
    assert list(script.section_texts(section(texts))) == texts
    assert list(script.section_texts(section(["Yes.", "Room ~"]))) == ["Yes.", "Room ~"]


def test_calls_that_speak_name_text_and_animation():
    call = [2, 4097, 2, 9, 11, 3, 4 * 37]
    words = [0, 48, *call, 2, 4098, 2, 9, 11, 3, 4 * 39, 2, 4099, 2, 9, 11, 2, 4 * 37, 2, *call[:-1]]
    assert list(script.texts_of_calls(struct.pack(f"<{len(words)}H", *words))) == [(4097, 9)]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("What YOU want?", "What you want?"),
        ("OUTRAGEOUS!  I've not been notified!", "Outrageous! I've not been notified!"),
        ("I am LINC, and I'M here.", "I am LINC, and I'm here."),
        ("That is LINC'S CARD.", "That is LINC'S card."),
    ],
)
def test_emphasis_is_taken_away_and_names_stay(text, plain):
    assert script.without_emphasis(text, {"LINC"}) == plain


def test_the_table_names_the_files():
    disk = bytes(16) + b"first" + b"second" + bytes(5) + b"third" + bytes(5)
    entries = [(7, 16, 5), (8, 21, 6), (9, 1 << 23 | 2, 5 | 1 << 23)]
    table = struct.pack("<I", 3)
    for number, start, size in entries:
        table += struct.pack("<H", number) + start.to_bytes(3, "little") + size.to_bytes(3, "little")
    assert script.read_files(table, disk) == {7: b"first", 8: b"second", 9: b"third"}
    with pytest.raises(SystemExit, match="27.*28"):
        script.read_files(table[:-1], disk)
