"""Networks of transformers: read from a folder or hub, made ready to train, saved as they were."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file
from torch import nn

from mmgrpo.blocks import nearest
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


def read_network(kind: Any, path: str, dtype: torch.dtype) -> Any:
    """A network of a class (or auto class) of transformers; a file that lacks weights is an error."""
    try:
        network, found = kind.from_pretrained(path, dtype=dtype, output_loading_info=True)
    except OSError as error:
        raise FileNotFoundError(
            f"no model could be read from '{path}' (a folder, or a hub id that this machine can reach): {error}"
        ) from error
    if found["missing_keys"]:
        raise ValueError(f"'{path}': the model's file lacks weights, e.g. {sorted(found['missing_keys'])[:3]}")
    return network.eval()


def make_trainable(
    network: Any,
    *,
    lora_rank: int,
    lora_alpha: float,
    lora_targets: Sequence[str],
    lora_seed: int,
    lora_path: str | Path,
    frozen: Sequence[nn.Module],
    keep_reference: bool,
    gradient_checkpointing: bool,
) -> Reference:
    """Choose what trains; returns the context manager that gives the network as it was before training.

    Adapters where there is a rank or a path of saved ones (the reference is the network with adapters off), else
    everything but ``frozen`` (the reference is a copy, where ``keep_reference`` asks for one).
    """
    if lora_rank < 0:
        raise ValueError(f"lora_rank: came {lora_rank}, wanted 0 (train the whole network) or more")
    reference: Reference
    if str(lora_path):
        continue_adapters(network, Path(lora_path), lora_rank)
        reference = partial(adapters_off, network)
    elif lora_rank:
        add_lora(network, lora_rank, lora_alpha, adapted_names(network, lora_targets, frozen), lora_seed)
        reference = partial(adapters_off, network)
    else:
        network.requires_grad_(True)
        for module in frozen:
            module.requires_grad_(False)
        original = copy.deepcopy(network).requires_grad_(False) if keep_reference else None
        reference = no_reference if original is None else partial(nullcontext, original)
    if gradient_checkpointing:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    return reference


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
