"""Published weights as they lie on disk or on the hub: found, read without running anything, loaded to the last key."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.data.values import reason_of
from mmgrpo.runtime.weight_files import pickle_error

SHOWN = 5
"""Names of keys in an error message."""


def weight_file(source: str, name: str, reward: str) -> Path:
    """The file ``name`` of the weights ``source``: a folder, the file itself, or a hub id, which is downloaded once.

    In a folder, a file of the same name with the suffix .safetensors comes first. FileNotFoundError with the reward's
    name where there is none.
    """
    place = Path(source).expanduser()
    if place.is_file():
        return place
    if place.is_dir():
        converted = (place / name).with_suffix(".safetensors")
        if converted.is_file():
            return converted
        if not (place / name).is_file():
            present = ", ".join(sorted(entry.name for entry in place.iterdir())[:SHOWN]) or "nothing"
            raise FileNotFoundError(f"{reward}: weights: {place} has no file {name}; it contains {present}")
        return place / name
    if source.startswith(("/", ".", "~")) or source.count("/") != 1:
        raise FileNotFoundError(f"{reward}: weights: no such folder: {source}; expected one with {name}, or a hub id")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, name))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"{reward}: weights: {name} of {source} is not on this machine and cannot be downloaded ({error}); get "
            "it elsewhere, and name its folder: weights=..."
        ) from error


def read_tensors(file: Path, reward: str, allow_pickle: bool = False) -> dict[str, Tensor]:
    """All tensors of a file by name, on the CPU: safetensors, or with ``allow_pickle`` a file of torch, of which only
    tensors are read (``weights_only``).

    A ``state_dict`` or ``module`` inside is taken out. A pickle that is not allowed, a truncated file and a foreign one
    are ValueErrors that name it.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{reward}: weights: no such file: {file}")
    if file.suffix != ".safetensors" and not allow_pickle:
        raise pickle_error(file, f"{reward}(allow_pickle=True)")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(file)
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{reward}: {file} cannot be read ({reason_of(error)}); download it again") from error
    except Exception as error:  # of pickle and of safetensors, whose classes are their own
        raise ValueError(
            f"{reward}: {file} holds something else than tensors, or is damaged ({reason_of(error)}); expected the "
            "published file, or one converted to safetensors"
        ) from error
    for key in ("state_dict", "module"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{reward}: {file}: got a {type(content).__name__}, expected tensors by name")
    return dict(content)


def read_whole(
    kind: Any, source: str | Path, options: Mapping[str, Any], reward: str, unused: Sequence[str] = ()
) -> Any:
    """A network of a class (or auto class) of transformers, with all of its weights from ``source``.

    ``from_pretrained`` replaces weights that are missing or of another shape by random ones, with a warning only:
    here they are a ValueError that names them, but for keys that begin with one of ``unused``. ``options`` are those
    of ``from_pretrained``; weights are safetensors where they do not say otherwise.
    """
    # transformers' own error of another shape names no weight.
    reported = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    network, report = kind.from_pretrained(source, **{"use_safetensors": True, **options, **reported})
    absent = [name for name in report["missing_keys"] if not name.startswith(tuple(unused))]
    absent += [str(mismatch[0]) for mismatch in report["mismatched_keys"]]
    if absent:
        raise ValueError(
            f"{reward}: {source}: got a checkpoint without {len(absent)} weights of its {type(network).__name__} "
            f"({_some(sorted(absent))}), expected all; download or save it again"
        )
    return network


def load_exactly(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    file: Path | str,
    reward: str,
    renamed: Callable[[str], str | None] = lambda key: key,
) -> Any:
    """The module with all of its weights from ``tensors``, whose keys are ``renamed`` first (None: not needed), ready
    to score: in evaluation mode and without gradients.

    Missing, unexpected and doubled keys and wrong shapes are one ValueError that names them.
    """
    state: dict[str, Tensor] = {}
    doubled = []
    for key, tensor in tensors.items():
        name = renamed(key)
        if name is not None:
            doubled += [key] if name in state else []
            state[name] = tensor
    expected = module.state_dict()
    problems = {
        "missing": sorted(expected.keys() - state.keys()),
        "unexpected": sorted(state.keys() - expected.keys()),
        "twice": sorted(doubled),
        "of a wrong shape": [
            f"{name} {list(state[name].shape)} instead of {list(expected[name].shape)}"
            for name in sorted(expected.keys() & state.keys())
            if state[name].shape != expected[name].shape
        ],
    }
    if any(problems.values()):
        parts = [f"{what}: {_some(keys)}" for what, keys in problems.items() if keys]
        raise ValueError(
            f"{reward}: {file} does not fit the model ({'; '.join(parts)}); expected the published weights of this "
            "reward"
        )
    module.load_state_dict(state)
    return module.eval().requires_grad_(False)


def _some(keys: list[str]) -> str:
    more = len(keys) - SHOWN
    return ", ".join(keys[:SHOWN]) + (f" and {more} more" if more > 0 else "")
