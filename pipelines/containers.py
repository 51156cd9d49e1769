"""Containers of clips and audio: recognized by their first bytes, and opened by av with limits on what it decodes.

FFmpeg guesses among some 300 formats, of which playlists, concatenations and image sequences read other files or the
network. Here the format is one of a few, and chosen before FFmpeg sees the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from mmgrpo.data.limits import Unreadable

MAX_FRAME_PIXELS = 8192 * 4352
"""Pixels of a frame, 8K in whole blocks. A decoder keeps up to 16 frames and one per thread, here about 1.7 GiB."""

MAX_AUDIO_FRAME = 1 << 20
"""Samples of one frame of a recording stream, of which codecs have up to some ten thousand."""

MAX_PACKETS = 1_000_000
"""Packets of a stream: those of four hours at 60 frames per second. A file of nothing but empty ones ends there."""

SIGNATURES = (
    *((4, kind, "mov") for kind in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")),
    (0, b"\x1a\x45\xdf\xa3", "matroska"),
    (8, b"AVI ", "avi"),
    (0, b"OggS", "ogg"),
    (0, b"FLV\x01", "flv"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (0, b"\x00\x00\x01\xba", "mpeg"),
    (188, b"\x47", "mpegts"),
    (0, b"GIF8", "gif"),
    (0, b"#!AMR", "amr"),
    (0, b"ID3", "mp3"),
    *((0, b"\xff" + second, "aac") for second in (b"\xf0", b"\xf1", b"\xf8", b"\xf9")),
    *((0, b"\xff" + second, "mp3") for second in (b"\xfa", b"\xfb", b"\xf2", b"\xf3", b"\xe2", b"\xe3")),
)
"""Place and content of the bytes by which a container is recognized, and FFmpeg's name of it."""

KNOWN = ", ".join(sorted({name for _, _, name in SIGNATURES}))

T = TypeVar("T")


def rewound(file: str | BytesIO) -> str | BytesIO:
    """The same file; one in memory is at its beginning."""
    if isinstance(file, BytesIO):
        file.seek(0)
    return file


def beginning(file: str | BytesIO, count: int) -> bytes:
    """The first bytes of a file."""
    if isinstance(file, BytesIO):
        return bytes(file.getbuffer()[:count])
    with open(file, "rb") as stream:
        return stream.read(count)


def container_format(file: str | BytesIO) -> str:
    """FFmpeg's name of the container that a file begins as; ValueError where it is none of ``SIGNATURES``."""
    head = beginning(file, 256)
    for place, content, name in SIGNATURES:
        if head[place:].startswith(content):
            return name
    raise ValueError(f"begins as no known container ({KNOWN}); convert it")


def open_container(file: str | BytesIO, *, edit_lists: bool = True) -> Any:
    """The opened container; without ``edit_lists`` also what those cut away is demultiplexed.

    Frames beyond the limits are errors of the decoder, before memory is reserved for them.
    """
    import av

    limits = {"max_pixels": str(MAX_FRAME_PIXELS), "max_samples": str(MAX_AUDIO_FRAME)}
    container = av.open(
        # An absolute path names no protocol of FFmpeg.
        str(Path(file).absolute()) if isinstance(file, str) else rewound(file),
        format=container_format(file),
        options={"protocol_whitelist": "file", "advanced_editlist": str(int(edit_lists)), **limits},
    )
    for stream in (*container.streams.video, *container.streams.audio):
        stream.codec_context.options = limits
    return container


def within_limit(packets: Iterable[T]) -> Iterator[T]:
    """The packets or frames of a stream; beyond ``MAX_PACKETS`` the file is ``Unreadable``."""
    for number, packet in enumerate(packets):
        if number >= MAX_PACKETS:
            raise Unreadable(f"got more than {MAX_PACKETS:,} packets, expected at most as many; cut it")
        yield packet
