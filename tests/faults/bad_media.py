"""Files that are no picture, clip or sound, or a hostile one, made in code."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image as Pil

PICTURES = {"png": "PNG", "jpg": "JPEG", "gif": "GIF", "webp": "WEBP", "bmp": "BMP", "tif": "TIFF", "ppm": "PPM"}
CLIPS = {"mp4": "libx264", "mkv": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4", "ts": "libx264"}
SOUNDS = {"wav": "WAV", "flac": "FLAC", "ogg": "OGG", "mp3": "MP3", "aiff": "AIFF"}


def picture(suffix: str, **options) -> bytes:
    """A picture of noise, 40 x 30."""
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Pil.fromarray(pixels).save(buffer, PICTURES[suffix], **options)
    return buffer.getvalue()


def clip(path: Path, frames: int = 16, width: int = 64) -> bytes:
    """A clip of moving noise, ``width`` x 48 at 8 frames per second, as the suffix of its path says."""
    import av

    noise = np.random.default_rng(0).integers(0, 256, (48, width, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(CLIPS[path.suffix[1:]], rate=8)
        stream.width, stream.height, stream.pix_fmt = width, 48, "yuv420p"  # type: ignore[attr-defined]
        for index in range(frames):
            frame = av.VideoFrame.from_ndarray(np.roll(noise, 4 * index, 1), format="rgb24")
            container.mux(stream.encode(frame))  # type: ignore[attr-defined]
        container.mux(stream.encode())  # type: ignore[attr-defined]
    return path.read_bytes()


def sound(suffix: str, rate: int = 16_000) -> bytes:
    """Half a second of noise."""
    import soundfile

    buffer = io.BytesIO()
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, rate // 2).astype(np.float32)
    soundfile.write(buffer, noise, rate, format=SOUNDS[suffix])
    return buffer.getvalue()


# --- pictures that declare more than they are ------------------------------------------------------


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, before: bytes = b"", rows: bytes = b"") -> bytes:
    """A PNG of 8-bit grey, with further chunks before its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + before + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff(tile: int) -> bytes:
    """A TIFF of 64 x 64 pixels in one tile of tile x tile."""
    data = zlib.compress(bytes(1 << 20))
    entries = [(256, 64), (257, 64), (258, 8), (259, 8), (262, 1), (277, 1), (322, tile), (323, tile), (324, 0)]
    entries += [(325, len(data))]
    end = 8 + 2 + 12 * len(entries) + 4
    packed = (struct.pack("<HHII", tag, 4, 1, end if tag == 324 else value) for tag, value in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(packed) + bytes(4) + data


def scans(count: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    content = picture("jpg", progressive=True)
    last = content[content.rfind(b"\xff\xda") : -2]
    return content[:-2] + last * count + content[-2:]


def patched(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


def webp(width: int, height: int) -> bytes:
    """An animated WEBP whose canvas has another size than its frames."""
    buffer = io.BytesIO()
    frames = [Pil.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:])
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return patched(buffer.getvalue(), 24, size)


BOMBS: dict[str, Callable[[], bytes]] = {
    "13300.png": lambda: png(13_300, 13_400, rows=bytes(13_301 * 13_400)),
    "declared.png": lambda: png(1 << 30, 1 << 30),
    "narrow.png": lambda: png(1, 1 << 27),
    "text.png": lambda: png(4, 4, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 26))), bytes(20)),
    "texts.png": lambda: png(4, 4, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1 << 20))) * 100, bytes(20)),
    "profile.png": lambda: png(4, 4, chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 26))), bytes(20)),
    "tile.tif": lambda: tiff(1 << 14),
    "tiles.tif": lambda: tiff(1 << 30),
    "scans.jpg": lambda: scans(200),
    "canvas.webp": lambda: webp(16_000, 16_000),
    "canvases.webp": lambda: webp(1 << 24, 128),
    "screen.gif": lambda: patched(picture("gif"), 6, b"\xff\xff\xff\xff"),
    "size.bmp": lambda: patched(picture("bmp"), 18, struct.pack("<ii", 60_000, 60_000)),
    "negative.bmp": lambda: patched(picture("bmp"), 18, struct.pack("<ii", -40, 30)),
    "size.ppm": lambda: b"P6 90000 90000 255\n" + bytes(100),
    "ascii.ppm": lambda: b"P3 20000 20000 255\n" + b"0 " * 100,
    "none.png": lambda: png(0, 0),
    "none.bmp": lambda: patched(picture("bmp"), 18, bytes(8)),
}
"""Pictures that would fill memory or time, or have no pixels."""

