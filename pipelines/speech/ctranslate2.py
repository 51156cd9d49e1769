"""Weights of a CTranslate2 ``model.bin`` as tensors, parsed byte by byte: no pickle, no code of the file is run.

The file, little-endian: u32 version, text (name of the specification), u32 revision, u32 number of variables; of each
variable text (name), u8 rank, u32 per dimension, u8 type, u32 bytes, the bytes; then u32 number of aliases, each a
text (new name) and a text (name of the variable). A text is u16 length and that many bytes, of which the last is 0.
Source: github.com/OpenNMT/CTranslate2, python/ctranslate2/specs/model_spec.py, binary version 6.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

VERSION = 6
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
"""Data types of the type codes 0, 1, ... of a file."""
MAX_VARIABLES = 100_000
MAX_DIMENSIONS = 8


class _Reader:
    """A cursor over the bytes of a file; reading beyond the end is an error that names the file."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, self.place = path, memoryview(path.read_bytes()), 0

    def take(self, count: int) -> memoryview:
        if count > len(self.content) - self.place:
            raise self.error(f"got {len(self.content) - self.place} remaining bytes, expected {count}")
        self.place += count
        return self.content[self.place - count : self.place]

    def number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).removesuffix(b"\0").decode("ascii", "backslashreplace")

    def error(self, reason: str) -> ValueError:
        return ValueError(f"{self.path} is not a CTranslate2 model of version {VERSION}: byte {self.place}: {reason}")


def read_variables(path: Path, specification: str) -> dict[str, Tensor]:
    """Every variable by name, aliases included, in the data type of the file.

    A file of another specification or version, or one that is damaged or too long, is a ``ValueError``.
    """
    reader = _Reader(path)
    if (version := reader.number("I")) != VERSION:
        raise reader.error(f"got version {version}, expected {VERSION}")
    if (name := reader.text()) != specification:
        raise reader.error(f"got the specification '{name}', expected '{specification}'")
    reader.number("I")  # revision
    # Counts are bounded before anything is allocated: a damaged file may state any number.
    if (count := reader.number("I")) > MAX_VARIABLES:
        raise reader.error(f"got {count} variables, expected at most {MAX_VARIABLES}")
    variables = dict(_variable(reader) for _ in range(count))
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in variables:
            raise reader.error(f"'{alias}' is an alias of '{name}', which does not exist")
        variables[alias] = variables[name]
    if reader.place != len(reader.content):
        raise reader.error(f"{len(reader.content) - reader.place} bytes follow the end")
    return variables


def _variable(reader: _Reader) -> tuple[str, Tensor]:
    name, rank = reader.text(), reader.number("B")
    if rank > MAX_DIMENSIONS:
        raise reader.error(f"'{name}': got {rank} dimensions, expected at most {MAX_DIMENSIONS}")
    shape = [reader.number("I") for _ in range(rank)]
    if (code := reader.number("B")) >= len(TYPES):
        raise reader.error(f"'{name}': got type {code}, expected 0 to {len(TYPES) - 1}")
    kind: Any = np.dtype(TYPES[code]).newbyteorder("<")
    size, expected = reader.number("I"), math.prod(shape) * kind.itemsize
    if size != expected:
        raise reader.error(f"'{name}': got {size} bytes, expected {expected} for the shape {shape}")
    return name, torch.from_numpy(np.frombuffer(reader.take(size), kind).reshape(shape).copy())
