from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmgrpo.files import naming, new_folder, share, write_bytes, write_tensors, write_text
from mmgrpo.runtime.metrics import MetricsLog


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request):
    """The umask of the process meanwhile; a file without it is 0o666, a folder 0o777."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_written_with_its_folders(tmp_path):
    path = tmp_path / "a" / "b" / "c.txt"
    write_text(path, "zwei Bären\n")
    assert path.read_bytes() == "zwei Bären\n".encode()


def test_files_and_folders_have_the_permissions_of_the_umask(umask, tmp_path):
    write_text(tmp_path / "a.txt", "")
    write_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)}, {"b": "c"})
    (tmp_path / "sub").mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "sub" / "theirs.safetensors")  # 0600, whatever the umask
    share(tmp_path)
    files = {path.name: mode(path) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == dict.fromkeys(("a.txt", "a.safetensors", "theirs.safetensors"), 0o666 & ~umask)
    folder = new_folder(tmp_path / "deep", ".writing-")
    assert mode(folder) == 0o777 & ~umask and folder.name.startswith(".writing-") and not list(folder.iterdir())
    assert load_file(tmp_path / "a.safetensors")["a"].tolist() == [1, 1]


@pytest.mark.parametrize("where", ["write", "replace", "open"])
def test_a_full_disk_is_told_with_the_name_of_the_file(where, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, {"write": "fsync", "replace": "replace", "open": "open"}[where], full)
    with pytest.raises(OSError, match=r"a\.txt") as caught:
        write_text(tmp_path / "a.txt", "words")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == []


def test_an_error_that_names_a_file_already_and_one_without_a_number_stay_what_they_are(tmp_path):
    for error in (OSError(errno.ENOENT, "no such file", "other"), OSError("words"), ValueError("os error 28")):
        with pytest.raises(type(error)) as caught, naming(tmp_path / "a"):
            raise error
        assert str(caught.value) == str(error) and "/a" not in str(caught.value)


def test_metrics_that_do_not_fit_name_their_file(tmp_path):
    log = MetricsLog(tmp_path)
    log.path = Path("/dev/full")
    with pytest.raises(OSError, match="/dev/full"):
        log.write(1, {"loss": 0.5})


def test_tensors_that_cannot_be_written_leave_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": torch.zeros(1)})
    with pytest.raises(ValueError, match="contiguous"):
        write_tensors(path, {"a": torch.ones(2, 3).T})
    assert load_file(path)["a"].tolist() == [0] and [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


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


def test_the_whole_content_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    sizes, fsync = [], os.fsync

    def note(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_bytes(tmp_path / "a.txt", b"new")
    assert sizes == [3]
