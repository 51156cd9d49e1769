"""The files of a folder, to compare it before and after."""

from __future__ import annotations

from pathlib import Path


def tree(folder: Path) -> dict[str, bytes]:
    """Relative path to content, of all files; links are not followed."""
    return {
        path.relative_to(folder).as_posix(): b"" if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
