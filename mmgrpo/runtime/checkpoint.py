"""Checkpoints: a folder of safetensors and one JSON file, complete or not there at all.

    <folder>/step-000120/
        network.safetensors, optimizer.safetensors, ...     one file per group of tensors
        state.json                                          {"step", "tensors": {file: names}, "state": ...}

``state.json`` is written last and lists what the folder must hold; a folder without it is not a
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
    """What ``load_checkpoint`` found: tensors by file and name, and the JSON state."""

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

    Everything is written and flushed to the disk in a folder beside it, which is renamed at the
    end: a kill at any time leaves the earlier checkpoints as they were. A disk that fills up
    raises an error that says so, and nothing half-written stays.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, or the checkpoint just written would be removed; got {keep}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # Before anything is written, so that a state which JSON cannot hold costs nothing.
    listed = {name: sorted(group) for name, group in tensors.items()}
    text = json.dumps({"step": step, "tensors": listed, "state": dict(state)}, indent=1, allow_nan=False)
    _remove_left_overs(folder)
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
            "The earlier checkpoints are whole; make room and resume, or keep fewer",
        ) from error
    finally:
        _remove_left_overs(folder)
    # By step, the one just written always included, should a run have been taken back to an earlier step.
    others = [path for path in complete_checkpoints(folder) if path != place]
    for path in others[: max(0, len(others) - (keep - 1))]:
        shutil.rmtree(path)
    return place


def complete_checkpoints(folder: str | Path) -> list[Path]:
    """All complete checkpoints of a folder, oldest step first."""
    if not Path(folder).is_dir():
        return []
    named = [path for path in Path(folder).iterdir() if NAME.fullmatch(path.name)]
    return sorted((path for path in named if not _missing(path)), key=_step)


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The complete checkpoint with the highest step; None if there is none."""
    return next(reversed(complete_checkpoints(folder)), None)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint back, to the CPU. What is missing or damaged is an error that says what is there."""
    path = Path(path)
    if missing := _missing(path):
        raise FileNotFoundError(f"{path} is not a whole checkpoint: {missing}. {_what_is_there(path)}")
    header = json.loads((path / STATE).read_text(encoding="utf-8"))
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, wanted in header["tensors"].items():
        file = path / f"{name}.safetensors"
        try:
            tensors[name] = load_file(file)
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged ({error}); resume from another checkpoint") from error
        if absent := sorted(set(wanted) - tensors[name].keys()):
            raise ValueError(f"{file} lacks {', '.join(absent[:5])} ({len(absent)} of {len(wanted)} tensors)")
    return Checkpoint(header["step"], tensors, header["state"])


def flatten_optimizer(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimizer's state as flat tensors (``<parameter number>.<name>``) and as JSON."""
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
    """Put back what ``flatten_optimizer`` gave, exactly; a state of other parameters is an error.

    For optimizers whose state tensors are scalars or shaped as their parameter (AdamW, SGD, RMSprop).
    """
    groups = optimizer.param_groups
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in state["groups"]]
    if sizes != saved_sizes:
        raise ValueError(
            f"the saved optimizer has groups of {saved_sizes} parameters and this one of {sizes}; "
            "resume with the configuration that the run began with"
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
                    f"the saved optimizer holds '{field}' of shape {list(value.shape)} for parameter {number} "
                    f"of shape {list(parameter.shape)}; the checkpoint is of another network"
                )
            value = value.clone()
        entries.setdefault(int(number), {})[field] = value
    optimizer.load_state_dict({"state": entries, "param_groups": _lists_to_tuples(groups, state["groups"])})


def trained_tensors(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that training changes, by name."""
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
            f"the checkpoint is of another network: it lacks {len(lacking)} trained parameters {lacking[:3]} "
            f"and has {len(unknown)} unknown ones {unknown[:3]}"
        )
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(
                f"'{name}' has shape {list(tensors[name].shape)} in the checkpoint and "
                f"{list(parameter.shape)} in the network; the checkpoint is of another network"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def _lists_to_tuples(groups: list[dict[str, Any]], saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """JSON has no tuples (``betas``); give back those that the optimizer itself has."""
    return [
        {name: tuple(value) if isinstance(group.get(name), tuple) else value for name, value in kept.items()}
        for group, kept in zip(groups, saved, strict=True)
    ]


def _write_tensors(path: Path, group: Mapping[str, Tensor]) -> None:
    # Copies, because safetensors refuses tensors that share memory or have gaps.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in group.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:
        raise _as_os_error(error) from error
    path.chmod(0o644)  # safetensors leaves it readable by its owner only
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _as_os_error(error: SafetensorError) -> Exception:
    """safetensors reports errors of the system in words only: ``... (os error 28)``."""
    found = re.search(r"os error (\d+)", str(error))
    return OSError(int(found.group(1)), str(error)) if found else error


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove_left_overs(folder: Path) -> None:
    """Of this write, or of one that was killed."""
    for left_over in folder.glob(".writing-*"):
        shutil.rmtree(left_over)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _step(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    assert found is not None
    return int(found.group(1))


def _missing(path: Path) -> str:
    """What keeps the folder from being a whole checkpoint; empty if nothing does."""
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


def _what_is_there(path: Path) -> str:
    for folder in (path, path.parent):
        if folder.is_dir():
            names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
            return f"{folder} holds: {', '.join(names) or 'nothing'}"
    return f"Neither {path} nor {path.parent} exists"
