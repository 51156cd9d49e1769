"""Media inside data sets are content of strangers: what their rows may name, and where they are written."""

from __future__ import annotations

import pytest

from pipelines.hub import _as_files
from tests.faults import bad_media

PNG = bad_media.picture("png")


@pytest.mark.parametrize(
    ("path", "suffix"),
    [
        ("a.png", ".png"),
        ("folder/a.JPEG", ".JPEG"),
        ("../../a.png/../b", ""),
        ("a." + "x" * 5_000, ""),
        ("a.p\0ng", ""),
        ("a./../../x", ""),
        (None, ""),
    ],
)
def test_a_picture_is_written_into_the_folder_whatever_its_path(tmp_path, path, suffix):
    store = tmp_path / "media"
    file = _as_files({"bytes": PNG, "path": path}, "image", store)
    (written,) = tmp_path.rglob("*.*") if suffix else store.iterdir()
    assert (
        str(written) == file["path"] and file["bytes"] is None and written.parent == store and written.suffix == suffix
    )
    assert written.read_bytes() == PNG


@pytest.mark.parametrize("value", [{"bytes": "text", "path": "a.png"}, {"bytes": PNG, "path": 3}])
def test_bytes_that_are_none_are_refused(tmp_path, value):
    with pytest.raises(ValueError, match="'image': got bytes of type (str|bytes), expected those of a file, and its p"):
        _as_files(value, "image", tmp_path)
