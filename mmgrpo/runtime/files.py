"""Files appear whole or not at all: each is written beside its place and renamed into it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a run that is killed, never meets half of it.

    The content reaches the disk before the name does. On an error (a full disk, say) what stood
    at ``path`` before is untouched and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, content: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, content.encode())
