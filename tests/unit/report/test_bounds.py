"""What a report reads and writes at most: the bound itself is within, and one more is not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mmgrpo.report.html import write_report
from mmgrpo.report.media import (
    MediaFolder,
    Unavailable,
    read_medium,
)
from mmgrpo.report.untrusted import parse_json, read_text


def sized(path: Path, size: int) -> Path:
    """A file of so many null bytes, which takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, size)
    return path


# Texts and JSON


def test_a_text_has_at_most_the_bytes_that_its_reader_allows(tmp_path):
    (tmp_path / "a").write_text("four")
    assert read_text(tmp_path, "a", 4) == "four"
    with pytest.raises(ValueError, match="a.*4 bytes.*3"):
        read_text(tmp_path, "a", 3)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("config.yaml", 2**18),
        ("summary.json", 2**25),
        ("metrics.jsonl", 2**29),
        ("groups/step-000000/group.json", 2**23),
    ],
)
def test_files_of_a_run_have_bounds_of_their_own(tmp_path, name, bound):
    sized(tmp_path / name, bound + 1)
    with pytest.raises(ValueError, match=f"{bound + 1:,}.*{bound:,}"):
        write_report(tmp_path)


# Media of a page


def test_json_has_32_levels_and_10_000_keys():
    assert parse_json("[" * 32 + "]" * 32, "a") and len(
        parse_json(json.dumps(dict.fromkeys(map(str, range(10_000)))), "a")
    )
    with pytest.raises(ValueError, match="a.*32 nested"):
        parse_json("[" * 33 + "]" * 33, "a")
    with pytest.raises(ValueError, match="a.*object.*10,001.*10,000"):
        parse_json(json.dumps([{}, dict.fromkeys(map(str, range(10_001)))]), "a")


def test_a_file_is_read_up_to_its_own_bound_and_that_of_the_page(tmp_path):
    for name, content in (("a.png", b"four"), ("b.png", b"1")):
        (tmp_path / name).write_bytes(content)
    folder = MediaFolder(tmp_path, left=4)
    assert read_medium(folder, "a.png", [".png"], 4) == b"four" and folder.left == 0
    with pytest.raises(Unavailable, match="b.png.*out.* 4 bytes"):
        read_medium(folder, "b.png", [".png"], 4)
    with pytest.raises(Unavailable, match="a.png.*4.*3"):
        read_medium(MediaFolder(tmp_path), "a.png", [".png"], 3)
    assert MediaFolder(tmp_path).left == 2**28


# Media of a group


# Groups
