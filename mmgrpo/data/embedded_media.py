"""Media inside of data files: named where the row is read, and read where a model needs them.

The content of a medium (bytes, or base64 as in ``data:image/png;base64,...``) never enters a prompt, which has an
``Inside`` in its place: ``<data file>::<place in it>``. What is read from there (``limits.open_source``) has the limits
of files.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

import torch

from mmgrpo.data.limits import STORES, Unreadable
from mmgrpo.data.media import IN_MEMORY, Inside
from mmgrpo.data.values import MAX_DEPTH, show_value
from mmgrpo.types import Audio

MEDIA_KEYS = frozenset(
    {key for kind in IN_MEMORY for key in (kind, kind + "s")}
    | {"mask", "path", "url", "data", "bytes", "audio_filepath"}
)
"""Keys whose strings may be the content of a medium."""

DATA_URI = re.compile(r"data:(image|audio|video)/[\w.+-]+(;[\w=.+-]+)*;base64,", re.IGNORECASE)
BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")
BEGINNINGS = (
    "iVBORw0KGgo",
    "/9j/",
    "R0lGOD",
    "UklGR",
    "Qk",
    "SUkq",
    "TU0A",
    "ZkxhQ",
    "T2dnU",
    "SUQz",
    "//",
    "AAAA",
    "GkXf",
)
"""Base64 of the first bytes of PNG, JPEG, GIF, WEBP and WAV, BMP, TIFF, FLAC, OGG, MP3, MP4 and WEBM."""


class _Memory:
    """Media of rows that lie in no file, by the hash of their content."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}

    def keep(self, content: bytes) -> Inside:
        place = hashlib.sha256(content).hexdigest()[:24]
        self.contents[place] = content
        return Inside(f"memory::{place}")

    def read(self, place: str, max_bytes: int) -> bytes:
        return _check_size(self.contents[place], max_bytes)


MEMORY = _Memory()
STORES["memory"] = MEMORY


def refer_media(
    row: Mapping[str, Any], refer: Callable[[tuple[str, ...], bytes | str], Inside], also: Iterable[str] = ()
) -> dict[str, Any]:
    """The row with ``refer`` (its key, its content) in the place of every content of a medium.

    That are bytes anywhere, and strings under ``MEDIA_KEYS`` or ``also`` that are base64. ``{"bytes": ..., "path":
    ...}`` is the form of ``datasets.Image`` and ``datasets.Audio``; samples with their rate become an ``Audio``.
    """
    names = MEDIA_KEYS | set(also)

    def walk(value: Any, keys: tuple[str, ...], name: str) -> Any:
        if isinstance(value, bytes) or (isinstance(value, str) and name in names and _is_base64(value)):
            return refer(keys, value)
        if isinstance(value, list | tuple) and len(keys) <= MAX_DEPTH:
            return [walk(item, (*keys, str(number)), name) for number, item in enumerate(value)]
        if not isinstance(value, Mapping) or len(keys) > MAX_DEPTH:  # of which ``check_values`` complains
            return value
        if value.keys() >= {"array", "sampling_rate"}:
            return _samples(value, ".".join(keys))
        if value.get("bytes") is not None:
            if not isinstance(value["bytes"], bytes | str) or not isinstance(value.get("path"), str | None):
                kind = type(value["bytes"]).__name__
                raise ValueError(f"'{keys[-1]}': got bytes of type {kind}, expected those of a file, and its path")
            options = {key: item for key, item in value.items() if key not in ("bytes", "path", "sampling_rate")}
            inside = refer((*keys, "bytes"), value["bytes"])
            return {**options, "path": inside} if any(item is not None for item in options.values()) else inside
        return {key: walk(item, (*keys, str(key)), str(key)) for key, item in value.items()}

    return {key: walk(value, (str(key),), str(key)) for key, value in row.items()}


def _is_base64(text: str) -> bool:
    return bool(DATA_URI.match(text)) or (text.startswith(BEGINNINGS) and bool(BASE64.fullmatch(text)))


def _samples(value: Mapping[str, Any], key: str) -> Audio:
    rate = value["sampling_rate"]
    try:
        samples = torch.as_tensor(value["array"], dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'{key}.array': got {show_value(value['array'])}, expected samples") from error
    if samples.ndim not in (1, 2) or not isinstance(rate, int) or isinstance(rate, bool) or rate < 1:
        raise ValueError(
            f"'{key}': got samples of shape {list(samples.shape)} at {show_value(rate)} Hz, expected [samples] or "
            "[channels, samples] at a rate above 0"
        )
    return Audio(samples.reshape(-1, samples.shape[-1]), rate)


def name_of(keys: Iterable[str]) -> str:
    """The place of a medium in a row, as ``value_at`` takes it."""
    return "/".join(quote(key, safe="") for key in keys)


def content_at(row: Mapping[str, Any], name: str, max_bytes: int) -> bytes:
    """The content of the medium at a place of a row; ``Unreadable`` where it is damaged or too large."""
    value: Any = row
    for key in map(unquote, name.split("/")):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return _check_size(decode(value), max_bytes)


def decode(value: bytes | str) -> bytes:
    """The bytes of a medium as a row has them: bytes, or base64."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode("".join(DATA_URI.sub("", value, count=1).split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Unreadable(f"is no base64 ({error}); encode it again") from error


def _check_size(value: bytes, max_bytes: int) -> bytes:
    if not 0 < len(value) <= max_bytes:
        raise Unreadable(f"got {len(value):,} bytes, expected 1 to {max_bytes:,}; scale it down or compress it")
    return value
