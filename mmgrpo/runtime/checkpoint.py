"""Checkpoints: a folder of safetensors files and one JSON file, complete or absent.

    <folder>/step-000120/
        network.safetensors, optimizer.safetensors, ...     one file per group of tensors
        state.json                                          {"sha256", "run", "step", "files", "state"}

``state.json`` is written last and lists the files that the folder must contain, with their SHA-256, and its own; a
folder without it is not a checkpoint. A checkpoint whose content differs from it is damaged. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmgrpo.files import naming, new_folder, sha256_of, share
from mmgrpo.runtime.finite import NotFinite, refuse_tensors
from mmgrpo.runtime.sharding import like

STATE = "state.json"
NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: tensors by file and name, and the JSON state; ``run`` is the id of its run."""

    run: str
    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_checkpoint(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int = 2,
    run: str = "",
) -> Path:
    """Write ``folder/step-<step>`` and then remove all but the newest ``keep`` checkpoints.

    The files are written to a temporary folder next to it and flushed to disk, and the folder is renamed at the end:
    a process killed at any time leaves earlier checkpoints intact. A full disk is an OSError that states the size of
    the checkpoint, and no partial files remain. Tensors that are not finite are not written (``NotFinite``).
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, since 0 would remove the new checkpoint; got {keep}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"step-{step:06d}"
    for name, group in tensors.items():
        refuse_tensors(group, f"{place} is not written: {name}")
    remove_partial(folder)
    writing = new_folder(folder, ".writing-")
    try:
        files = {}
        for name, group in tensors.items():
            path = writing / f"{name}.safetensors"
            _write_tensors(path, group)
            files[path.name] = sha256_of(path)
        _write_durably(writing / STATE, _seal({"run": run, "step": step, "files": files, "state": dict(state)}))
        if place.exists():
            place.rename(folder / f"{writing.name}-replaced")
        writing.rename(place)
        _flush_folder(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        need = sum(t.numel() * t.element_size() for group in tensors.values() for t in group.values())
        raise OSError(
            error.errno,
            f"the disk is full: a checkpoint of {need / 2**20:.1f} MiB does not fit into {folder}. "
            "Earlier checkpoints are intact; free some space and resume, or set a smaller keep",
        ) from error
    finally:
        remove_partial(folder)
    # The new checkpoint is kept even if it is not the newest by step: a run may have resumed from an earlier one.
    others = [path for path in checkpoints(folder) if path != place]
    for path in others[: max(0, len(others) - (keep - 1))]:
        _remove(path)
    return place


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints of a folder, damaged ones included, oldest step first."""
    if not Path(folder).is_dir():
        return []
    return sorted((path for path in Path(folder).iterdir() if NAME.fullmatch(path.name)), key=_step)


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The checkpoint of the highest step, or None."""
    return next(reversed(checkpoints(folder)), None)


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Load a checkpoint to the CPU. One that is not what was written is ``Damaged``; for one that does not exist the
    error lists the contents of the folder."""
    path = Path(path)
    if not path.is_dir():
        names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        raise FileNotFoundError(f"{path}: no such checkpoint; {path.parent} contains: {', '.join(names) or 'nothing'}")
    header = _header(path)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, digest in header["files"].items():
        file = path / name
        if not file.is_file() or sha256_of(file) != digest:
            reason = "damaged: its SHA-256 is not that of" if file.is_file() else "missing: it is listed in"
            raise Damaged(f"{file} is {reason} {STATE}")
        tensors[file.stem] = load_file(file)
        refuse_tensors(tensors[file.stem], f"{file} cannot be used")
    return Checkpoint(header["run"], header["step"], tensors, header["state"])


def load_intact(folder: Path, run: str, last: int | None = None) -> Checkpoint | None:
    """The newest checkpoint that is intact, at most that of step ``last``; None where the run has written none.

    A damaged one is named, renamed to ``damaged-step-<step>``, and the one before it is used. It is an error if all are
    damaged, now or at an earlier attempt, if there is none of step ``last``, or if one is of another run.
    """
    candidates, before = checkpoints(folder), sorted(folder.glob("damaged-step-*"))
    if last is not None and last not in (steps := [_step(path) for path in candidates]):
        known = ", ".join(f"step-{step:06d}" for step in steps) or "none"
        raise ValueError(f"--resume-from: got step {last}, expected one of the checkpoints in {folder}: {known}")
    for path in reversed([path for path in candidates if last is None or _step(path) <= last]):
        try:
            checkpoint = load_checkpoint(path)
        except (Damaged, NotFinite) as error:
            print(f"{error}; it is renamed to damaged-{path.name}, and the checkpoint before it is used", flush=True)
            _rename(path, "damaged")
            continue
        if checkpoint.run != run:
            raise ValueError(f"{path} is of run '{checkpoint.run}', expected '{run}' as the folder; move it away")
        return checkpoint
    if candidates or before:
        raise ValueError(
            f"{folder}: no checkpoint is intact, {', '.join(path.name for path in before) or 'see above'}; restore one "
            "under the name of its step, or start again with --overwrite"
        )
    return None


def step_of(name: str) -> int:
    """The step of a checkpoint, from its name, its path or the number."""
    match = re.fullmatch(r"(?:step-)?(\d+)", Path(name).name)
    if match is None:
        raise ValueError(f"--resume-from: got '{name}', expected a checkpoint, e.g. step-000040")
    return int(match.group(1))


