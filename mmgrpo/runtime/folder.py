"""The folder of a run, ``<output_dir>/<name>``: only one process writes into it, and no file of another is removed.

runs/demo/                  the run; run.json states its id (mmgrpo/runtime/identity.py)
runs/.demo.lock             held by the process that writes
runs/.demo.replaced-1/      a run that --overwrite replaces, until the new one has its first checkpoint
runs/demo/stages/sft/       of a run in stages (mmgrpo/cli/stages.py): an earlier one, the folder of a run itself

A lock on a run folder, so two processes never write into one.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from mmgrpo.config.reading import write_yaml
from mmgrpo.config.settings import Config
from mmgrpo.files import target_of, write_text
from mmgrpo.runtime.identity import MARKER, Identity
from mmgrpo.runtime.saved_model import EARLIER, written_files

if TYPE_CHECKING:
    from accelerate import Accelerator

    from mmgrpo.data.media import Skipped
import errno
import fcntl
import os
import socket

STAGES = "stages"
"""The folder of the earlier stages of a run within that of the last."""
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks (some network file systems)."""


@contextmanager
def lock(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path`` within a ``with`` block; it states the host, the process and the time.

    A second holder is refused with an OSError that names the first; ``what`` begins the error. The kernel releases the
    lock of a process that ends in any way, so the file of a killed one is stale and is taken over. On a file
    system without locks the file itself is the lock: it is stale if its process has ended on this host.
    """
    missing = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _acquire(path, what)
    try:
        owner = {"host": socket.gethostname(), "process": os.getpid(), "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}"}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        # Removed while it is held, so whoever opens the path afterwards opens another file (see _acquire).
        path.unlink(missing_ok=True)
        os.close(descriptor)
        for folder in missing:  # a run that could not start leaves no trace
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _acquire(path: Path, what: str) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(path)
            if error.errno not in UNSUPPORTED or _is_alive(owner):
                os.close(descriptor)
                raise OSError(
                    f"{what} is in use by process {owner.get('process', '?')} on {owner.get('host', '?')} since "
                    f"{owner.get('since', '?')}; wait for it or stop it, or choose another --name"
                    + (f". If that process has ended, remove {path}" if error.errno in UNSUPPORTED else "")
                ) from error
        # Between opening and locking, the holder may have removed the file; then this one is no longer the lock.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)


def _owner(path: Path) -> dict[str, str]:
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_alive(owner: dict[str, str]) -> bool:
    """Whether the process of a lock file may still run; another host's may."""
    if not owner or owner.get("host") != socket.gethostname():
        return bool(owner)
    try:
        os.kill(int(owner["process"]), 0)
    except ProcessLookupError:
        return False
    except (KeyError, ValueError, PermissionError):
        return True
    return True


TITLE = r"(before|after|blind|step-\d+)(-[^/]*)?"
DRAWN = r"""samples\.json | grid\.(png|webp) | completions\.html | \d+-\d+(-before)?\.(png|mp4)
    | (before|after)(\.jsonl|/\d+-(said|\d+)\.\w+)"""
"""Paths that ``sample`` writes into its folder."""
WRITTEN = re.compile(
    rf"""(run|alarms|summary|summary-\d+)\.json | config\.yaml | (metrics|skipped|prompts)\.jsonl | report\.html
    | evaluations/{TITLE}\.json | samples/{TITLE}\.(png|webp|jsonl) | samples/{TITLE}/\d+-(said|output|\d+)\.\w+
    | groups/step-\d+/(group\.json|(prompt|\d+)(-\d+)?\.\w+) | groups/\.writing-.*
    | replay/[0-9a-f]{{32}}\.safetensors
    | checkpoints/((damaged|abandoned)-)?step-\d+/(state\.json|[a-z]+\.safetensors)
    | evaluation(-[^/]*)?\.json | drawn/({DRAWN}) | (checkpoints/\.writing-|\.model-writing).*
    | (tensorboard|tracker|mmgrpo)/(.*/)?(events\.out\.tfevents\..*|hparams\.yml)""",
    re.VERBOSE,
)
"""Paths that a run, ``sample`` and ``evaluate`` write, in addition to those that ``model/run.json`` lists."""


def run_folder(config: Config) -> Path:
    """The folder of the run, whose name is decided (``with_name``)."""
    if not config.name:
        raise ValueError("name: got none, expected that of a run")
    return Path(config.output_dir) / config.name


def with_name(config: Config) -> Config:
    """The configuration with a name that no folder has yet where it has none: preset and time of the start.

    ValueError for one that is to be resumed.
    """
    if config.name:
        return config
    if config.resume or config.resume_from:
        raise ValueError("--resume: names no run to continue; add its --name")
    name = f"{config.algorithm.preset}-{datetime.now():%Y%m%d-%H%M%S}"
    taken = chain([name], (f"{name}-{number}" for number in count(2)))
    return replace(
        config, name=next(candidate for candidate in taken if not (Path(config.output_dir) / candidate).exists())
    )


def agree_on_name(config: Config, accelerator: Accelerator) -> Config:
    """The configuration with the name that the main process chose, on every process; trackers write into its folder."""
    names = [config.name]
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(names)
    config = replace(config, name=names[0])
    accelerator.project_configuration.set_directories(str(run_folder(config)))
    accelerator.project_configuration.logging_dir = str(run_folder(config) / "tensorboard")
    return config


def refuse_folder(config: Config) -> None:
    """Raise an error if the folder contains another run, this run with other settings, or no run but other files."""
    folder = run_folder(config)
    identity = Identity.read(folder)
    if identity is None:
        if config.resume_from:
            raise FileNotFoundError(f"--resume-from {config.resume_from}: {folder} contains no run; check --name")
        if folder.exists() and (not folder.is_dir() or any(not _is_expected(path) for path in folder.iterdir())):
            raise FileExistsError(
                f"{folder} already exists and is not the folder of a run (it has no {MARKER}); nothing in it is "
                "touched: choose another --name, or move it away"
            )
    elif config.resume or config.resume_from:
        identity.refuse_settings(folder, config)
    elif not config.overwrite:
        raise FileExistsError(
            f"{folder} already contains a run; continue it with --resume, replace it with --overwrite, "
            "or choose another --name"
        )


@contextmanager
def claim(config: Config, accelerator: Accelerator) -> Iterator[None]:
    """Hold the folder of the run within a ``with`` block; a second process that wants it is refused.

    If an earlier start was cut off between moving a run aside and starting the new one, the old one is put back.
    """
    if not accelerator.is_main_process:
        yield
        return
    folder = run_folder(config)
    with lock(folder.with_name(f".{folder.name}.lock"), str(folder)):
        aside = replaced_runs(folder)
        if aside and Identity.read(folder) is None:
            _remove_written(folder)
            if not folder.exists():
                aside[-1].rename(folder)
                print(f"{folder} is as it was before --overwrite, which was cut off", flush=True)
        refuse_folder(config)
        yield


def run_id(config: Config, accelerator: Accelerator) -> str:
    """The id of a run that begins, before it has a folder, or of the one that is resumed, on every process."""
    earlier = Identity.read(run_folder(config)) if config.resume or config.resume_from else None
    ids = [earlier.run if earlier else secrets.token_hex(8)]
    if accelerator.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        broadcast_object_list(ids)
    return ids[0]


def open_folder(
    config: Config, inputs: Mapping[str, str], skipped: Sequence[Skipped], accelerator: Accelerator, run: str = ""
) -> Identity | None:
    """Create the run folder, or open it to resume; its identity, or None on a process that does not see the folder.
    A new one has the id ``run`` (``run_id``), or another.

    It contains the resolved configuration, and the skipped prompts in ``skipped.jsonl``. A run that is replaced is
    moved aside (``discard_replaced``).
    """
    folder = run_folder(config)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        identity = Identity.read(folder)
        if identity and (config.resume or config.resume_from):
            identity.refuse_inputs(folder, inputs)
            identity = identity.resume_with(identity.refuse_settings(folder, config), accelerator.num_processes)
            _keep_summary(folder, config.steps)
        else:
            if identity:
                _set_aside(folder)
            identity = Identity.new(config, inputs, accelerator.num_processes, run)
        _remove_unfinished(folder)
        identity.write(folder)
        write_yaml(folder / "config.yaml", config)
        if skipped:
            lines = [json.dumps(dataclasses.asdict(row), ensure_ascii=False) for row in skipped]
            write_text(folder / "skipped.jsonl", "".join(f"{line}\n" for line in lines))
            print(f"{len(skipped)} prompts are skipped and listed in {folder / 'skipped.jsonl'}", flush=True)
    accelerator.wait_for_everyone()
    return Identity.read(folder)


def replaced_runs(folder: Path) -> list[Path]:
    """The runs that ``--overwrite`` moved aside, oldest first."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.replaced-(\d+)")
    if not folder.parent.is_dir():
        return []
    numbered = [(match, path) for path in folder.parent.iterdir() if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(numbered, key=lambda pair: int(pair[0][1]))]


def discard_replaced(folder: Path) -> None:
    """Remove the runs that this one replaces, now that it has something to show.

    Only what a run wrote is removed; other files are moved to the same place in the new folder.
    """
    for aside in replaced_runs(folder):
        for stage in sorted((aside / STAGES).glob("*")):
            _remove_written(stage)
        _remove_written(aside)
        for path in sorted(path for path in aside.rglob("*") if not path.is_dir() or path.is_symlink()):
            target = folder / path.relative_to(aside)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        _remove_empty(aside)
        if aside.exists():
            print(f"{aside} keeps files that the replaced run did not write, but this one did", flush=True)


def set_aside(config: Config) -> None:
    """Move the run of a folder aside, with all of its stages, before the first stage of another one begins there."""
    folder = run_folder(config)
    with lock(folder.with_name(f".{folder.name}.lock"), str(folder)):
        if Identity.read(folder):
            _set_aside(folder)


def _keep_summary(folder: Path, steps: int) -> None:
    """Rename the summary of a finished run that goes on, which is not finished then."""
    path = folder / "summary.json"
    if path.is_file() and (before := json.loads(path.read_text(encoding="utf-8")).get("steps", steps)) < steps:
        path.rename(folder / f"summary-{before:06d}.json")


def _set_aside(folder: Path) -> None:
    if folder.is_symlink():
        raise ValueError(
            f"{folder} is a link, which --overwrite does not replace; name --output-dir and --name instead"
        )
    earlier = replaced_runs(folder)
    number = int(earlier[-1].name.rpartition("-")[2]) + 1 if earlier else 1
    folder.rename(folder.with_name(f".{folder.name}.replaced-{number}"))


def _remove_written(folder: Path) -> None:
    """Remove what a run wrote into the folder: the marker last, so an interrupted removal can be repeated."""
    model = _model_files(folder)
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    ours = [path for path in files if _is_written(path.as_posix(), model)]
    for path in sorted(ours, key=lambda path: path.as_posix() == MARKER):
        (folder / path).unlink()
    _remove_empty(folder)


def _remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed left half written or half removed."""
    from mmgrpo.runtime.checkpoint import remove_partial  # which needs torch

    remove_partial(folder / "checkpoints")
    model = _model_files(folder)
    for path in folder.rglob(".*"):
        file = path.is_file() and not path.is_symlink() and target_of(path.name)
        if file and _is_written(path.relative_to(folder).as_posix(), model):
            path.unlink()


def _is_written(name: str, model: set[str]) -> bool:
    parent, slash, last = name.rpartition("/")
    name = parent + slash + (target_of(last) or last)  # of a process that was killed while it wrote
    return name in model or WRITTEN.fullmatch(name) is not None


def _model_files(folder: Path) -> set[str]:
    """The files of saved models that the run wrote."""
    models = [name for name in ("model", EARLIER) if (folder / name).is_dir()]
    return {f"{name}/{file}" for name in models for file in written_files(folder / name)}


def _remove_empty(folder: Path) -> None:
    """Remove the folder and its subfolders, as far as they are empty."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def refuse_output(folder: Path, names: str, marker: str, keys: Set[str], option: str = "--output") -> None:
    """FileExistsError where a command would replace files of a folder that it did not write.

    ``names`` is a pattern of the paths that the command writes, of which ``marker`` is a JSON object with the ``keys``
    (or whose values are such objects). Where it is there, the folder is of an earlier call, and is written again.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FileExistsError(f"{option}: '{folder}' is a file, expected a folder; name another")
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()]
    taken = sorted(name for name in files if re.fullmatch(names, name, re.VERBOSE))
    if taken and not _has_keys(folder / marker, keys):
        raise FileExistsError(
            f"{option}: '{folder}' contains {', '.join(taken[:3])}, which would be replaced, and no {marker} of an "
            "earlier call of this command; name another folder, or move it away"
        )


def _has_keys(path: Path, keys: Set[str]) -> bool:
    """Whether a file is a JSON object with these keys, or of objects that all have them."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    inside = [table for table in value.values() if isinstance(table, dict)]
    return keys <= value.keys() or (
        bool(value) and len(inside) == len(value) and all(keys <= table.keys() for table in inside)
    )


def _is_expected(path: Path) -> bool:
    """Whether a file is what a killed process left of writing the marker, or the folder of earlier stages."""
    return target_of(path.name) == MARKER or (path.name == STAGES and path.is_dir())
