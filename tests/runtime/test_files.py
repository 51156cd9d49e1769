from __future__ import annotations

import os
import stat

import pytest

from mmgrpo.runtime.files import write_bytes, write_text


def test_a_file_is_written_with_its_folders_and_readable_as_others_are(tmp_path):
    path = tmp_path / "a" / "b" / "c.txt"
    write_text(path, "zwei Bären\n")
    assert path.read_bytes() == "zwei Bären\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_bytes(path, b"old")

    def refuse(*_):
        raise OSError("no")

    for step in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(os, step, refuse)
            with pytest.raises(OSError, match="no"):
                write_bytes(path, b"new")
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_whoever_reads_the_old_file_reads_it_to_its_end(tmp_path):
    path = tmp_path / "a.txt"
    write_bytes(path, b"old")
    with path.open("rb") as reader:
        write_bytes(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"


def test_the_temporary_file_lies_beside_its_target_so_that_the_rename_stays_on_one_disk(tmp_path, monkeypatch):
    renamed, replace = [], os.replace

    def watched(source, target):
        renamed.append((os.path.dirname(source), os.path.dirname(target)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write_bytes(tmp_path / "deep" / "a.txt", b"new")
    assert renamed == [(str(tmp_path / "deep"), str(tmp_path / "deep"))]


def test_the_whole_content_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    sizes, fsync = [], os.fsync

    def note(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_bytes(tmp_path / "a.txt", b"new")
    assert sizes == [3]
