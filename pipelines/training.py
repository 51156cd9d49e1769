"""Which parameters train, in which precision, and the reference: the network before training."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from safetensors import safe_open
from torch import Tensor, nn

from mmgrpo.config.names import nearest
from mmgrpo.runtime.devices import put
from mmgrpo.runtime.products import by_onednn
from mmgrpo.runtime.sharding import swap_weights
from mmgrpo.types import Reference
from pipelines.existing_lora import ExistingLora, Factors, Names, continue_existing, merge_existing
from pipelines.lora import adapters_off, add_lora, continue_adapters, has_adapters, saved_adapters
from pipelines.options import ModelOptions
from pipelines.quantized import known_as_quantized, quantize

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def torch_dtype(name: str) -> torch.dtype:
    """A torch dtype by its name."""
    if name not in DTYPES:
        raise ValueError(f"dtype: unknown dtype '{name}'.{nearest(name, DTYPES)}")
    return DTYPES[name]


def exact_head(network: Any) -> None:
    """Store the weights of the output layer in fp32, once; tied input embeddings are the same tensor."""
    network.get_output_embeddings().float()


@dataclass(frozen=True)
class Training:
    """Which parameters of a model train, their initial values, and the precision. Trained parameters are fp32."""

    lora_rank: int = 0
    """Rank of the LoRA adapters; 0 trains the network itself, except for the parts that its family freezes."""
    lora_alpha: float = 64.0
    lora_targets: Sequence[str] = ()
    """Name suffixes of the adapted modules; empty: the family's."""
    lora_seed: int = 0
    weights: str | Path = ""
    """Folder of saved adapters, whose rank, alpha and targets apply, or of a whole saved network, to continue from."""
    gradient_checkpointing: bool = False
    dtype: str = "float32"
    """Precision of computation, and of the stored weights of a frozen base: float32, bfloat16 or float16."""
    device: str | torch.device = "cpu"
    quantize: str = "none"
    """Storage of the frozen base of adapters: none, 8bit or 4bit (``pipelines.quantized``)."""
    allow_pickle: bool = False
    """Read weights from pickles where there are no safetensors (``ModelOptions.allow_pickle``)."""
    lora: ExistingLora | None = None
    """Adapters to begin with."""
    sharded: bool = False
    """The network stays on the CPU until it is sharded, since it may not fit a device whole."""
    offload_activations: bool = False
    """The inputs of blocks that recompute wait for the backward pass in the memory of the host."""

    @staticmethod
    def of(
        options: ModelOptions,
        *,
        seed: int,
        device: str,
        weights: str = "",
        training: bool = True,
        shard: str = "none",
        names: Names | None = None,
    ) -> Training:
        """The options of a run; ``training`` is False for a model that only samples. ``names`` are the authors' of
        the modules, by which ComfyUI and kohya call them."""
        return Training(
            lora_rank=options.lora_rank,
            lora_alpha=options.lora_alpha,
            lora_targets=tuple(options.lora_targets),
            lora_seed=seed,
            weights=weights,
            gradient_checkpointing=options.gradient_checkpointing and training,
            dtype=options.dtype,
            device=device,
            quantize=options.quantize,
            allow_pickle=options.allow_pickle,
            lora=ExistingLora.of(options, names),
            sharded=shard == "full" and training and int(os.environ.get("WORLD_SIZE", "1")) > 1,
            offload_activations=options.offload_activations and training,
        )

    @property
    def adapters(self) -> bool:
        """True where adapters train instead of the network."""
        return self.lora_rank > 0 or has_adapters(self.weights)

    @property
    def network(self) -> str:
        """Folder of a whole saved network to continue from; empty where there is none."""
        return "" if self.adapters else str(self.weights)

    @property
    def compute_dtype(self) -> torch.dtype:
        """``dtype`` as a torch dtype."""
        return torch_dtype(self.dtype)

    @property
    def storage_dtype(self) -> torch.dtype:
        """Precision in which the network's own weights are stored."""
        return self.compute_dtype if self.adapters else torch.float32


PLAIN = Training()
"""The whole network, in fp32, on the CPU."""


@dataclass(frozen=True)
class AdaptersOff:
    """The reference where only adapters train: the network with its adapters disabled."""

    network: Any
    copies: tuple[()] = ()
    bare: bool = True

    def keep(self) -> None:
        """No copy is needed."""

    def __call__(self) -> AbstractContextManager[nn.Module]:
        return adapters_off(self.network)

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The values of saved adapters, by the names of the network's parameters."""
        return saved_adapters(self.network, folder)


@dataclass(frozen=True)
class GivenAdapters:
    """The reference where existing adapters are trained further: the network with these as they were."""

    network: Any
    values: dict[str, Tensor]
    """Of the adapters at their start, by the names of the network's parameters."""
    copies: tuple[()] = ()
    bare: bool = False

    def keep(self) -> None:
        """They are kept already."""

    @contextmanager
    def __call__(self) -> Iterator[nn.Module]:
        trained = {name: parameter for name, parameter in self.network.named_parameters() if name in self.values}
        for name, parameter in trained.items():  # the network has moved to its device since
            self.values[name] = self.values[name].to(parameter.device)
        with swap_weights(self.network, self.values):
            yield self.network

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The values of saved adapters, by the names of the network's parameters."""
        return saved_adapters(self.network, folder)