OTHER_FORMATS: dict[str, bytes] = {
    "a.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/hostname) (r) file\nshowpage\n%%EOF\n",
    "eps.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n%%EOF\n",
    "a.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/hostname"/></svg>',
    "a.pdf": b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n",
    "a.psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 8, 8, 8, 3) + bytes(400),
    "a.wmf": b"\xd7\xcd\xc6\x9a" + bytes(60),
    "a.fits": b"SIMPLE  =                    T" + b" " * 2_850,
    "a.ico": b"\0\0\1\0\1\0" + bytes(40),
    "a.html": b"<html>404</html>",
    "a.jsonl": b'{"text": "a"}\n',
    "zeros.png": bytes(4_096),
    "a.gz": b"\x1f\x8b\x08" + bytes(30),
    "empty.png": b"",
}
"""What begins as no format that is read."""


# --- playlists, and sounds and clips that lie -------------------------------------------------------

PLAYLISTS: dict[str, str] = {
    "hls.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:2,\nclip.ts\n#EXT-X-ENDLIST\n",
    "hls.mp4": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:2,\nclip.ts\n#EXT-X-ENDLIST\n",
    "secret.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:2,\n/etc/hostname\n#EXT-X-ENDLIST\n",
    "net.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:2,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
    "concat.mp4": "ffconcat version 1.0\nfile clip.mp4\n",
    "concat.wav": "ffconcat version 1.0\nfile sound.wav\n",
    "secret.ffconcat": "ffconcat version 1.0\nfile /etc/hostname\n",
    "a.sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\n",
    "dash.mpd": '<?xml version="1.0"?><MPD><Period><BaseURL>clip.mp4</BaseURL></Period></MPD>',
    "a.m3u": "clip.mp4\n/etc/hostname\n",
}
"""Texts that name other files, which FFmpeg would open."""


def lying_clip(path: Path) -> None:
    """A clip that says to have 64 x 64 pixels, whose frames are PNGs of 20,000 x 20,000."""
    import av

    with av.open(str(path), "w", format="mov") as container:
        stream = container.add_stream("png", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "gray"  # type: ignore[attr-defined]
        bomb = png(20_000, 20_000, rows=bytes(20_001 * 20_000))
        for number in range(3):
            packet = av.Packet(bomb)
            packet.stream, packet.pts, packet.dts = stream, number, number
            packet.time_base = Fraction(1, 8)
            container.mux(packet)


def wav(rate: int, channels: int, bits: int = 16, data: bytes = bytes(64_000)) -> bytes:
    """A wav file with any header."""
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", 1, channels & 0xFFFF, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


BAD_SOUNDS: dict[str, Callable[[], bytes]] = {
    "rate.wav": lambda: wav(4_000_000_000, 1),
    "rates.wav": lambda: wav(0, 1),
    "channels.wav": lambda: wav(16_000, 1_000),
    "none.wav": lambda: wav(16_000, 0),
    "long.wav": lambda: wav(1, 1),
    "bits.wav": lambda: wav(16_000, 1, 999),
    "header.wav": lambda: wav(16_000, 1)[:30],
    "garbage.mp3": lambda: b"\xff\xfb\x90\x00" + bytes(5_000),
    "garbage.flac": lambda: b"fLaC" + bytes(5_000),
    "garbage.ogg": lambda: b"OggS" + bytes(5_000),
    "garbage.aac": lambda: b"\xff\xf1" + bytes(5_000),
    # What libsndfile takes for samples without a header, by the suffix.
    **{f"a.{suffix}": lambda: np.random.default_rng(0).bytes(5_000) for suffix in ("raw", "vox", "gsm", "au", "snd")},
    "a.sd2": lambda: bytes(5_000),
}


def special_files(folder: Path) -> Iterator[Path]:
    """Names under which there is no regular file."""
    for name, make in {
        "fifo.png": os.mkfifo,
        "folder.png": os.mkdir,
        "loop.png": lambda path: os.symlink("loop.png", path),
        "nowhere.png": lambda path: os.symlink("none", path),
        "zero.png": lambda path: os.symlink("/dev/zero", path),
        "null.png": lambda path: os.symlink("/dev/null", path),
        "proc.png": lambda path: os.symlink("/proc/self/mem", path),
    }.items():
        make(folder / name)
        yield folder / name
    yield from (Path("/dev/zero"), folder / ("x" * 300), folder / ("y/" * 3_000), folder / "a\0b", folder / "none.png")
