"""What of a network trains, in which numbers, and what it is compared with: the network before training."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmgrpo.registry import nearest
from mmgrpo.types import Reference
from pipelines.lora import adapters_off, add_lora, continue_adapters, holds_adapters
from pipelines.options import ModelOptions

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    """A precision by its name."""
    if name not in DTYPES:
        raise ValueError(f"dtype: there is no '{name}'.{nearest(name, DTYPES)}")
    return DTYPES[name]


def computing(dtype: torch.dtype, device: torch.device) -> AbstractContextManager:
    """Compute in ``dtype``; nothing at all for float32, since an autocast that is off would also switch off one
    around it, which a sampler of lower precision has."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


@dataclass(frozen=True)
class Training:
    """What of a model trains, from where it goes on, and in which numbers. What trains is fp32 always."""

    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains the network itself, except for what its family freezes."""
    lora_alpha: float = 64.0
    lora_targets: Sequence[str] = ()
    """Ends of the names of adapted modules; empty takes the family's."""
    lora_seed: int = 0
    weights: str | Path = ""
    """Folder of saved adapters, or of a whole saved network, to go on from; rank, alpha and targets are theirs."""
    gradient_checkpointing: bool = False
    dtype: str = "float32"
    """What is computed in, and what a frozen base under adapters is stored in: float32, bfloat16 or float16."""
    device: str | torch.device = "cpu"

    @staticmethod
    def of(options: ModelOptions, *, seed: int, device: str, weights: str = "", training: bool = True) -> Training:
        """From the options of a run; ``training`` is False for a model that only samples."""
        return Training(
            lora_rank=options.lora_rank,
            lora_alpha=options.lora_alpha,
            lora_targets=tuple(options.lora_targets),
            lora_seed=seed,
            weights=weights,
            gradient_checkpointing=options.gradient_checkpointing and training,
            dtype=options.dtype,
            device=device,
        )

    @property
    def adapters(self) -> bool:
        """True when adapters train, and not the network."""
        return self.lora_rank > 0 or holds_adapters(self.weights)

    @property
    def network(self) -> str:
        """Folder of a whole saved network to go on from; empty where there is none."""
        return "" if self.adapters else str(self.weights)

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


@dataclass(frozen=True)
class AdaptersOff:
    """The network before training, where only adapters train: the network with its adapters switched off."""

    network: Any

    def keep(self) -> None:
        """Nothing has to be kept."""

    def __call__(self) -> AbstractContextManager[nn.Module]:
        return adapters_off(self.network)


@dataclass
class FrozenCopy:
    """The network before training, where all of it trains: a copy, made when ``keep`` is called."""

    network: nn.Module
    kept: list[nn.Module] = field(default_factory=list)

    def keep(self) -> None:
        """Copy the network as it is now."""
        if not self.kept:
            self.kept.append(copy.deepcopy(self.network).requires_grad_(False))

    def __call__(self) -> AbstractContextManager[nn.Module]:
        if not self.kept:
            raise ValueError("no copy of the network was kept before training: call policy.keep_reference() first")
        return nullcontext(self.kept[0])


def make_trainable(
    network: Any, training: Training, targets: Sequence[str], frozen: Sequence[nn.Module] = ()
) -> Reference:
    """Choose what trains; returns the network as it was before training, as a context manager.

    Adapters on ``targets``, unless ``training`` names others, or everything except ``frozen``.
    """
    rank = training.lora_rank
    if rank < 0:
        raise ValueError(f"lora_rank must be 0 (train the network itself) or more, got {rank}")
    reference: Reference = AdaptersOff(network) if training.adapters else FrozenCopy(network)
    if holds_adapters(training.weights):
        continue_adapters(network, Path(training.weights), rank)
    elif rank:
        names = adapted_names(network, training.lora_targets or targets, frozen)
        add_lora(network, rank, training.lora_alpha, names, training.lora_seed)
    else:
        network.requires_grad_(True)
        for module in frozen:
            module.requires_grad_(False)
    if training.gradient_checkpointing:
        from transformers import PreTrainedModel

        if isinstance(network, PreTrainedModel):
            network.gradient_checkpointing_enable({"use_reentrant": False})
        else:  # of diffusers
            network.enable_gradient_checkpointing()
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
