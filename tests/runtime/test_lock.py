from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from mmgrpo.runtime import lock as module
from mmgrpo.runtime.lock import lock


def test_a_second_holder_is_refused_by_name_and_may_hold_it_afterwards(tmp_path):
    path = tmp_path / "runs" / ".demo.lock"
    named = f"runs/demo is in use by process {os.getpid()} on {socket.gethostname()}"
    with lock(path, "runs/demo"), pytest.raises(OSError, match=named), lock(path, "runs/demo"):
        raise AssertionError
    assert not path.exists()
    with lock(path, "runs/demo"):
        assert json.loads(path.read_text())["process"] == os.getpid()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    path = tmp_path / ".demo.lock"
    code = f"""
import os, signal, pathlib
from mmgrpo.runtime.lock import lock
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
        with pytest.raises(OSError, match=f"If that process has ended, remove {path}"), lock(path, "demo"):
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
