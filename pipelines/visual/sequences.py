"""The tokens of a sample divided among processes, by the plans of diffusers for each class of network (``_cp_plan``).

Between attentions a process computes its part of the tokens. Before an attention it gives all but its heads away and
gets the tokens of the others, and afterwards the reverse (DeepSpeed-Ulysses, arXiv:2309.14509). What a plan gathers at
the end is whole on every process, and the gradient of a loss of it reaches the tokens of the process alone: gradients
of weights are summed over processes, as they are everywhere here.

``enable_parallelism`` of diffusers does the same by one call, and divides the number of the process by that of the
machine's accelerators, of which a CPU has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh


def divide_by_plan(network: nn.Module, mesh: DeviceMesh) -> None:
    """Let the processes of a line of the mesh (``ulysses``) divide the tokens of every network of diffusers in
    ``network``. ValueError for heads that they cannot share."""
    from diffusers import ContextParallelConfig, ModelMixin
    from diffusers.hooks.context_parallel import apply_context_parallel
    from diffusers.models._modeling_parallel import ParallelConfig
    from diffusers.models.attention import AttentionModuleMixin
    from diffusers.models.attention_processor import Attention

    together = mesh["ulysses"].size()
    for part in [one for one in network.modules() if isinstance(one, ModelMixin)]:
        if (heads := part.config["num_attention_heads"]) % together:
            raise ValueError(
                f"distributed.sequence: got {together}, expected a divisor of {heads}, the heads of "
                f"{type(part).__name__}"
            )
        context = ContextParallelConfig(ulysses_degree=together, mesh=mesh)
        config = ParallelConfig(context_parallel_config=context)
        place = torch.distributed.get_rank(), torch.distributed.get_world_size()
        config.setup(*place, torch.device(mesh.device_type), mesh=mesh)
        for module in part.modules():
            if isinstance(module, Attention | AttentionModuleMixin):
                module.processor._parallel_config = config  # type: ignore[union-attr]
        plan: Any = part._cp_plan
        for name, split in plan.items():
            if isinstance(split, dict) and "*" not in name:
                axes = {key: one.split_dim for key, one in split.items() if not one.split_output}
                part.get_submodule(name).register_forward_pre_hook(Divisible(axes, together), with_kwargs=True)
        apply_context_parallel(part, context, plan)


@dataclass(frozen=True)
class Divisible:
    """ValueError for an input of a call whose tokens, along its axis, cannot be divided evenly."""

    axes: Mapping[str, int]
    together: int

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = signature(type(module).forward).bind(module, *inputs, **named).arguments
        for name, axis in self.axes.items():
            value = given.get(name)
            if isinstance(value, Tensor) and value.dim() > axis and (length := value.shape[axis]) % self.together:
                raise ValueError(
                    f"distributed.sequence: got {self.together}, expected a divisor of {length}, the length of {name}; "
                    "change it, the size of samples, or model.max_sequence_length"
                )
