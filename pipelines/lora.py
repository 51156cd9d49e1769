"""Low-rank adapters: injected from a seed, checked to adapt at least one module, disabled for the reference policy.

Hu et al. 2021 (arXiv:2106.09685): W x becomes W x + (alpha / rank) B A x, with B = 0 at the start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.runtime.weight_files import parse_object, pickle_error, read_object
from pipelines import require

ADAPTER = "default"

DIFFUSERS_FILE = "pytorch_lora_weights.safetensors"
"""The adapter file of diffusers, whose metadata holds rank, alpha and targets."""
NETWORKS = {"transformer", "unet"}
"""Names of the network in such a file, with which the names of its tensors begin."""
PEFT_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""The adapter files of peft, and so of transformers."""


def add_lora(network: Any, rank: int, alpha: float, targets: Sequence[str], seed: int) -> list[nn.Parameter]:
    """Inject adapters into a diffusers model in place; return their parameters, the only ones that train.

    A ~ N(0, 1 / rank^2) (peft's ``gaussian``) from ``seed``, B = 0, both in fp32 whatever the precision of the base.
    A target is the suffix of a module's name (``attn.to_q``). Raises ValueError for a target that matches no module,
    which peft ignores silently as long as another one matches.
    """
    require("visual", "peft")
    from peft import LoraConfig

    if rank < 1:
        raise ValueError(f"lora rank must be at least 1, got {rank}")
    check_targets(network, targets)
    config_class: Any = LoraConfig  # annotates alpha as an integer, but only divides it by the rank
    config = config_class(r=rank, lora_alpha=alpha, target_modules=list(targets), init_lora_weights="gaussian")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network.add_adapter(config, adapter_name=ADAPTER)  # freezes everything else
    # peft makes a set of them, whose order in a saved configuration would differ from run to run.
    added = network.peft_config[ADAPTER]
    added.target_modules = sorted(added.target_modules)
    adapters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in adapters:
        parameter.data = parameter.data.float()
    return adapters


def check_targets(network: Any, targets: Sequence[str]) -> None:
    """Every target must match at least one module of the network."""
    names = [name for name, _ in network.named_modules()]
    if not targets:
        raise ValueError("lora targets: got none, expected suffixes of module names, e.g. attn.to_q")
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            linear = (name for name, module in network.named_modules() if isinstance(module, nn.Linear))
            suffixes = {".".join([part for part in name.split(".") if not part.isdigit()][-2:]) for name in linear}
            raise ValueError(f"lora targets: no module's name ends in '{target}'.{nearest(target, suffixes)}")


def has_tied_weights(network: nn.Module, layers: Iterable[nn.Module]) -> bool:
    """Whether one of these layers has a weight that is a weight of another module too, as an output layer that is tied
    to the input embeddings has."""
    owners = Counter(id(weight) for module in network.modules() for weight in module._parameters.values())
    return any(owners[id(weight)] > 1 for layer in layers for weight in layer.parameters())


def untie(network: Any) -> None:
    """Give every module weights of its own, which are no longer loaded as those of another: ``tie_word_embeddings`` is
    false in the configuration. ValueError for a network whose configuration has no such entry, where it is true."""
    kept: set[int] = set()
    for module in network.modules():
        for name, weight in module._parameters.items():
            if weight is not None and id(weight) in kept:
                setattr(module, name, nn.Parameter(weight.detach().clone(), weight.requires_grad))
            kept.add(id(weight))
        if vars(module).get("all_tied_weights_keys"):
            module.all_tied_weights_keys = {}
    configs = [network.config] if hasattr(network, "config") else []
    for config in configs:
        configs += [getattr(config, name) for name in getattr(config, "sub_configs", {}) if hasattr(config, name)]
    declared = [config for config in configs if getattr(config, "tie_word_embeddings", False)]
    if not declared:
        raise ValueError(
            f"model.lora_targets: got adapters of a weight that two modules of {type(network).__name__} share, and its "
            "configuration has no tie_word_embeddings, by which it would be loaded as two; leave that module out"
        )
    for config in declared:
        config.tie_word_embeddings = False
    UNTIED.add(network)


UNTIED: WeakSet[nn.Module] = WeakSet()
"""Networks that were tied in their checkpoint."""


@contextmanager
def adapters_off(network: Any) -> Iterator[nn.Module]:
    """The network without its adapters inside the block; restored even after an error.

    ``requires_grad`` is restored too, since peft freezes adapters while it disables them.
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
    """The adapters' tensors and their configuration, without which a loader assumes alpha = rank."""
    from peft import get_peft_model_state_dict

    weights: dict[str, nn.Module | Tensor] = dict(get_peft_model_state_dict(network, adapter_name=ADAPTER))
    return weights, network.peft_config[ADAPTER].to_dict()


