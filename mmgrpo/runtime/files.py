"""Atomic writes: a file is written under a temporary name beside its target and renamed to it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: neither a reader nor a killed run ever sees a partial one.

    The content is flushed to disk before the rename. On an error (a full disk, for example) an earlier file at
    ``path`` is unchanged, and the temporary file is removed.
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
    """``write_bytes`` of a text in UTF-8."""
    write_bytes(path, content.encode())
