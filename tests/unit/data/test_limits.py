"""Files that are opened, and the sizes of pictures."""

from __future__ import annotations

import os
from contextlib import nullcontext
from io import BytesIO

import pytest
from PIL import Image as Pil

from mmgrpo.data import limits
from mmgrpo.data.limits import MAX_SCANS, Unreadable, open_image, regular_file
from tests.faults import bad_media


def test_a_regular_file_of_an_allowed_size_is_opened(tmp_path):
    (tmp_path / "a").write_bytes(b"123")
    os.symlink(tmp_path / "a", tmp_path / "link")
    assert regular_file(tmp_path / "a", 3).st_size == regular_file(str(tmp_path / "link")).st_size == 3
    with pytest.raises(Unreadable, match="a.*file.*3.*1.*2"):
        regular_file(tmp_path / "a", 2)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("none", "none"),
        ("empty/below", "below"),
        ("empty", "empty"),
        ("folder", "folder"),
        ("pipe", "pipe"),
        ("loop", "loop"),
        ("x" * 300, "/x*…"),
        ("a\0b", r"a\\x00b'"),
        ("\ud800", "name of a file"),
    ],
)
def test_anything_else_is_refused_with_the_reason(tmp_path, name, complaint):
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(Unreadable, match=complaint) as error:
        regular_file(f"{tmp_path}/{name}")
    assert len(str(error.value)) < 400


def test_a_path_is_shown_up_to_200_characters():
    for length, shown in ((200, "x" * 200), (201, f"{'x' * 200}…")):
        with pytest.raises(Unreadable, match=f"^{shown}"):
            regular_file("x" * length)


def test_the_size_of_a_picture_is_checked_when_it_is_opened():
    assert open_image(BytesIO(bad_media.png(8_192, 8_192))).size == (8_192, 8_192)
    with pytest.raises(Unreadable, match="got 8,193 x 8,192"):
        open_image(BytesIO(bad_media.png(8_193, 8_192)))


def test_the_scans_of_a_jpeg_are_counted():
    own = bad_media.picture("jpg", progressive=True).count(b"\xff\xda")
    assert open_image(BytesIO(bad_media.scans(MAX_SCANS - own))).load()
    with pytest.raises(Unreadable, match="JPEG.*101.*100"):
        open_image(BytesIO(bad_media.scans(MAX_SCANS + 1 - own)))


def test_a_picture_that_is_refused_is_closed(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(bad_media.png(8_193, 8_192))
    opened, opens = [], Pil.open
    monkeypatch.setattr(Pil, "open", lambda *given, **more: opened.append(opens(*given, **more)) or opened[0])
    with pytest.raises(Unreadable, match="got 8,193 x 8,192"):
        open_image(tmp_path / "a.png")
    assert opened[0].fp is None


def test_the_tiles_of_a_tiff_are_bounded(monkeypatch):
    assert open_image(BytesIO(bad_media.tiff(64))).size == (64, 64)
    with pytest.raises(Unreadable, match="tiles.*67,125,249.*67,108,864"):
        open_image(BytesIO(bad_media.tiff(8_193)))
    for most, refused in ((64 * 64, False), (64 * 64 - 1, True)):
        monkeypatch.setattr(limits, "check_image_size", lambda width, height: None)
        monkeypatch.setattr(limits, "MAX_PIXELS", most)
        with pytest.raises(Unreadable) if refused else nullcontext():
            open_image(BytesIO(bad_media.tiff(64)))
