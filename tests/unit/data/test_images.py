"""What models are shown of picture files, and that a file is decoded once."""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image as Pil
from PIL import ImageCms

from mmgrpo.data import images, limits
from mmgrpo.data.images import ImageCache, decode_image, from_pil
from mmgrpo.data.limits import Unreadable
from mmgrpo.types import Audio, Image, Media
from pipelines.vlm.media import read_image


def written(path, picture, **options):
    picture.save(path, **options)
    return Media("image", str(path))


def colour_of(media):
    """The colour of the upper left pixel, 0 to 255."""
    return (read_image(media).pixels[:, 0, 0] * 255).round().int().tolist()


def test_a_png_is_read_exactly(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    read = read_image(written(tmp_path / "a.png", Pil.fromarray(pixels))).pixels
    assert read.dtype == torch.float32 and np.array_equal((read * 255).round().byte().permute(1, 2, 0), pixels)


def test_what_is_transparent_is_seen_on_white(tmp_path):
    # Half transparent red on white: 0.5 * (200, 0, 0) + 0.5 * 255, rounded.
    assert colour_of(written(tmp_path / "a.png", Pil.new("RGBA", (4, 4), (200, 0, 0, 0)))) == [255, 255, 255]
    assert colour_of(written(tmp_path / "b.png", Pil.new("LA", (4, 4), (0, 0)))) == [255, 255, 255]
    red, green, blue = colour_of(written(tmp_path / "c.png", Pil.new("RGBA", (4, 4), (200, 0, 0, 128))))
    assert abs(red - 227) <= 1 and green == blue and abs(green - 127) <= 1
    palette = Pil.new("P", (4, 4), 0)
    palette.putpalette([9, 8, 7, 255, 0, 0])
    assert colour_of(written(tmp_path / "d.png", palette, transparency=0)) == [255, 255, 255]


def test_palettes_greys_bits_and_inks_become_rgb(tmp_path):
    palette = Pil.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    assert colour_of(written(tmp_path / "palette.png", palette)) == [10, 200, 30]
    assert colour_of(written(tmp_path / "grey.png", Pil.new("L", (4, 4), 77))) == [77, 77, 77]
    assert colour_of(written(tmp_path / "bit.png", Pil.new("1", (4, 4), 1))) == [255, 255, 255]
    assert colour_of(written(tmp_path / "ink.tif", Pil.new("CMYK", (4, 4), (255, 0, 0, 0)))) == [0, 255, 255]


def test_sixteen_bits_are_scaled_and_not_cut(tmp_path):
    grey = Pil.fromarray(np.full((4, 4), 40000, np.uint16))
    assert read_image(written(tmp_path / "a.png", grey)).pixels[:, 0, 0].tolist() == pytest.approx([40000 / 65535] * 3)
    with pytest.raises(Unreadable, match=r"b\.tif.*float"):
        read_image(written(tmp_path / "b.tif", Pil.fromarray(np.ones((4, 4), np.float32))))
    for level in (-1, 65_536):
        with pytest.raises(Unreadable, match=rf"c\.tif.*{level}.*{level}"):
            read_image(written(tmp_path / "c.tif", Pil.fromarray(np.full((4, 4), level, np.int32))))
    for levels in ((-1, 5), (5, 65_536)):
        with pytest.raises(Unreadable, match=f"{levels[0]}.*{levels[1]}"):
            from_pil(Pil.fromarray(np.array([levels], np.int32)))
    edges = Pil.fromarray(np.array([[0, 65_535]], np.int32))
    assert read_image(written(tmp_path / "d.tif", edges)).pixels[0].tolist() == [[0.0, 1.0]]


def test_a_picture_that_was_taken_sideways_is_turned_upright(tmp_path):
    exif = Pil.Exif()
    exif[0x0112] = 6  # the camera lay on its left: turn clockwise to see it upright
    pixels = np.zeros((8, 16, 3), np.uint8)
    pixels[:, :8] = 255  # the left half becomes the upper half
    seen = read_image(written(tmp_path / "a.png", Pil.fromarray(pixels), exif=exif)).pixels
    assert seen.shape == (3, 16, 8) and bool(seen[:, :8].eq(1).all()) and bool(seen[:, 8:].eq(0).all())


def test_a_picture_that_is_mirrored_is_turned_back_and_one_that_says_it_is_upright_is(tmp_path):
    exif, pixels = Pil.Exif(), np.zeros((2, 4, 3), np.uint8)
    pixels[:, :1] = 255
    for orientation, white in ((1, 0), (2, 3)):
        exif[0x0112] = orientation
        seen = read_image(written(tmp_path / "a.png", Pil.fromarray(pixels), exif=exif)).pixels[0, 0]
        assert seen.nonzero().tolist() == [[white]]


def test_bytes_without_a_name_are_told_by_their_number():
    with pytest.raises(Unreadable, match="^2 bytes"):
        decode_image(b"no")
    with pytest.raises(Unreadable, match="^mine"):
        decode_image(b"no", "mine")


def test_a_file_cut_short_is_named_and_never_shown_in_part(tmp_path):
    media = written(
        tmp_path / "whole.jpg", Pil.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    )
    cut = tmp_path / "cut.jpg"
    cut.write_bytes((tmp_path / "whole.jpg").read_bytes()[:1000])
    assert read_image(media).pixels.shape == (3, 64, 64)
    with pytest.raises(Unreadable, match=r"cut\.jpg.*truncated"):
        read_image(Media("image", str(cut)))


def test_files_that_are_missing_or_no_pictures_are_named(tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(Unreadable, match=r"text\.png"):
        read_image(Media("image", str(tmp_path / "text.png")))
    with pytest.raises(Unreadable, match=r"none\.png"):
        read_image(Media("image", str(tmp_path / "none.png")))
    with pytest.raises(Unreadable, match="kind Audio"):
        read_image(Media("image", Audio(torch.zeros(1, 4), 8000)))


def bomb(side):
    """The bytes of a PNG that says to have side x side pixels."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_picture_that_would_fill_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    with pytest.raises(Unreadable, match="bomb.*exceeds limit"):
        decode_image(bomb(20000), "the bomb")
    monkeypatch.setattr(Pil, "MAX_IMAGE_PIXELS", None)  # as other libraries set it
    with pytest.raises(Unreadable, match="bomb.*20,000 x 20,000 = 400,000,000.*1.*67,108"):
        decode_image(bomb(20000), "the bomb")


def test_pictures_that_a_caller_holds_have_the_same_limit(monkeypatch):
    monkeypatch.setattr(limits, "MAX_PIXELS", 6)
    assert from_pil(Pil.new("RGB", (3, 2))).pixels.shape == (3, 2, 3)
    with pytest.raises(Unreadable, match="7 x 1 = 7 pixels.*1.*6"):
        from_pil(Pil.new("RGB", (7, 1)))


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    with pytest.raises(Unreadable, match="directory"):
        decode_image(tmp_path)


def test_a_picture_in_memory_is_taken_as_it_is():
    image = Image(torch.rand(3, 4, 5))
    assert read_image(Media("image", image)) is image


# --- decoded once ---------------------------------------------------------------------------------


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that were decoded."""
    names, decode = [], images._pixels
    monkeypatch.setattr(
        images, "_pixels", lambda picture: names.append(picture.filename.rsplit("/")[-1]) or decode(picture)
    )
    return names


def test_a_file_is_decoded_once_as_long_as_it_is_the_same(tmp_path, decoded):
    cache, path = ImageCache(), tmp_path / "a.png"
    Pil.new("RGB", (3, 2), (255, 0, 51)).save(path)
    first, second = cache.read(path), cache.read(str(path))
    assert decoded == ["a.png"] and cache.nbytes == 3 * 2 * 3
    assert torch.equal(first.pixels, second.pixels) and torch.equal(first.pixels, decode_image(path).pixels)
    Pil.new("RGB", (3, 2), (0, 0, 0)).save(path)
    os.utime(path, ns=(1, 1))
    assert cache.read(path).pixels.sum() == 0


def test_sixteen_bits_come_from_the_cache_as_from_the_file(tmp_path):
    cache, path = ImageCache(), tmp_path / "a.png"
    Pil.fromarray(np.full((4, 4), 40000, np.uint16)).save(path)
    assert torch.equal(cache.read(path).pixels, cache.read(path).pixels)
    assert torch.equal(cache.read(path).pixels, decode_image(path).pixels) and cache.nbytes == 4 * 3 * 4 * 4


def test_beyond_the_limit_the_least_recently_used_is_dropped(tmp_path, decoded):
    for name in "abc":
        Pil.new("RGB", (2, 2)).save(tmp_path / name, "png")
    cache = ImageCache(limit=24)  # two pictures of 12 bytes
    for name in "abacab":
        cache.read(tmp_path / name)
    assert decoded == ["a", "b", "c", "b"] and cache.nbytes == 24
    nothing = ImageCache(limit=0)
    nothing.read(tmp_path / "a"), nothing.read(tmp_path / "a")
    assert decoded[4:] == ["a", "a"] and nothing.nbytes == 0
    assert ImageCache().limit == 2**30, "a gibibyte by default"


def test_what_cannot_be_read_is_not_kept(tmp_path):
    cache, path = ImageCache(), tmp_path / "a.png"
    for _ in range(2):
        with pytest.raises(Unreadable, match=r"a\.png"):
            cache.read(path)
    path.write_bytes(b"no")
    with pytest.raises(Unreadable, match=r"a\.png.*image"):
        cache.read(path)
    assert cache.nbytes == 0


@pytest.mark.parametrize(("bits", "white"), [(8, 255), (16, 65535)])
def test_a_tiff_in_which_zero_is_white_is_read_as_it_looks(bits, white, tmp_path):
    """A file of one strip, written by hand: black, a quarter, white, as MinIsWhite stores them."""
    values = [white, white - white // 4, 0]
    data = b"".join(value.to_bytes(bits // 8, "little") for value in values)
    entries = [(256, 3), (257, 1), (258, bits), (259, 1), (262, 0), (273, 8), (277, 1), (278, 1), (279, len(data))]
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    file = tmp_path / "a.tif"
    file.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(data)) + data + table + b"\0\0\0\0")
    assert decode_image(file).pixels[0, 0].tolist() == pytest.approx([0, 0.25, 1], abs=2 / 255)


# --- colour profiles ------------------------------------------------------------------------------


def profile(primaries, gamma: float) -> bytes:
    """An ICC profile of version 2: the XYZ of red, green and blue (under D50), and one gamma."""

    def fixed(value: float) -> bytes:
        return struct.pack(">i", round(value * 65536))

    def point(values) -> bytes:
        return b"XYZ \0\0\0\0" + b"".join(map(fixed, values))

    curve = b"curv\0\0\0\0" + struct.pack(">IH", 1, round(gamma * 256)) + b"\0\0"
    text = b"text\0\0\0\0none\0\0\0\0"
    description = b"desc\0\0\0\0" + struct.pack(">I", 5) + b"test\0" + b"\0" * 79
    content = {b"desc": description, b"cprt": text, b"wtpt": point((0.9642, 1.0, 0.8249))}
    content |= {name: point(value) for name, value in zip((b"rXYZ", b"gXYZ", b"bXYZ"), primaries, strict=True)}
    content |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, body, start = b"", b"", 128 + 4 + 12 * len(content)
    for name, value in content.items():
        value += b"\0" * (-len(value) % 4)
        table += name + struct.pack(">II", start + len(body), len(value))
        body += value
    size = start + len(body)
    head = struct.pack(">I4xI", size, 0x02400000) + b"mntrRGB XYZ " + struct.pack(">6H", 2026, 1, 1, 0, 0, 0) + b"acsp"
    head = head.ljust(68, b"\0") + fixed(0.9642) + fixed(1.0) + fixed(0.8249)
    return head.ljust(128, b"\0") + struct.pack(">I", len(content)) + table + body


ADOBE = profile(
    ((0.60974, 0.31111, 0.01947), (0.20528, 0.62567, 0.06087), (0.14919, 0.06322, 0.74457)), 2.19921875
)  # the primaries of Adobe RGB (1998), adapted to D50


@pytest.mark.parametrize(
    ("kind", "colour", "expected"),
    [
        ("RGB", (60, 200, 60), [0, 201, 37]),
        ("RGBA", (60, 200, 60, 255), [0, 201, 37]),
        ("RGBA", (60, 200, 60, 0), [255, 255, 255]),
        ("P", (60, 200, 60), [0, 201, 37]),
        ("RGB", (128, 128, 128), [128, 128, 128]),  # white and grey are the same in both
        ("L", 100, [100, 100, 100]),  # a profile of another kind of image
    ],
)
def test_an_embedded_colour_profile_is_converted(tmp_path, kind, colour, expected):
    picture = Pil.new("RGB", (4, 4), colour).convert("P") if kind == "P" else Pil.new(kind, (4, 4), colour)
    if kind == "P":
        picture = Pil.new("RGB", (4, 4), colour).quantize(2)
    found = colour_of(written(tmp_path / "a.png", picture, icc_profile=ADOBE))
    assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) <= 1
    picture.info["icc_profile"] = ADOBE
    assert max(map(abs, (from_pil(picture).pixels[:, 0, 0] * 255 - torch.tensor(expected)).tolist())) <= 1.01


def test_a_profile_of_srgb_or_a_damaged_one_changes_no_pixel(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    same = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    entry = same.index(b"rXYZ") + 4  # of the table of tags: where red stands, of which X in 1 / 65536 is the third word
    red = int.from_bytes(same[entry : entry + 4], "big") + 8
    rounded = same[:red] + (int.from_bytes(same[red : red + 4], "big") + 33).to_bytes(4, "big") + same[red + 4 :]
    for content in (same, rounded, b"no profile", ADOBE[:200]):
        read = read_image(written(tmp_path / "a.png", Pil.fromarray(pixels), icc_profile=content)).pixels
        assert np.array_equal((read * 255).round().byte().permute(1, 2, 0), pixels)