def load_lora(network: Any, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> list[nn.Parameter]:
    """Add saved adapters, bit for bit, to a network without any, and return their parameters."""
    adapters = add_lora(network, config["r"], config["lora_alpha"], config["target_modules"], seed=0)
    from peft import set_peft_model_state_dict

    result = set_peft_model_state_dict(network, dict(weights), adapter_name=ADAPTER)
    missing = [name for name in result.missing_keys if ".lora_" in name]
    if missing or result.unexpected_keys:
        raise ValueError(
            f"the adapters do not fit this network: {len(missing)} of its adapter weights are missing from the file "
            f"{missing[:2]}, {len(result.unexpected_keys)} weights of the file match no module "
            f"{result.unexpected_keys[:2]}; load them into the model that they were trained with"
        )
    return adapters


def saved_adapters(network: Any, folder: Path) -> dict[str, Tensor]:
    """The values of saved adapters by the names of the network's own parameters, of whose rank or a lower one they are.

    B A alpha / rank is that of the saved ones: the rows of A and the columns of B beyond their rank are zero, and B is
    rescaled where the two have other factors alpha / rank. A module that they do not adapt has B = 0. ValueError for
    adapters of a module that the network does not adapt, and of a higher rank.
    """
    weights, config = read_adapters(folder)
    adapter = network.peft_config[ADAPTER]
    factor = (config["lora_alpha"] / config["r"]) / (adapter.lora_alpha / adapter.r)
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    plain = {name.replace(f".{ADAPTER}.", "."): name for name in trained}
    unknown = sorted(weights.keys() - plain.keys())
    if config["r"] > adapter.r or unknown:
        raise ValueError(
            f"'{folder}': got adapters of rank {config['r']}{f' of {unknown[0]}' if unknown else ''}, expected at most "
            f"model.lora_rank={adapter.r} of modules in model.lora_targets; raise lora_rank, or name its targets"
        )
    values = {name: torch.zeros_like(parameter) for name, parameter in trained.items()}
    for name, value in weights.items():
        inside = values[plain[name]]
        if ".lora_B." in name:
            inside[:, : value.shape[1]] = value.to(inside) * factor
        else:
            inside[: value.shape[0]] = value.to(inside)
    return values


def has_adapters(folder: str | Path) -> bool:
    """True for a folder of saved adapters in the format of diffusers or of peft."""
    return bool(str(folder)) and any((Path(folder) / name).is_file() for name in (DIFFUSERS_FILE, *PEFT_FILES))


def read_adapters(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of saved adapters by their names in the network, and their configuration."""
    if (folder / DIFFUSERS_FILE).is_file():
        file = folder / DIFFUSERS_FILE
        with _open(file) as opened:
            prefix = next(iter({name.partition(".")[0] for name in opened.keys()} & NETWORKS), "") + "."  # noqa: SIM118
            header = parse_object((opened.metadata() or {}).get("lora_adapter_metadata", "{}"), file)
    else:
        missing = [name for name in PEFT_FILES if not (folder / name).is_file()]
        if missing == [PEFT_FILES[1]] and (pickle := folder / "adapter_model.bin").is_file():
            raise pickle_error(pickle, "")
        if missing:
            raise FileNotFoundError(
                f"'{folder}' contains no adapters: {' and '.join(missing)} missing; name a folder that a run saved"
            )
        file, prefix = folder / PEFT_FILES[1], "base_model.model."
        header = read_object(folder / PEFT_FILES[0])
    with _open(file) as opened:
        weights = {name.removeprefix(prefix): opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    config = {name.removeprefix(prefix): value for name, value in header.items()}
    if not {"r", "lora_alpha", "target_modules"} <= set(config):
        raise ValueError(f"'{file}' does not state rank, alpha and targets; expected adapters saved by this library")
    rank, alpha, targets = config["r"], config["lora_alpha"], config["target_modules"]
    numbers = isinstance(rank, int) and isinstance(alpha, int | float)
    if not (numbers and isinstance(targets, list) and all(isinstance(target, str) for target in targets)):
        raise ValueError(
            f"'{file}': got rank {rank!s:.40}, alpha {alpha!s:.40} and targets {targets!s:.80}, expected two "
            "numbers and a list of names; expected adapters saved by this library"
        )
    return weights, config


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise ValueError(
            f"'{file}' is not a safetensors file ({error}); save or download the adapters again"
        ) from error


def continue_adapters(network: Any, folder: Path, rank: int) -> None:
    """Add saved adapters to the network; ``rank`` must be theirs, or 0."""
    weights, config = read_adapters(folder)
    if rank not in (0, config["r"]):
        raise ValueError(f"lora_rank: got {rank}, expected {config['r']}, the rank of the adapters in '{folder}', or 0")
    load_lora(network, weights, config)
