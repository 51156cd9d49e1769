"""The tokens of a sample divided among processes, by a plan: that of diffusers for the network (``_cp_plan``) or, where
it has none or divides too much, that of the family's file (``sequence_plan``) in the same terms.

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
from fnmatch import fnmatchcase
from inspect import signature
from math import prod
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from pipelines.sequences import Line, all_tokens, own_tokens


def divide_by_plan(network: nn.Module, mesh: DeviceMesh, plan_of: Callable[[Any, Line], SequencePlan]) -> None:
    """Let the processes of a line of the mesh (``ulysses``) divide the tokens of every network of diffusers in
    ``network``, each by its plan. ValueError for heads that they cannot share."""
    from diffusers import ContextParallelConfig, ModelMixin
    from diffusers.hooks.context_parallel import apply_context_parallel
    from diffusers.models._modeling_parallel import ParallelConfig
    from diffusers.models.attention import AttentionModuleMixin
    from diffusers.models.attention_processor import Attention, JointAttnProcessor2_0

    lines = mesh["ulysses"]
    line = Line(lines.get_group(), lines.size(), lines.get_local_rank())
    for part in [module for module in network.modules() if isinstance(module, ModelMixin)]:
        heads = part.config["n_heads" if "n_heads" in part.config else "num_attention_heads"]
        if heads % line.count:
            raise ValueError(
                f"distributed.sequence: got {line.count}, expected a divisor of {heads}, the heads of "
                f"{type(part).__name__}"
            )
        context = ContextParallelConfig(ulysses_degree=line.count, mesh=mesh)
        config = ParallelConfig(context_parallel_config=context)
        place = torch.distributed.get_rank(), torch.distributed.get_world_size()
        config.setup(*place, torch.device(mesh.device_type), mesh=mesh)
        plan = plan_of(part, line)
        for name, module in part.named_modules():
            if not isinstance(module, Attention | AttentionModuleMixin) or fnmatchcase(name, plan.undivided):
                continue
            if isinstance(module.processor, JointAttnProcessor2_0):
                module.processor = Exchanging(module.processor, line)  # type: ignore[assignment]
            else:
                module.processor._parallel_config = config  # type: ignore[union-attr]
        for name, hook in plan.hooks:
            part.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)
        for name, split in plan.splits.items():
            if isinstance(split, dict) and "*" not in name:
                axes = {key: given.split_dim for key, given in split.items() if not given.split_output}
                part.get_submodule(name).register_forward_pre_hook(Divisible(axes, line.count), with_kwargs=True)
        logging.getLogger(apply_context_parallel.__module__).setLevel(logging.ERROR)  # what is whole on purpose
        apply_context_parallel(part, context, dict(plan.splits))


@dataclass(frozen=True)
class SequencePlan:
    """How the tokens of a network are divided."""

    splits: Mapping[str, Any]
    """Names of modules to which of their inputs are divided, or of their outputs gathered, as in diffusers."""
    undivided: str = ""
    """The names of attentions that are left as they are, as a pattern."""
    hooks: Sequence[tuple[str, Callable[..., Any]]] = ()
    """Modules and what checks or changes the inputs of their calls before they are divided."""


def plan_of_diffusers(network: Any, line: Line) -> SequencePlan:
    """That of the class of a network."""
    return SequencePlan(network._cp_plan)


@dataclass(frozen=True)
class Filled:
    """Words of a call filled up to a multiple of a number, with a mask that says which are real."""

    multiple: int
    mask: str
    """The input of this name."""

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        words, real = named["encoder_hidden_states"], named[self.mask]
        if not (missing := -words.shape[1] % self.multiple):
            return None
        real = torch.ones(words.shape[:2], dtype=torch.bool, device=words.device) if real is None else real
        filled = {"encoder_hidden_states": nn.functional.pad(words, (0, 0, 0, missing))}
        return inputs, {**named, **filled, self.mask: nn.functional.pad(real, (0, missing))}


@dataclass(frozen=True)
class Counted:
    """Words of a call of Stable Diffusion 3 filled up to a multiple of a number; attentions (``Exchanging``) are told
    how many are real."""

    multiple: int

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        words = named["encoder_hidden_states"]
        filled = nn.functional.pad(words, (0, 0, 0, -words.shape[1] % self.multiple))
        counts = {"joint_attention_kwargs": {"real": words.shape[1]}}
        return inputs, {**named, "encoder_hidden_states": filled, **counts}


@dataclass(frozen=True)
class Whole:
    """An input of a call, by its place, of which a process has its part along axis 1."""

    place: int
    line: Line

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        part = inputs[self.place].contiguous()
        parts = [torch.empty_like(part) for _ in range(self.line.count)]
        torch.distributed.all_gather(parts, part, group=self.line.group)
        return (*inputs[: self.place], torch.cat(parts, 1), *inputs[self.place + 1 :]), named


@dataclass(frozen=True)
class Exchanging:
    """An attention processor that calls torch's attention itself, and not by the dispatch of diffusers."""

    processor: Any
    line: Line

    def __call__(
        self,
        attn: nn.Module,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        real: int | None = None,
    ) -> Any:
        images, words = hidden_states.shape[1], 0 if encoder_hidden_states is None else encoder_hidden_states.shape[1]
        mask = None
        if real is not None and words * self.line.count > real:
            mask = joint_mask(images, words, real, self.line.count).to(hidden_states.device)[None]
        with ByHeads(self.line, mask):
            return self.processor(attn, hidden_states, encoder_hidden_states, attention_mask)


def joint_mask(images: int, words: int, real: int, count: int) -> Bool[Tensor, "{count*(images+words)}"]:
    """Which tokens are attended to: those of ``count`` processes, of each first images and then words, of whose words
    the first ``real`` are."""
    there = (torch.arange(count * words) < real).unflatten(0, (count, words))
    return torch.cat([torch.ones(count, images, dtype=torch.bool), there], 1).flatten()


class ByHeads(TorchFunctionMode):
    """Within it torch's attention, of all heads of a process's tokens, is that of its heads of all tokens."""

    def __init__(self, line: Line, mask: Tensor | None) -> None:
        super().__init__()
        self.line, self.mask = line, mask

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        query, key, value = (all_tokens(states, self.line) for states in args)
        attended = func(query, key, value, attn_mask=self.mask)
        return own_tokens(attended.transpose(1, 2), self.line).transpose(1, 2)


@dataclass(frozen=True)
class Divisible:
    """ValueError for an input of a call whose tokens, along its axis, cannot be divided evenly."""

    axes: Mapping[str, int]
    together: int

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = signature(type(module).forward).bind(module, *inputs, **named).arguments
        for name, axis in self.axes.items():
            value = given.get(name)
            if isinstance(value, Tensor) and value.dim() > axis:
                refuse_uneven(value.shape[axis], name, self.together)


@dataclass(frozen=True)
class DivisiblePatches:
    """ValueError for a clip whose patches, of these sides, cannot be divided evenly."""

    patch: tuple[int, ...]
    together: int

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        sides = zip(named["hidden_states"].shape[2:], self.patch, strict=True)
        refuse_uneven(prod(side // of for side, of in sides), "hidden_states", self.together)


def refuse_uneven(length: int, name: str, together: int) -> None:
    """ValueError for tokens that cannot be divided evenly."""
    if length % together:
        raise ValueError(
            f"distributed.sequence: got {together}, expected a divisor of {length}, the length of {name}; "
            "change it, the size of samples, or model.max_sequence_length"
        )
