"""The folder ``model/`` of a run: written whole or not at all, with the id of the run and a hash of every file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from mmgrpo.runtime.checkpoint import sha256_of
from mmgrpo.runtime.files import write_text
from mmgrpo.runtime.identity import MARKER


def write_model(folder: Path, save: Callable[[Path], None], run: str, step: int) -> None:
    """Replace ``folder`` by what ``save`` writes into a folder beside it, and ``run.json``.

    A process killed meanwhile leaves the earlier model as it was. Files of a user's in it are kept.
    """
    writing, earlier = folder.with_name(f".{folder.name}-writing"), folder.with_name(f".{folder.name}-replaced")
    for rest in (writing, earlier):
        if rest.exists():
            shutil.rmtree(rest)
    save(writing)
    files = [path for path in sorted(writing.rglob("*")) if path.is_file()]
    digests = {path.relative_to(writing).as_posix(): sha256_of(path) for path in files}
    write_text(writing / MARKER, json.dumps({"run": run, "step": step, "files": digests}, indent=1))
    if folder.exists():
        listed = {MARKER, *_listed(folder)}
        for path in [path for path in folder.rglob("*") if not path.is_dir()]:
            target = writing / path.relative_to(folder)
            if path.relative_to(folder).as_posix() not in listed and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        folder.rename(earlier)
    writing.rename(folder)
    if earlier.exists():
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
