"""Networks of transformers: read from a folder or hub, made ready to train, saved as they were."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file
from torch import nn

from mmgrpo.registry import nearest
from pipelines.lora import adapters_off, add_lora, load_lora

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Reference = Callable[[], AbstractContextManager[nn.Module]]


def torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f"dtype: there is no '{name}'.{nearest(name, DTYPES)}")
    return DTYPES[name]


def computing(dtype: torch.dtype, device: torch.device) -> AbstractContextManager:
    """Compute in ``dtype``; nothing at all for float32, since an autocast that is off would also switch off one
    around it, which a sampler of lower precision has."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def locate(path: str | Path, wanted: str) -> str:
    """A folder that holds a model, or a hub id where there is no such folder; ``wanted`` is an example of one."""
    text = str(path)
    if Path(path).is_dir():
        if (Path(path) / "config.json").is_file():
            return text
        inside = ", ".join(sorted(entry.name for entry in Path(path).iterdir())) or "nothing"
        raise FileNotFoundError(f"'{text}' is no model folder: it holds {inside}; wanted config.json and weights")
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", text):
        return text
    raise FileNotFoundError(
        f"there is no model folder '{text}', and it is no hub id either; give an existing folder or "
        f"owner/name, e.g. {wanted}"
    )


def read_network(kind: Any, source: str, training: Training) -> Any:
    """A network of a class (or auto class) of transformers; a file that lacks weights is an error."""
    path = str(training.network_path or source)
    try:
        network, found = kind.from_pretrained(path, dtype=training.stored, output_loading_info=True)
    except OSError as error:
        raise FileNotFoundError(
            f"no model could be read from '{path}' (a folder, or a hub id that this machine can reach): {error}"
        ) from error
    if found["missing_keys"]:
        raise ValueError(f"'{path}': the model's file lacks weights, e.g. {sorted(found['missing_keys'])[:3]}")
    return network.eval().to(training.device)


@dataclass(frozen=True)
class Training:
    """What of a model trains, from where it goes on, and in which numbers. What trains is fp32 always."""

    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains the network itself, but for what its family freezes."""
    lora_alpha: float = 64.0
    lora_targets: Sequence[str] = ()
    """Ends of the names of adapted modules; empty takes the family's."""
    lora_seed: int = 0
    lora_path: str | Path = ""
    """Folder of saved adapters to go on from; rank, alpha and targets are theirs."""
    network_path: str | Path = ""
    """Folder of a whole saved network to go on from."""
    keep_reference: bool = False
    """Copy the network before training, where all of it trains; under adapters it is there for nothing."""
    gradient_checkpointing: bool = False
    dtype: str = "float32"
    """What is computed in, and what a frozen base under adapters is stored in: float32, bfloat16 or float16."""
    device: str | torch.device = "cpu"

    @property
    def adapters(self) -> bool:
        """True when adapters train, and not the network."""
        return self.lora_rank > 0 or str(self.lora_path) != ""

    @property
    def compute(self) -> torch.dtype:
        """``dtype`` as torch has it."""
        return torch_dtype(self.dtype)

    @property
    def stored(self) -> torch.dtype:
        """What the network's own weights are stored in."""
        return self.compute if self.adapters else torch.float32


PLAIN = Training()
"""The whole network, in fp32, on the CPU."""


def make_trainable(
    network: Any, training: Training, targets: Sequence[str], frozen: Sequence[nn.Module] = ()
) -> Reference:
    """Choose what trains; returns the context manager that gives the network as it was before training.

    Adapters on ``targets``, unless ``training`` names others (the reference is the network with adapters off), or
    everything but ``frozen`` (the reference is a copy, where one is kept).
    """
    rank = training.lora_rank
    if rank < 0:
        raise ValueError(f"lora_rank: came {rank}, wanted 0 (train the whole network) or more")
    reference: Reference
    if str(training.lora_path):
        continue_adapters(network, Path(training.lora_path), rank)
        reference = partial(adapters_off, network)
    elif rank:
        names = adapted_names(network, training.lora_targets or targets, frozen)
        add_lora(network, rank, training.lora_alpha, names, training.lora_seed)
        reference = partial(adapters_off, network)
    else:
        network.requires_grad_(True)
        for module in frozen:
            module.requires_grad_(False)
        original = copy.deepcopy(network).requires_grad_(False) if training.keep_reference else None
        reference = no_reference if original is None else partial(nullcontext, original)
    if training.gradient_checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    return reference


def recompute(network: nn.Module, again: bool) -> bool:
    """Make layers keep no activations and compute them ``again`` in the backward pass, or not; returns ``again``.

    transformers does it in layers that are in training mode. What is inside them stays out of that mode, for there
    it would drop values, and the ratio would not begin at one.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    network.eval()
    for module in network.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = again
    return again


def adapted_names(network: Any, targets: Sequence[str], frozen: Sequence[nn.Module]) -> list[str]:
    """The targets, or where one of them also names a module inside a frozen part, the full names outside it."""
    inside = {id(module) for part in frozen for module in part.modules()}
    names = [
        (name, id(module) in inside)
        for name, module in network.named_modules()
        if any(name == target or name.endswith(f".{target}") for target in targets)
    ]
    return [name for name, within in names if not within] if any(within for _, within in names) else list(targets)


def continue_adapters(network: Any, folder: Path, rank: int) -> None:
    """Put the adapters that ``save_network`` wrote into the network; ``rank`` 0 takes theirs."""
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    if not (config.is_file() and weights.is_file()):
        raise FileNotFoundError(f"lora_path: '{folder}' does not hold {config.name} and {weights.name}")
    settings = json.loads(config.read_text())
    if rank not in (0, settings["r"]):
        raise ValueError(f"lora_rank: came {rank}, but the adapters of '{folder}' have rank {settings['r']}")
    tensors = {name.removeprefix("base_model.model."): value for name, value in load_file(weights).items()}
    load_lora(network, tensors, settings)


def no_reference() -> NoReturn:
    raise ValueError("the whole network trains and no copy was kept: load the model with keep_reference=True")


def save_network(folder: Path, network: Any, parts: Sequence[Any]) -> None:
    """Adapters in peft's format where there are any, else an ordinary folder with tokenizer and processor."""
    from accelerate.utils import extract_model_from_parallel

    network = extract_model_from_parallel(network)
    network.save_pretrained(folder)
    for part in parts:
        part.save_pretrained(folder)
