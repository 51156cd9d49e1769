"""Checkpoints: a folder of safetensors files and one JSON file, complete or absent.

    <folder>/step-000120/
        network.safetensors, optimizer.safetensors, ...     one file per group of tensors
        state.json                                          {"step", "tensors": {file: names}, "state": ...}

``state.json`` is written last and lists the files that the folder must contain; a folder without it is not a
checkpoint. Nothing is pickled.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

STATE = "state.json"
NAME = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class Checkpoint:
    """The contents of a checkpoint: tensors by file and name, and the JSON state."""

    step: int
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def save_checkpoint(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    keep: int = 2,
) -> Path:
    """Write ``folder/step-<step>`` and then remove all but the newest ``keep`` checkpoints.

    The files are written to a temporary folder beside it and flushed to disk, and the folder is renamed at the end:
    a process killed at any time leaves earlier checkpoints intact. A full disk is an OSError that states the size of
    the checkpoint, and no partial files remain.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, since 0 would remove the new checkpoint; got {keep}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # First, so that a state that JSON cannot represent raises before anything is written.
    names = {name: sorted(group) for name, group in tensors.items()}
    text = json.dumps({"step": step, "tensors": names, "state": dict(state)}, indent=1, allow_nan=False)
    _remove_partial(folder)
    place = folder / f"step-{step:06d}"
    writing = Path(tempfile.mkdtemp(dir=folder, prefix=".writing-"))
    try:
        writing.chmod(0o755)
        for name, group in tensors.items():
            _write_tensors(writing / f"{name}.safetensors", group)
        _write_durably(writing / STATE, text)
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
        _remove_partial(folder)
    # The new checkpoint is kept even if it is not the newest by step: a run may have resumed from an earlier one.
    others = [path for path in complete_checkpoints(folder) if path != place]
    for path in others[: max(0, len(others) - (keep - 1))]:
        shutil.rmtree(path)
    return place


def complete_checkpoints(folder: str | Path) -> list[Path]:
    """All complete checkpoints of a folder, oldest step first."""
    if not Path(folder).is_dir():
        return []
    folders = [path for path in Path(folder).iterdir() if NAME.fullmatch(path.name)]
    return sorted((path for path in folders if not _missing(path)), key=_step)


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The complete checkpoint of the highest step, or None."""
    return next(reversed(complete_checkpoints(folder)), None)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Load a checkpoint to the CPU. A missing or damaged file is an error that lists the contents of the folder."""
    path = Path(path)
    if missing := _missing(path):
        raise FileNotFoundError(f"{path} is not a complete checkpoint: {missing}. {_listing(path)}")
    header = json.loads((path / STATE).read_text(encoding="utf-8"))
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, expected in header["tensors"].items():
        file = path / f"{name}.safetensors"
        try:
            tensors[name] = load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}); resume from another checkpoint") from error
        if absent := sorted(set(expected) - tensors[name].keys()):
            raise ValueError(
                f"{file} lacks {', '.join(absent[:5])} ({len(absent)} of {len(expected)} tensors); "
                "resume from another checkpoint"
            )
    return Checkpoint(header["step"], tensors, header["state"])


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as flat tensors (``<parameter number>.<name>``) and the rest as JSON."""
    saved = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for parameter, entries in saved["state"].items():
        for name, value in entries.items():
            (tensors if isinstance(value, Tensor) else numbers)[f"{parameter}.{name}"] = value
    return tensors, {"groups": saved["param_groups"], "numbers": numbers}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], state: Mapping[str, Any]
) -> None:
    """Restore the output of ``flatten_optimizer`` exactly; a state of other parameters is a ValueError.

    For optimizers whose state tensors are scalars or have the shape of their parameter (AdamW, SGD, RMSprop).
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
            if value.ndim > 0 and value.shape != parameter.shape:
                raise ValueError(
                    f"the saved optimizer has '{field}' of shape {list(value.shape)} for parameter {number} "
                    f"of shape {list(parameter.shape)}; the checkpoint belongs to another network"
                )
            value = value.clone()
        entries.setdefault(int(number), {})[field] = value
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
            parameter.copy_(tensors[name])


def _lists_to_tuples(groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no tuples (``betas``); restore those of the optimizer's own groups."""
    return [
        {name: tuple(value) if isinstance(group.get(name), tuple) else value for name, value in entries.items()}
        for group, entries in zip(groups, saved, strict=True)
    ]


def _write_tensors(path: Path, group: Mapping[str, Tensor]) -> None:
    # Copies, because safetensors rejects tensors that share memory or are not contiguous.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in group.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:
        raise _as_os_error(error) from error
    path.chmod(0o644)  # safetensors creates files that only their owner can read
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _as_os_error(error: SafetensorError) -> Exception:
    """The OSError behind an error of safetensors, which reports its number only in words: ``... (os error 28)``."""
    match = re.search(r"os error (\d+)", str(error))
    return OSError(int(match.group(1)), str(error)) if match else error


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove_partial(folder: Path) -> None:
    """Remove partial checkpoints: of this write, or of a process that was killed."""
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
    assert match is not None
    return int(match.group(1))


def _missing(path: Path) -> str:
    """What the folder lacks to be a complete checkpoint; empty if nothing."""
    if not path.is_dir():
        return "there is no such folder"
    if not (path / STATE).is_file():
        return f"it has no {STATE}"
    try:
        header = json.loads((path / STATE).read_text(encoding="utf-8"))
        names = list(header["tensors"])
    except (ValueError, KeyError, TypeError):
        return f"its {STATE} cannot be read"
    absent = [f"{name}.safetensors" for name in names if not (path / f"{name}.safetensors").is_file()]
    return f"it lacks {', '.join(absent)}" if absent else ""


def _listing(path: Path) -> str:
    """The contents of the folder, or of its parent, for error messages."""
    for folder in (path, path.parent):
        if folder.is_dir():
            names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
            return f"{folder} contains: {', '.join(names) or 'nothing'}"
    return f"Neither {path} nor {path.parent} exists"
