"""Low-rank adapters: added with a seed, checked that they train something, switched off for a reference.

Hu et al. 2021 (arXiv:2106.09685): W x becomes W x + (alpha / rank) B A x, with B = 0 at the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.registry import nearest
from pipelines import require

ADAPTER = "default"


def add_lora(network: Any, rank: int, alpha: float, targets: Sequence[str], seed: int) -> list[nn.Parameter]:
    """Inject adapters into a diffusers model in place; return their parameters, the only ones that train.

    A ~ N(0, 1 / rank^2) (peft's ``gaussian``) drawn from ``seed``, B = 0, both fp32 whatever the base is.
    A target is the end of a module's name (``attn.to_q``). Raises ValueError for a target that no module
    has: an adapter on nothing would train nothing and say nothing.
    """
    require("visual", "peft")
    from peft import LoraConfig

    if rank < 1:
        raise ValueError(f"lora rank: came {rank}, wanted at least 1")
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
        raise ValueError("lora targets: came none, wanted the ends of module names, e.g. attn.to_q")
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
