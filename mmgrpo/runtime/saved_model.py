"""The folder ``model/`` of a run: written whole or not at all, with the id of the run and a hash of every file.

    {"run": "5f0c...", "step": 100, "files": {"model.safetensors": "91ab..."}, "card": {"README.md": "77de..."}}

The card of the model is added when the run has been evaluated. A user may write on in it: then it is a file of theirs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from mmgrpo.files import naming, sha256_of, share, write_bytes, write_text
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


def add_card(folder: Path, card: Mapping[str, bytes]) -> None:
    """Write the files of the card into a saved model, and list them in ``run.json``.

    A file of a user's with the name of one gets the ending ``.earlier``. They are listed first, so what a process
    that is killed leaves behind counts as the run's.
    """
    for name in card.keys() - written_files(folder):
        if (folder / name).exists():
            (folder / name).rename(_free(folder / name))
    marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    marker["card"] = {name: hashlib.sha256(content).hexdigest() for name, content in card.items()}
    write_text(folder / MARKER, json.dumps(marker, indent=1))
    for name, content in card.items():
        write_bytes(folder / name, content)


def written_files(folder: Path) -> set[str]:
    """The files of a saved model that a run wrote, or was writing, as ``run.json`` lists them, and that file. Those of
    its card count as long as nobody changed them."""
    card = {
        name
        for name, digest in _file_digests(folder, "card").items()
        if not (folder / name).exists() or _has(folder / name, digest)
    }
    return {MARKER, *_file_digests(folder), *card}


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and sha256_of(path) == digest


def _give_back(earlier: Path, folder: Path) -> None:
    """Move a user's files from the earlier model to the present one, and remove the rest."""
    listed = written_files(earlier)
    files = {path.relative_to(earlier).as_posix(): path for path in earlier.rglob("*") if not path.is_dir()}
    for name in files.keys() - listed:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        files[name].rename(_free(target))
    shutil.rmtree(earlier)


def _free(path: Path) -> Path:
    """The path, with the ending ``.earlier`` as often as such a file is there."""
    while path.exists():
        path = path.with_name(f"{path.name}.earlier")
    return path


def check_model(folder: Path) -> None:
    """Raise ValueError if a file of a saved model is missing or is not what the run wrote."""
    for name, digest in _file_digests(folder).items():
        path = folder / name
        if not _has(path, digest):
            raise ValueError(
                f"{path} is {'damaged' if path.is_file() else 'missing'} ({folder / MARKER} lists it with another "
                "SHA-256); restore it, or use --weights latest"
            )


def _file_digests(folder: Path, part: str = "files") -> dict[str, str]:
    """The files of the model, or of its card, and their SHA-256; empty for a folder that no run wrote."""
    try:
        return dict({"card": {}, **json.loads((folder / MARKER).read_text(encoding="utf-8"))}[part])
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / MARKER} is damaged ({error}); restore it, or use --weights latest") from error
