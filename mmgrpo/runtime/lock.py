"""A lock on a run folder, so that two processes never write into one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks (some network file systems)."""


@contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` within a ``with`` block; it states the host, the process and the time.

    A second holder is refused with an OSError that names the first; ``what`` begins the error. The kernel releases the
    lock of a process that ends in any way, so that the file of a killed one is stale and is taken over. On a file
    system without locks the file itself is the lock: it is stale if its process has ended on this host.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path, what)
    try:
        owner = {"host": socket.gethostname(), "process": os.getpid(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        # Removed while it is held, so that whoever opens the path afterwards opens another file (see _acquire).
        path.unlink(missing_ok=True)
        os.close(descriptor)
        for folder in missing:  # a run that could not start leaves no trace
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _acquire(path: Path, what: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(path)
            if error.errno not in UNSUPPORTED or _is_alive(owner):
                os.close(descriptor)
                raise OSError(
                    f"{what} is in use by process {owner.get('process', '?')} on {owner.get('host', '?')} since "
                    f"{owner.get('since', '?')}; wait for it or stop it, or choose another --name"
                    + (f". If that process has ended, remove {path}" if error.errno in UNSUPPORTED else "")
                ) from error
        # Between opening and locking, the holder may have removed the file; then this one is no longer the lock.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def _owner(path: Path) -> dict[str, str]:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_alive(owner: dict[str, str]) -> bool:
    """Whether the process of a lock file may still run; another host's may."""
    if not owner or owner.get("host") != socket.gethostname():
        return bool(owner)
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except (KeyError, ValueError, PermissionError):
        return True
    return True