@dataclass
class FrozenCopy:
    """The reference where the network itself trains: a copy as of the first call of ``keep``."""

    network: nn.Module
    copies: list[nn.Module] = field(default_factory=list)
    """The copy, once there is one."""
    bare: bool = False

    def keep(self) -> None:
        """Copy the network in its present state; later calls do nothing."""
        if not self.copies:
            self.copies.append(copy.deepcopy(self.network).requires_grad_(False))

    def __call__(self) -> AbstractContextManager[nn.Module]:
        if not self.copies:
            raise ValueError("the untrained network was not copied; call policy.keep_reference() before training")
        return nullcontext(self.copies[0])

    def read(self, folder: Path) -> dict[str, Tensor]:
        """The trained weights of a whole saved network, by name."""
        names = {name for name, parameter in self.network.named_parameters() if parameter.requires_grad}
        return saved_weights(folder, names)


def saved_weights(folder: Path, names: set[str]) -> dict[str, Tensor]:
    """The weights of these names in the safetensors of a folder and its subfolders."""
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            weights |= {name: opened.get_tensor(name) for name in names & set(opened.keys())}
    return weights


def make_trainable(
    network: Any, training: Training, targets: Sequence[str], frozen: Sequence[nn.Module] = ()
) -> Reference:
    """Set which parameters train; returns the reference, the network before training, as a context manager.

    These are adapters on ``targets``, unless ``training`` names others, or all parameters except those of ``frozen``.
    """
    rank = training.lora_rank
    if rank < 0:
        raise ValueError(f"lora_rank: got {rank}, expected 0 (train the network itself) or more")
    reference: Reference = AdaptersOff(network) if training.adapters else FrozenCopy(network)
    existing = training.lora.read(network) if training.lora and not training.network else {}
    adapters = existing if training.lora and training.lora.mode == "continue" else {}
    if existing and not adapters:
        merge_existing(network, existing)
    names = target_names(network, training.lora_targets or targets, frozen) if rank and not adapters else []
    if training.adapters and training.quantize != "none":
        quantize(network, training.quantize, training.compute_dtype, frozen)
    if training.adapters:
        with known_as_quantized(network, training.quantize):
            if adapters:
                reference = begin_with(network, training, adapters, targets, frozen)
            elif has_adapters(training.weights):
                continue_adapters(network, Path(training.weights), rank)
            else:
                add_lora(network, rank, training.lora_alpha, names, training.lora_seed)
    else:
        network.requires_grad_(True)
        for module in frozen:
            module.requires_grad_(False)
    if training.gradient_checkpointing:
        from transformers import PreTrainedModel

        if isinstance(network, PreTrainedModel):
            if not network.supports_gradient_checkpointing:
                raise ValueError(
                    f"model.gradient_checkpointing: got true, expected false, since {type(network).__name__} does not "
                    "support it"
                )
            network.gradient_checkpointing_enable({"use_reentrant": False})
        else:  # a model of diffusers
            network.enable_gradient_checkpointing()
        if training.offload_activations:
            offload_inputs(network)
    if torch.device(training.device).type == "cpu":
        by_onednn(network)
    return reference


COMPILED = 64
"""Versions of a block that are compiled: of each class, with and without gradients, adapters and checkpointing, and of
each size of batches until torch compiles for any size."""


def compile_blocks(network: nn.Module, names: Sequence[str], backend: str = "inductor") -> None:
    """Compile each block whose class has one of the names (patterns), by itself and in place: names of parameters stay,
    equal blocks share their code, and adapters can be switched off between calls."""
    blocks = [block for block in network.modules() if any(fnmatchcase(type(block).__name__, name) for name in names)]
    chosen = {id(block) for block in blocks}
    if not blocks:
        raise ValueError(
            f"model.compile: got true, but {type(network).__name__} has none of the blocks that its family names "
            f"({', '.join(names)}); set false"
        )
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILED)
    for block in blocks:
        if not any(id(part) in chosen for part in list(block.modules())[1:]):  # the inner ones
            block.compile(backend=backend)


def begin_with(
    network: Any,
    training: Training,
    adapters: Mapping[str, Factors],
    targets: Sequence[str],
    frozen: Sequence[nn.Module],
) -> GivenAdapters:
    """Continue existing adapters, with the saved values of a run that did where there are any; their reference."""
    inside = {id(module) for part in frozen for module in part.modules()}
    if still := [name for name in adapters if id(network.get_submodule(name)) in inside]:
        raise ValueError(
            f"model.lora_path: got adapters of '{still[0]}' ({len(still)} of {len(adapters)}), which is frozen in this "
            "run; train that part too (model.freeze_...=false), or set model.lora_mode=merge"
        )
    continue_existing(
        network,
        adapters,
        training.lora_rank,
        training.lora_alpha,
        training.lora_targets,
        target_names(network, targets, frozen),
        training.lora_seed,
    )
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    reference = GivenAdapters(network, {name: parameter.detach().clone() for name, parameter in trained.items()})
    if has_adapters(training.weights):
        saved = saved_adapters(network, Path(training.weights))
        for name, parameter in trained.items():
            parameter.data = saved[name]
    return reference


