from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from mmgrpo.runtime import folder as module
from mmgrpo.runtime.folder import lock


def test_a_second_holder_is_refused_by_name_and_may_hold_it_afterwards(tmp_path):
    path = tmp_path / "runs" / ".demo.lock"
    named = f"runs/demo.*{os.getpid()}.*{socket.gethostname()}"
    with lock(path, "runs/demo"), pytest.raises(OSError, match=named), lock(path, "runs/demo"):
        raise AssertionError
    assert not path.exists()
    with lock(path, "runs/demo"):
        assert json.loads(path.read_text())["process"] == os.getpid()


def test_a_lock_file_that_was_removed_meanwhile_is_no_error(tmp_path):
    with lock(tmp_path / "runs" / ".demo.lock", "demo"):
        (tmp_path / "runs" / ".demo.lock").unlink()
    assert not (tmp_path / "runs").exists()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    path = tmp_path / ".demo.lock"
    code = f"""
import os, signal, pathlib
from mmgrpo.runtime.folder import lock
with lock(pathlib.Path({str(path)!r}), "demo"):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert path.exists()
    with lock(path, "demo"):
        assert json.loads(path.read_text())["process"] == os.getpid()


def unsupported(descriptor, operation):
    raise OSError(errno.ENOLCK, "no locks available")


@pytest.mark.parametrize(
    ("owner", "free"),
    [
        ({}, True),
        ({"host": socket.gethostname(), "process": 2**22 + 1}, True),
        ({"host": socket.gethostname(), "process": os.getppid()}, False),
        ({"host": "elsewhere", "process": 1}, False),
    ],
)
def test_without_locks_of_the_file_system_the_file_says_who_holds_it(owner, free, tmp_path, monkeypatch):
    path = tmp_path / ".demo.lock"
    path.write_text(json.dumps(owner))
    monkeypatch.setattr(module.fcntl, "flock", unsupported)
    if free:
        with lock(path, "demo"):
            pass
        assert not path.exists()
    else:
        with pytest.raises(OSError, match=f"{path}"), lock(path, "demo"):
            raise AssertionError
        assert path.exists()


def test_a_file_that_its_holder_removes_while_another_waits_is_not_the_lock(tmp_path, monkeypatch):
    """A opens the file; B, which holds it, removes it and lets go; C holds a new one: A must not hold the old one."""
    path = tmp_path / ".demo.lock"
    flock, first = fcntl.flock, []

    def slow(descriptor, operation):
        if not first:
            first.append(descriptor)
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(module.fcntl, "flock", slow)
    with lock(path, "demo"), pytest.raises(OSError, match="in use"), lock(path, "demo"):
        raise AssertionError


def test_no_file_stays_open_after_a_lock_or_its_refusal(tmp_path, monkeypatch):
    opened, open_file = [], os.open

    def noted(*given):
        opened.append(open_file(*given))
        return opened[-1]

    monkeypatch.setattr(os, "open", noted)
    with lock(tmp_path / "a", "demo"), pytest.raises(OSError, match="in use"), lock(tmp_path / "a", "demo"):
        raise AssertionError
    assert len(opened) == 2
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_lock_leaves_the_folders_that_were_there_and_removes_its_own_unless_they_are_used(tmp_path):
    with lock(tmp_path / "a" / "b" / ".lock", "demo"):
        pass
    assert tmp_path.is_dir() and not (tmp_path / "a").exists()
    with lock(tmp_path / "a" / "b" / ".lock", "demo"):
        (tmp_path / "a" / "kept").touch()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]


def test_a_lock_says_who_holds_it_since_when_and_nothing_of_an_earlier_holder(tmp_path):
    path = tmp_path / "a"
    path.write_text("x" * 500)
    with lock(path, "demo"):
        owner = json.loads(path.read_text())
        assert owner.keys() == {"host", "process", "since"} and owner["host"] == socket.gethostname()


@pytest.mark.parametrize(
    ("owner", "alive"),
    [
        ({}, False),
        ({"process": "1"}, True),
        ({"host": socket.gethostname()}, True),
        ({"host": socket.gethostname(), "process": "x"}, True),
    ],
)
def test_whoever_may_still_run_holds_the_lock(owner, alive):
    assert module._is_alive(owner) == alive
