"""Low-rank adapters: added with a seed, checked that they train something, switched off for a reference.

Hu et al. 2021 (arXiv:2106.09685): W x becomes W x + (alpha / rank) B A x, with B = 0 at the start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from mmgrpo.registry import nearest
from pipelines import require

ADAPTER = "default"

DIFFUSERS_FILE = "pytorch_lora_weights.safetensors"
"""Where diffusers keeps adapters; rank, alpha and targets are in the file's metadata."""
PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Where peft, and with it transformers, keeps them."""


def add_lora(network: Any, rank: int, alpha: float, targets: Sequence[str], seed: int) -> list[nn.Parameter]:
    """Inject adapters into a diffusers model in place; return their parameters, the only ones that train.

    A ~ N(0, 1 / rank^2) (peft's ``gaussian``) drawn from ``seed``, B = 0, both fp32 whatever the base is.
    A target is the end of a module's name (``attn.to_q``). Raises ValueError for a target that no module
    has: an adapter on nothing would train nothing and say nothing.
    """
    require("visual", "peft")
    from peft import LoraConfig

    if rank < 1:
        raise ValueError(f"lora rank must be at least 1, got {rank}")
    check_targets(network, targets)
    make: Any = LoraConfig  # annotates alpha as an integer, and only divides by the rank
    config = make(r=rank, lora_alpha=alpha, target_modules=list(targets), init_lora_weights="gaussian")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network.add_adapter(config, adapter_name=ADAPTER)  # freezes everything else
    adapters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in adapters:
        parameter.data = parameter.data.float()
    return adapters


def check_targets(network: Any, targets: Sequence[str]) -> None:
    """Every target must name at least one module of the network."""
    names = [name for name, _ in network.named_modules()]
    if not targets:
        raise ValueError("lora targets: got none, expected the ends of module names, e.g. attn.to_q")
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            linear = (name for name, module in network.named_modules() if isinstance(module, nn.Linear))
            ends = {".".join([part for part in name.split(".") if not part.isdigit()][-2:]) for name in linear}
            raise ValueError(f"lora targets: no module's name ends in '{target}'.{nearest(target, ends)}")


@contextmanager
def adapters_off(network: Any) -> Iterator[nn.Module]:
    """The network without its adapters, for the length of the block; restored even after an error.

    Which parameters train is restored too: peft freezes adapters while they are off.
    """
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    network.disable_adapters()
    try:
        yield network
    finally:
        network.enable_adapters()
        network.requires_grad_(False)
        for parameter in trainable:
            parameter.requires_grad_(True)


def lora_weights(network: Any) -> tuple[dict[str, nn.Module | Tensor], dict[str, Any]]:
    """The adapters' tensors and their configuration, without which a loader guesses alpha = rank."""
    from peft import get_peft_model_state_dict

    weights: dict[str, nn.Module | Tensor] = dict(get_peft_model_state_dict(network, adapter_name=ADAPTER))
    return weights, network.peft_config[ADAPTER].to_dict()


def load_lora(network: Any, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> list[nn.Parameter]:
    """Put saved adapters into a network without any, bit for bit, and return their parameters."""
    require("visual", "peft")
    from peft import set_peft_model_state_dict

    adapters = add_lora(network, config["r"], config["lora_alpha"], config["target_modules"], seed=0)
    result = set_peft_model_state_dict(network, dict(weights), adapter_name=ADAPTER)
    missing = [name for name in result.missing_keys if ".lora_" in name]
    if missing or result.unexpected_keys:
        raise ValueError(
            f"the adapters do not fit this network: {len(missing)} of its adapter weights are not in the "
            f"file {missing[:2]}, {len(result.unexpected_keys)} weights of the file have no place "
            f"{result.unexpected_keys[:2]}"
        )
    return adapters


def holds_adapters(folder: str | Path) -> bool:
    """True for a folder of saved adapters, of diffusers' format or of peft's."""
    return bool(str(folder)) and any((Path(folder) / name).is_file() for name in (DIFFUSERS_FILE, *PEFT_FILES))


def read_adapters(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of saved adapters, by their names in the network, and their configuration."""
    if (folder / DIFFUSERS_FILE).is_file():
        file, prefix = folder / DIFFUSERS_FILE, "transformer."
        with safe_open(file, framework="pt") as opened:
            header = json.loads((opened.metadata() or {}).get("lora_adapter_metadata", "{}"))
    else:
        missing = [name for name in PEFT_FILES if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(f"'{folder}' holds no adapters: it lacks {' and '.join(missing)}")
        file, prefix = folder / PEFT_FILES[1], "base_model.model."
        header = json.loads((folder / PEFT_FILES[0]).read_text(encoding="utf-8"))
    with safe_open(file, framework="pt") as opened:
        weights = {name.removeprefix(prefix): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    config = {name.removeprefix(prefix): value for name, value in header.items()}
    if not {"r", "lora_alpha", "target_modules"} <= set(config):
        raise ValueError(f"'{file}' does not say its rank, alpha and targets; expected adapters saved by this library")
    return weights, config


def continue_adapters(network: Any, folder: Path, rank: int) -> None:
    """Put saved adapters into the network; ``rank`` 0 takes theirs."""
    weights, config = read_adapters(folder)
    if rank not in (0, config["r"]):
        raise ValueError(f"lora_rank must be {config['r']}, as the adapters of '{folder}' have it, or 0; got {rank}")
    load_lora(network, weights, config)
