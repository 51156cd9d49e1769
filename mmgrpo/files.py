"""Atomic writes: a file is written under a temporary name next to its target and renamed to it.

Files and folders get the permissions of the umask, as any program's do, so others in a group can read a run where
its owner lets them; Python's ``tempfile`` and safetensors create what only the owner can read.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """A ``with`` block whose OSErrors name ``path`` where they name no file, or its ``temporary`` name: a full disk
    says only "No space left on device", for example. Errors of safetensors, which have a number in words only, too."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename in (None, temporary and str(temporary)):
            error.filename = str(path)
        raise
    except Exception as error:
        number = re.search(r"os error (\d+)", str(error)) if type(error).__name__ == "SafetensorError" else None
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: neither a reader nor a killed run ever sees a partial one.

    The content is flushed to disk before the rename. On an error (a full disk, for example) an earlier file at
    ``path`` is unchanged, and the temporary file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = _beside(path)
    try:
        with naming(path, writing):
            with os.fdopen(os.open(writing, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(writing, path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise


def write_text(path: Path, content: str) -> None:
    """``write_bytes`` of a text in UTF-8."""
    write_bytes(path, content.encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file atomically; ``metadata`` are texts of its header."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    writing = _beside(path)
    try:
        with naming(path, writing):
            save_file(dict(tensors), writing, dict(metadata) if metadata else None)
            share(writing)
            os.replace(writing, path)
    except BaseException:
        writing.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def new_folder(parent: Path, prefix: str) -> Path:
    """An empty folder of a name of its own, ``prefix`` and random digits."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{prefix}{secrets.token_hex(6)}"
    folder.mkdir()
    return folder


def share(path: Path) -> None:
    """Give a file, or the safetensors of a folder, the permissions of the umask; safetensors sets 0600, whatever the
    umask, in files that a library saves."""
    files = [path] if path.is_file() else [*path.rglob("*.safetensors")]
    if not files:
        return
    probe = _beside(files[0])
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = probe.stat().st_mode & 0o777
    finally:
        probe.unlink(missing_ok=True)
    for file in files:
        file.chmod(mode)


def _beside(path: Path) -> Path:
    """A temporary name in the folder of ``path``."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


def target_of(name: str) -> str:
    """The name of the file that one of a temporary name was to become; empty for another name."""
    temporary = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}", name)
    return temporary[1] if temporary else ""
