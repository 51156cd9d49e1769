"""The clips of actors: how they are read from the file of their game."""

from __future__ import annotations

import struct

import pytest

from scripts.pretrain import actor_speech as script


def line(number: int, text: bytes) -> bytes:
    content = struct.pack(">2xHB", number, len(text)) + text
    return content + bytes(-len(content) % 4)


def dialogue(key: int, hero: list[bytes], other: list[bytes]) -> bytes:
    """A dialogue without levels, whose lines are numbered from one."""
    heros = b"".join(line(number, text) for number, text in enumerate(hero, start=1))
    head = struct.pack(">5h", 0, 1, key, len(hero), len(other)) + bytes(12) + struct.pack(">H8x", 32 + len(heros))
    return bytes(20) + head + heros + b"".join(line(number, text) for number, text in enumerate(other, start=1))


def test_lines_are_split_at_commands_and_named_by_their_sounds():
    content = dialogue(7, [b"Hello there.", b"One.*FLTwo.*XY00(237,112)Three."], [b"*GDHi.*08"])
    assert list(script.dialogue_lines("BOB3.DOG", content)) == [
        script.Line("JOE", "Hello there.", "070001J1.SB"),
        script.Line("JOE", "One.", "070002J1.SB"),
        script.Line("JOE", "Two.", "070002J2.SB"),
        script.Line("JOE", "Three.", "070002J3.SB"),
        script.Line("BOB", "Hi.", "070001P2.SB"),
    ]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("What sort of advice is that?", True),
        ("I think I'm lost, aren't I?", True),
        ("What is that?", False),  # too short
        ("Well, I told Sparky about that.", False),  # a name
        ("where they keep the old tools.", False),  # the end of a sentence
        ("There are 3 of them here.", False),
        ("Well, I never thought...", False),
    ],
)
def test_whole_sentences_of_common_words_are_taken(text, taken):
    assert script.suitable(script.Line("JOE", text, "")) == taken


def test_the_table_names_the_files():
    entries = [(b"A.DOG", b"first"), (b"B.SB", b"second")]
    start, table = 15 + 21 * len(entries), b""
    for name, content in entries:
        table += struct.pack(">12sBII", name, 1, start, len(content))
        start += len(content)
    whole = b"QTBLCEM10\0\0\0\1" + struct.pack(">H", 2) + table + b"firstsecond"
    assert script.read_table(whole) == {"A.DOG": b"first", "B.SB": b"second"}
    with pytest.raises(SystemExit, match="expected QTBL"):
        script.read_table(b"RIFF" + whole)
