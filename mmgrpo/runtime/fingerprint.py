"""Fingerprints of what a run starts from, by which a resumed run notices that a file or a model has changed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.data.limits import container_of, is_inside
from mmgrpo.data.splits import Splits
from mmgrpo.types import Media, Prompt

SAMPLED = 4096
"""Values per parameter that enter the fingerprint of a network; smaller parameters enter whole."""


def of_settings(settings: Mapping[str, Any]) -> str:
    """The fingerprint of plain settings by name."""
    return _digest([json.dumps(settings, sort_keys=True)])


def of_inputs(splits: Splits, network: nn.Module) -> dict[str, str]:
    """The fingerprints of what a run starts from: the prompts of each split, and the network before training."""
    prompts = {"train": splits.train, "heldout": splits.heldout, **splits.extra}
    prompts |= {"supervised": splits.supervised} if splits.supervised else {}
    return {**{name: of_prompts(split) for name, split in prompts.items()}, "network": of_network(network)}


def of_prompts(prompts: Iterable[Prompt]) -> str:
    """The fingerprint of prompts in their order: texts, answers and meta as they are, media in files by name and size.

    A medium of the same size under the same name is taken to be the same, since reading all of them takes too long.
    """
    return _digest(json.dumps(_plain(prompt), sort_keys=True, default=repr) for prompt in prompts)


def of_network(network: nn.Module) -> str:
    """The fingerprint of the parameters and buffers of a network: names, shapes, and values at equal distances.

    It tells two trainings apart, not two copies of which one has a single changed weight.
    """
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return _digest(f"{name} {list(value.shape)} {_values(value)}" for name, value in sorted(tensors.items()))


def _digest(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\n")
    return digest.hexdigest()[:32]


def _values(tensor: Tensor) -> str:
    """The hash of at most ``SAMPLED`` values."""
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, -(-len(flat) // SAMPLED))].cpu().contiguous()
    return hashlib.sha256(sample.view(torch.uint8).numpy().tobytes()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON: dataclasses with their types, tensors by their content, files of media by name and size."""
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), _values(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, Prompt) and not value.answers:  # so that the fingerprint of a prompt is that of older runs
            del fields["answers"]
        if isinstance(value, Media) and isinstance(value.source, str | tuple):
            files = (value.source,) if isinstance(value.source, str) else value.source
            fields["source"] = [[Path(file).name, _size(file)] for file in files]
        return [type(value).__name__, fields]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _size(file: str) -> int:
    try:
        return Path(container_of(file) if is_inside(file) else file).stat().st_size
    except OSError:
        return -1