def abandon_after(folder: Path, step: int) -> None:
    """Rename the checkpoints after ``step``, so a run that goes on from there never meets them."""
    for path in checkpoints(folder):
        if _step(path) > step:
            print(f"{path} is renamed to abandoned-{path.name}", flush=True)
            _rename(path, "abandoned")


def _rename(path: Path, prefix: str) -> None:
    target = path.with_name(f"{prefix}-{path.name}")
    if target.exists():
        _remove(target)
    path.rename(target)


def _remove(path: Path) -> None:
    """Remove a checkpoint; of a process that is killed meanwhile a partial one is left, and no damaged one."""
    partial = path.with_name(f".writing-removed-{path.name}-{secrets.token_hex(6)}")
    path.rename(partial)
    shutil.rmtree(partial)


def _seal(header: Mapping[str, Any]) -> str:
    """The text of a header with its own SHA-256."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode()).hexdigest()
    return json.dumps({"sha256": digest, **header}, indent=1)


def _header(path: Path) -> dict[str, Any]:
    """The header of a checkpoint; ``Damaged`` if it is not what was written, or not of this step."""
    try:
        header = json.loads((path / STATE).read_text(encoding="utf-8"))
        seal = header.pop("sha256")
        intact = json.loads(_seal(header))["sha256"] == seal and _step(path) in (-1, header["step"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path / STATE} is damaged or missing ({type(error).__name__})") from error
    if not intact:
        raise Damaged(f"{path / STATE} is damaged or of another step")
    return header


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as flat tensors (``<parameter number>.<name>``) and the rest as JSON.

    bitsandbytes keeps its own tensors together in one entry, which is ``<parameter number>.<entry>/<name>`` here.
    """
    saved = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for parameter, entries in saved["state"].items():
        for name, value in entries.items():
            inner = (
                {f"{name}/{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
            )
            for key, entry in inner.items():
                (tensors if isinstance(entry, Tensor) else numbers)[f"{parameter}.{key}"] = entry
    return tensors, {"groups": saved["param_groups"], "numbers": numbers}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Restore the output of ``flatten_optimizer`` exactly; a state of other parameters is a ValueError.

    For optimizers whose state tensors are scalars or have the shape of their parameter (AdamW, SGD, RMSprop), except
    for the tables and scales (``qmap``, ``absmax``) of those that quantize them.
    """
    groups = optimizer.param_groups
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in state["groups"]]
    if sizes != saved_sizes:
        raise ValueError(
            f"the saved optimizer has groups of {saved_sizes} parameters and this one of {sizes}; "
            "resume with the configuration of the original run"
        )
    parameters = dict(
        pair
        for group, saved in zip(groups, state["groups"], strict=True)
        for pair in zip(saved["params"], group["params"], strict=True)
    )
    entries: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *state["numbers"].items()]:
        number, _, field = name.partition(".")
        parameter = parameters[int(number)]
        if isinstance(value, Tensor):
            quantizing = field.rpartition("/")[2].startswith(("qmap", "absmax"))
            if value.ndim > 0 and value.shape != parameter.shape and not quantizing:
                raise ValueError(
                    f"the saved optimizer has '{field}' of shape {list(value.shape)} for parameter {number} "
                    f"of shape {list(parameter.shape)}; the checkpoint belongs to another network"
                )
            value = like(value.clone(), parameter)
        outer, inside, inner = field.partition("/")
        fields = entries.setdefault(int(number), {})
        if inside:
            fields.setdefault(outer, {})[inner] = value
        else:
            fields[field] = value
    optimizer.load_state_dict({"state": entries, "param_groups": _lists_to_tuples(groups, state["groups"])})


def trained_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The trainable parameters, by name."""
    return {name: parameter.detach() for name, parameter in network.named_parameters() if parameter.requires_grad}


def restore_network(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy saved parameters into the network, in place; names and shapes must agree exactly."""
    parameters = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    if parameters.keys() != tensors.keys():
        lacking, unknown = (
            sorted(parameters.keys() - tensors.keys()),
            sorted(tensors.keys() - parameters.keys()),
        )
        raise ValueError(
            f"the checkpoint belongs to another network: it lacks {len(lacking)} trainable parameters {lacking[:3]} "
            f"and has {len(unknown)} unknown ones {unknown[:3]}; load the model that the run began with"
        )
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(
                f"'{name}' has shape {list(tensors[name].shape)} in the checkpoint and "
                f"{list(parameter.shape)} in the network; the checkpoint belongs to another network"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(like(tensors[name], parameter))


def _lists_to_tuples(groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no tuples (``betas``); restore those of the optimizer's own groups."""
    return [
        {name: tuple(value) if isinstance(group.get(name), tuple) else value for name, value in entries.items()}
        for group, entries in zip(groups, saved, strict=True)
    ]


def _write_tensors(path: Path, group: Mapping[str, Tensor]) -> None:
    # Copies, because safetensors rejects tensors that share memory or are not contiguous.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in group.items()}
    with naming(path):
        save_file(plain, path)
        share(path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _write_durably(path: Path, text: str) -> None:
    with naming(path), path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def remove_partial(folder: Path) -> None:
    """Remove partial checkpoints: of this write, or of a process that was killed while it wrote or removed one."""
    for partial in folder.glob(".writing-*"):
        shutil.rmtree(partial)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    return int(match.group(1)) if match else -1
