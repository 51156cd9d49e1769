"""The folder ``model/`` of a run: written whole or not at all, with the id of the run and a hash of every file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from mmgrpo.files import naming, sha256_of, share, write_text
from mmgrpo.runtime.identity import MARKER

WRITING, EARLIER = ".model-writing", ".model-replaced"
"""Names next to ``model/`` while it is replaced."""


def write_model(folder: Path, save: Callable[[Path], None], run: str, step: int) -> None:
    """Replace ``folder`` by what ``save`` writes into a folder next to it, and ``run.json``.

    A process that is killed meanwhile leaves the earlier model, or the new one. Files of a user's in it are kept; one
    whose name the new model takes gets the ending ``.earlier``.
    """
    writing, earlier = folder.with_name(WRITING), folder.with_name(EARLIER)
    if writing.exists():
        shutil.rmtree(writing)
    with naming(folder):
        save(writing)
        share(writing)
    files = [path for path in sorted(writing.rglob("*")) if path.is_file()]
    digests = {path.relative_to(writing).as_posix(): sha256_of(path) for path in files}
    write_text(writing / MARKER, json.dumps({"run": run, "step": step, "files": digests}, indent=1))
    if earlier.exists():  # of a process that was killed below
        _give_back(earlier, folder)
    if folder.exists():
        folder.rename(earlier)
    writing.rename(folder)
    if earlier.exists():
        _give_back(earlier, folder)


def written_files(folder: Path) -> set[str]:
    """The files of a saved model that a run wrote, as ``run.json`` lists them, and that file."""
    return {MARKER, *_listed(folder)}


def _give_back(earlier: Path, folder: Path) -> None:
    """Move a user's files from the earlier model to the present one, and remove the rest."""
    listed = written_files(earlier)
    files = {path.relative_to(earlier).as_posix(): path for path in earlier.rglob("*") if not path.is_dir()}
    for name in files.keys() - listed:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        while target.exists():
            target = target.with_name(f"{target.name}.earlier")
        files[name].rename(target)
    shutil.rmtree(earlier)


def check_model(folder: Path) -> None:
    """Raise ValueError if a file of a saved model is missing or is not what the run wrote."""
    for name, digest in _listed(folder).items():
        path = folder / name
        if not path.is_file() or sha256_of(path) != digest:
            raise ValueError(
                f"{path} is {'damaged' if path.is_file() else 'missing'} ({folder / MARKER} lists it with another "
                "SHA-256); restore it, or use --weights latest"
            )


def _listed(folder: Path) -> dict[str, str]:
    """The files of the model and their SHA-256; empty for a folder that no run wrote."""
    try:
        return dict(json.loads((folder / MARKER).read_text(encoding="utf-8"))["files"])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MARKER} is damaged ({error}); restore it, or use --weights latest") from error
