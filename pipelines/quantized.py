"""A frozen base in 8 or 4 bits under LoRA adapters, by bitsandbytes (QLoRA, Dettmers et al. 2023, arXiv:2305.14314).

The linear layers of the network's blocks are quantized; embeddings, norms, convolutions, the layers before and after
the blocks, and towers of media keep ``model.dtype``, and adapters are fp32 as always. The quantized network is the
policy and, without its adapters, the reference: what is sampled is scored by the same weights.

    4bit    NF4 by blocks of 64 with quantized scales, 0.52 bytes a weight, computed in ``model.dtype``
    8bit    LLM.int8 (arXiv:2208.07339), 1 byte a weight; activations are quantized too, by row, and columns with
            values above 6 in a batch are not, so log-probabilities depend a little on the batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pipelines import require

OUTLIERS = 6.0
"""Size of activations from which on LLM.int8 computes their columns in half precision."""


def in_blocks(network: nn.Module, frozen: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of blocks: those with a number in their name, except for frozen parts."""
    left_out = {id(module) for part in frozen for module in part.modules()}
    for name, module in network.named_modules():
        numbered = any(part.isdigit() for part in name.split(".")[:-1])
        if type(module) is nn.Linear and numbered and id(module) not in left_out:
            yield name, module


def quantize(network: Any, how: str, dtype: torch.dtype, frozen: Sequence[nn.Module] = ()) -> int:
    """Replace the linear layers of a network's blocks by quantized ones, in place; the number of them.

    ``how`` is 4bit or 8bit, ``dtype`` that of computation. Raises ValueError for a network without such layers.
    """
    require("visual", "bitsandbytes")
    from bitsandbytes import nn as layers

    chosen = list(in_blocks(network, frozen))
    if not chosen:
        raise ValueError(f"model.quantize: {type(network).__name__} has no linear layers in blocks; set it to none")
    for name, linear in chosen:
        sizes, bias = (linear.in_features, linear.out_features), linear.bias is not None
        weight, device = linear.weight.detach(), linear.weight.device
        quantized: Any
        if how == "4bit":
            quantized = layers.Linear4bit(*sizes, bias, compute_dtype=dtype, quant_type="nf4", compress_statistics=True)
            quantized.weight = layers.Params4bit(
                weight.to("cpu"), requires_grad=False, quant_type="nf4", compress_statistics=True, module=quantized
            )
        else:
            quantized = layers.Linear8bitLt(*sizes, bias, has_fp16_weights=False, threshold=OUTLIERS)
            quantized.weight = layers.Int8Params(weight.to("cpu"), requires_grad=False, has_fp16_weights=False)
        if bias:
            quantized.bias = nn.Parameter(linear.bias.detach(), requires_grad=False)
        parent, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(parent), leaf, quantized.to(device).requires_grad_(False))
    return len(chosen)


@contextmanager
def known_as_quantized(network: Any, how: str) -> Iterator[None]:
    """Inside the block peft adapts the quantized layers as such, which it asks the network for."""
    flag = f"is_loaded_in_{how}"
    if how != "none":
        setattr(network, flag, True)
    try:
        yield
    finally:
        if how != "none":
            delattr(network, flag)


def is_quantized(layer: nn.Module) -> bool:
    """Whether a layer is one of ``quantize``."""
    return type(layer).__module__.startswith("bitsandbytes.")


def dequantize(layer: Any) -> nn.Linear:
    """The linear layer in fp32 with the values that a quantized one stands for."""
    plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device=layer.weight.device)
    with torch.no_grad():
        plain.weight.copy_(values(layer).float())
        if layer.bias is not None:
            plain.bias.copy_(layer.bias)
    return plain


def values(layer: Any) -> Tensor:
    """The weights that a quantized layer stands for."""
    from peft.utils.integrations import dequantize_module_weight

    return dequantize_module_weight(layer)