def target_names(network: Any, targets: Sequence[str], frozen: Sequence[nn.Module]) -> list[str]:
    """The targets; where one of them also matches a module of a frozen part, the full names of all others instead."""
    frozen_ids = {id(module) for part in frozen for module in part.modules()}
    names = [
        (name, id(module) in frozen_ids)
        for name, module in network.named_modules()
        if any(name == target or name.endswith(f".{target}") for target in targets)
    ]
    if not any(is_frozen for _, is_frozen in names):
        return list(targets)  # the short form, which is what a saved configuration shows
    return [name for name, is_frozen in names if not is_frozen]


LAYERS: WeakKeyDictionary[nn.Module, Sequence[nn.Module]] = WeakKeyDictionary()
"""The layers of networks that may recompute their activations: a search in every pass would take as long as a token."""


def checkpoint_layers(network: nn.Module, enabled: bool) -> bool:
    """Set whether layers recompute their activations in the backward pass; returns ``enabled``.

    transformers checkpoints layers that are in training mode. Their submodules stay in evaluation mode, and so does
    what a layer itself computes (``InEvaluation``): with dropout, the ratio of the first update would not be one.
    """
    layers = LAYERS.get(network)
    if layers is None or network.training:
        from transformers.modeling_layers import GradientCheckpointingLayer

        network.eval()
        LAYERS[network] = layers = [m for m in network.modules() if isinstance(m, GradientCheckpointingLayer)]
    for module in layers:
        if module.training is not enabled:
            module.training = enabled
        checkpoint: Any = getattr(module, "_gradient_checkpointing_func", None)
        if enabled and checkpoint is not None and not isinstance(checkpoint, InEvaluation):
            module._gradient_checkpointing_func = InEvaluation(module, checkpoint)  # type: ignore[assignment]
    return enabled


@dataclass
class InEvaluation:
    """The function that checkpoints a layer, with the layer in evaluation mode while it computes.

    Layers of Whisper, Voxtral, Qwen2-Audio, Audio Flamingo 3, wav2vec 2.0 and others call dropout as a function with
    their own ``training``, by which transformers also decides whether to checkpoint.
    """

    layer: nn.Module
    checkpoint: Callable[..., Any]

    def __call__(self, forward: Callable[..., Any], *inputs: Any) -> Any:
        def compute(*given: Any) -> Any:
            self.layer.training = False
            try:
                return forward(*given)
            finally:  # a recomputation stops by an exception once it has all that it needs
                self.layer.training = True

        return self.checkpoint(compute, *inputs)


def offload_inputs(network: nn.Module) -> None:
    """Let the inputs of blocks that recompute activations wait for the backward pass in the memory of the host."""
    modules = [m for m in network.modules() if getattr(m, "_gradient_checkpointing_func", None) is not None]
    if not modules:
        raise ValueError(
            f"model.offload_activations: got true, expected false, since {type(network).__name__} recomputes blocks "
            "in a way of its own"
        )
    for module in modules:
        checkpoint: Any = module._gradient_checkpointing_func
        module._gradient_checkpointing_func = Offloading(checkpoint)  # type: ignore[assignment]


@dataclass(frozen=True)
class Offloading:
    """The function that checkpoints a block, whose inputs are kept on the host; what it computes from them is not."""

    checkpoint: Callable[..., Any]

    def __call__(self, forward: Callable[..., Any], *inputs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(to_host, from_host):
            return self.checkpoint(forward, *inputs)


def to_host(value: torch.Tensor) -> torch.Tensor | tuple[torch.device, torch.Tensor]:
    """A copy on the host, and the device; what has no gradient, as what all blocks are given alike, stays as it is.
    Nobody waits for the copy, since the way back is in the same queue."""
    if value.device.type == "cpu" or value.is_leaf:
        return value
    kept = torch.empty_like(value, device="cpu", pin_memory=value.is_cuda)
    return value.device, kept.copy_(value.detach(), non_blocking=value.is_cuda)


def from_host(kept: torch.Tensor | tuple[torch.device, torch.Tensor]) -> torch.Tensor:
    """What ``to_host`` was given."""
    return kept if isinstance(kept, torch.Tensor) else put(kept[1], kept[0])


WAITING: WeakSet[nn.Module] = WeakSet()
"""Networks that stay on the CPU until they are sharded (``Training.sharded``)."""


def freeze(modules: Iterable[Any], device: torch.device | str) -> None:
    """Freeze modules and move them to the device, in evaluation mode."""
    for module in modules:
        if module is not None:
            (module if module in WAITING else module.to(device)).eval().requires_grad_(False)
