"""Unpack what Rob Northen's program packed by method 1.

All numbers of the head are big-endian: "RNC", the method (one byte), the sizes unpacked and packed (four bytes each),
the checksums unpacked and packed (two bytes each), one byte, and the number of chunks (one byte). The rest is read in
little-endian words of two bytes, lowest bit first, without its first two bits. A chunk is three tables of canonical
Huffman codes (counts of raw bytes, offsets, lengths), the number of its pairs (16 bits), and the pairs: a count, so
many raw bytes behind the word being read, and, but for the last, an offset back and a length of what is repeated.
"""

from __future__ import annotations

import struct

HEAD = 18
"""Size of the head in bytes."""
Table = dict[tuple[int, int], int]
"""By length and code (its first bit lowest): the number of bits of a value."""


def unpack(content: bytes) -> bytes:
    """The unpacked bytes; a ValueError if they do not have the checksum of the head."""
    if content[:4] != b"RNC\1":
        raise ValueError(f"got content that begins with {content[:4]!r}, expected b'RNC\\x01'")
    size, packed, checksum = struct.unpack_from(">IIH", content, 4)
    bits, out = Bits(content[HEAD : HEAD + packed]), bytearray()
    bits.take(2)
    for _ in range(content[HEAD - 1]):
        counts, offsets, lengths = (bits.table() for _ in range(3))
        for left in range(bits.take(16) - 1, -1, -1):
            out += bits.raw(bits.value(counts))
            if left:
                offset, length = bits.value(offsets) + 1, bits.value(lengths) + 2
                for _ in range(length):  # what is repeated may overlap what it makes
                    out.append(out[-offset])
    unpacked = bytes(out)
    if len(unpacked) != size or crc16(unpacked) != checksum:
        raise ValueError(f"got {len(out)} bytes with the checksum {crc16(unpacked)}, expected {size} with {checksum}")
    return unpacked


class Bits:
    """Reads bits of words of two bytes, and raw bytes between the words."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at, self.bits, self.count = content, 0, 0, 0

    def take(self, count: int) -> int:
        """The next bits as a number, the first one lowest."""
        while self.count < count:
            self.bits |= int.from_bytes(self.content[self.at : self.at + 2], "little") << self.count
            self.at, self.count = self.at + 2, self.count + 16
        number = self.bits & ((1 << count) - 1)
        self.bits, self.count = self.bits >> count, self.count - count
        return number

    def table(self) -> Table:
        """A canonical Huffman code, which is written as the lengths of its codes."""
        lengths = [self.take(4) for _ in range(self.take(5))]
        table, code = {}, 0
        for length in range(1, 16):
            for value in (value for value, other in enumerate(lengths) if other == length):
                table[length, int(f"{code >> (16 - length):0{length}b}"[::-1], 2)] = value
                code += 1 << (16 - length)
        return table

    def value(self, table: Table) -> int:
        """A number: the code of the number of its bits, and all of them but the highest."""
        code = length = 0
        while (length, code) not in table:
            if length == 16:
                raise ValueError(f"got the code {code:016b}, which is not in the table")
            code |= self.take(1) << length
            length += 1
        bits = table[length, code]
        return bits if bits < 2 else self.take(bits - 1) | 1 << (bits - 1)

    def raw(self, count: int) -> bytes:
        """Bytes behind the word being read."""
        start = self.at
        self.at += count
        return self.content[start : self.at]


def crc16(content: bytes) -> int:
    """The cyclic checksum with the polynomial 0xA001."""
    crc = 0
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
