"""The tokens of a sample divided among processes, by the plans of diffusers for each class of network (``_cp_plan``).

Between attentions a process computes its part of the tokens. Before an attention it gives all but its heads away and
gets the tokens of the others, and afterwards the reverse (DeepSpeed-Ulysses, arXiv:2309.14509). What a plan gathers at
the end is whole on every process, and the gradient of a loss of it reaches the tokens of the process alone: gradients
of weights are summed over processes, as they are everywhere here.

``enable_parallelism`` of diffusers does the same by one call, and divides the number of the process by that of the
machine's accelerators, of which a CPU has none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
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
        plan, kept, hooks = particulars(part, together)
        for name, module in part.named_modules():
            if isinstance(module, Attention | AttentionModuleMixin) and not (kept and name.endswith(kept)):
                module.processor._parallel_config = config  # type: ignore[union-attr]
        for hook in hooks:
            part.register_forward_pre_hook(hook, with_kwargs=True)
        for name, split in plan.items():
            if isinstance(split, dict) and "*" not in name:
                axes = {key: one.split_dim for key, one in split.items() if not one.split_output}
                part.get_submodule(name).register_forward_pre_hook(Divisible(axes, together), with_kwargs=True)
        logging.getLogger(apply_context_parallel.__module__).setLevel(logging.ERROR)  # what is whole on purpose
        apply_context_parallel(part, context, plan)


def particulars(network: Any, together: int) -> tuple[dict[str, Any], str, Sequence[Callable[..., Any]]]:
    """The plan of a network, the end of the names of attentions that are left as they are, and what changes the inputs
    of its calls before they are divided."""
    plan = network._cp_plan
    match type(network).__name__:
        case "LTXVideoTransformer3DModel":
            # diffusers divides the words too, but an attention to fewer or more tokens than it is of has no gradient
            # there. Every process has all words here, and a level for each of its tokens where they differ.
            from diffusers.models._modeling_parallel import ContextParallelInput

            levels = ContextParallelInput(split_dim=1, expected_dims=2)
            root = {"hidden_states": plan[""]["hidden_states"], "timestep": levels}
            return {**plan, "": root}, ".attn2", ()
        case "QwenImageTransformer2DModel":  # whose words are as many as the longest prompt has
            return plan, "", (Filled(together),)
        case _:
            return plan, "", ()


@dataclass(frozen=True)
class Filled:
    """Words of a call filled up to a multiple of a number, with a mask that says which are real."""

    multiple: int

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        words, real = named["encoder_hidden_states"], named["encoder_hidden_states_mask"]
        if not (missing := -words.shape[1] % self.multiple):
            return None
        real = torch.ones(words.shape[:2], dtype=torch.bool, device=words.device) if real is None else real
        filled = {"encoder_hidden_states": nn.functional.pad(words, (0, 0, 0, missing))}
        return inputs, {**named, **filled, "encoder_hidden_states_mask": nn.functional.pad(real, (0, missing))}


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
