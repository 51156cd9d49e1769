"""Weights of a CTranslate2 ``model.bin`` as tensors, read byte by byte: no pickle, nothing is run.

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
"""What the type codes 0, 1, ... of the file mean."""
MOST_VARIABLES = 100_000
MOST_DIMENSIONS = 8


class _Bytes:
    """What is left of a file; reading beyond its end is an error that names it."""

    def __init__(self, path: Path) -> None:
        self.path, self.content, self.place = path, memoryview(path.read_bytes()), 0

    def take(self, count: int) -> memoryview:
        if count > len(self.content) - self.place:
            raise self.broken(f"{count} bytes are announced, {len(self.content) - self.place} are left")
        self.place += count
        return self.content[self.place - count : self.place]

    def number(self, form: str) -> int:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))[0]

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).removesuffix(b"\0").decode("ascii", "backslashreplace")

    def broken(self, reason: str) -> ValueError:
        return ValueError(f"{self.path} is not a CTranslate2 model of version {VERSION}: byte {self.place}: {reason}")


def read_variables(path: Path, specification: str) -> dict[str, Tensor]:
    """Every variable by name, aliases included, in the type of the file.

    A file of another specification or version, or one that is damaged or too long, is a ``ValueError``.
    """
    left = _Bytes(path)
    if (version := left.number("I")) != VERSION:
        raise left.broken(f"its version is {version}")
    if (name := left.text()) != specification:
        raise left.broken(f"it is a '{name}', wanted a '{specification}'")
    left.number("I")
    if (count := left.number("I")) > MOST_VARIABLES:
        raise left.broken(f"it announces {count} variables; at most {MOST_VARIABLES} are read")
    variables = dict(_variable(left) for _ in range(count))
    for _ in range(left.number("I")):
        alias, name = left.text(), left.text()
        if name not in variables:
            raise left.broken(f"'{alias}' is said to be '{name}', which is not there")
        variables[alias] = variables[name]
    if left.place != len(left.content):
        raise left.broken(f"{len(left.content) - left.place} bytes follow the end")
    return variables


def _variable(left: _Bytes) -> tuple[str, Tensor]:
    name, rank = left.text(), left.number("B")
    if rank > MOST_DIMENSIONS:
        raise left.broken(f"'{name}' has {rank} dimensions; at most {MOST_DIMENSIONS} are read")
    shape = [left.number("I") for _ in range(rank)]
    if (code := left.number("B")) >= len(TYPES):
        raise left.broken(f"'{name}' is of type {code}; known are 0 to {len(TYPES) - 1}")
    kind: Any = np.dtype(TYPES[code]).newbyteorder("<")
    size = left.number("I")
    if size != math.prod(shape) * kind.itemsize:
        raise left.broken(f"'{name}' has {size} bytes, but its shape {shape} needs {math.prod(shape) * kind.itemsize}")
    return name, torch.from_numpy(np.frombuffer(left.take(size), kind).reshape(shape).copy())
