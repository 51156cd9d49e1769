"""Matrix products of linear layers in fp32 on a CPU, where torch's own are slow.

Numbers are of one core of an AMD EPYC, with torch's MKL and oneDNN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ALIGNMENT = 64
"""Numbers of which a row of outputs in memory has a multiple, and rows from which that gains."""

LARGE = 1 << 18
"""Numbers of a weight from which a copy of it gains."""

MOST = 1 << 28
"""Numbers of all copies together."""

FEW = 8
"""Products that such a copy must serve: making it takes the time of three to five."""

ROWS = 16
"""Rows that the order of a copied weight is best for; with 1 to 64 it gains as well."""


def aligned(layer: Any, inputs: Float[Tensor, "*N width"]) -> Float[Tensor, "*N outputs"]:
    """``layer(inputs)``, with outputs in rows of a multiple of ``ALIGNMENT`` numbers where the layer is a plain one.

    Rows of other lengths are written more slowly: 256 inputs of width 256 with 32,013 outputs take 80 ms, and 48 ms so.
    The vocabulary of Whisper is of such a size, and those with added tokens are.
    """
    plain = type(layer) is nn.Linear and inputs.ndim == 2
    if not plain or len(inputs) <= ALIGNMENT or not layer.out_features % ALIGNMENT:
        return layer(inputs)
    if layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer):  # what wraps it may replace it
        return layer(inputs)
    if torch.is_autocast_enabled(inputs.device.type) or {inputs.dtype, layer.weight.dtype} != {torch.float32}:
        return layer(inputs)
    outputs = _Aligned.apply(inputs, layer.weight)
    return outputs if layer.bias is None else outputs.add_(layer.bias)  # type: ignore[return-value]


class _Aligned(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Float[Tensor, "N width"], weight: Float[Tensor, "outputs width"]
    ) -> Float[Tensor, "N outputs"]:
        ctx.save_for_backward(inputs, weight)
        rows, size = len(inputs), len(weight)
        return torch.mm(inputs, weight.T, out=inputs.new_empty_strided((rows, size), (size + -size % ALIGNMENT, 1)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (inputs, weight), (of_inputs, of_weight) = ctx.saved_tensors, ctx.needs_input_grad
        return upstream[0] @ weight if of_inputs else None, upstream[0].T @ inputs if of_weight else None


@contextmanager
def packed(network: nn.Module, products: int) -> Iterator[None]:
    """Within it, large linear layers multiply by copies of their weights in the order in which oneDNN reads them.

    It is for ``products`` with few inputs each and without gradients, as a token of each completion is: 16 inputs take
    8.7 ms in place of 20 with a weight of 11,008 x 2048, and 3.5 in place of 8.9 with one of 32,013 x 256. Weights must
    not change meanwhile. Outputs differ by rounding. The copies take as much memory as the weights, and at most 1 GiB;
    there are none on other devices or in other precisions.
    """
    layers = _copied(network) if products >= FEW and _available() else []
    try:
        for layer in layers:
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)  # type: ignore[operator]
            layer.forward = partial(_product, weight, layer.bias)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _available() -> bool:
    """oneDNN is in use, and has the operations that torch's compiler uses for frozen weights."""
    operations = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return torch.backends.mkldnn.is_available() and operations and not torch.is_autocast_enabled("cpu")


def _copied(network: nn.Module) -> list[nn.Linear]:
    """The layers that gain from a copy, in the order of the network, as long as there is room."""
    layers, room = [], MOST
    for layer in network.modules():
        if type(layer) is not nn.Linear or "forward" in vars(layer) or type(layer.weight) is not nn.Parameter:
            continue
        size, kind = layer.weight.numel(), (layer.weight.device.type, layer.weight.dtype)
        if kind == ("cpu", torch.float32) and LARGE <= size <= room:
            layers.append(layer)
            room -= size
    return layers


def _product(weight: Tensor, bias: Tensor | None, inputs: Float[Tensor, "*N width"]) -> Float[Tensor, "*N outputs"]:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
