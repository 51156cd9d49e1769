"""Matrix products of linear layers in fp32 on a CPU, where torch's own are slow.

Numbers are of one core of an AMD EPYC with AVX-512, with torch's MKL and oneDNN; with AVX2 only the two are about
equal, and copied weights gain less (``docs/benchmarks.md``). With ``torch.backends.mkldnn.enabled = False`` all
products are torch's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROWS = 16
"""Inputs from which oneDNN gains without a copied weight, and those that the order of a copied weight is best for; with
1 to 64 it gains as well."""

WORK = 1 << 20
"""Multiply-adds of a product from which oneDNN gains without a copied weight."""

COPIED = 1 << 11
"""Outputs whose gradients are transposed at a time, which oneDNN does by a copy."""

LARGE = 1 << 18
"""Numbers of a weight from which a copy of it gains."""

MOST = 1 << 28
"""Numbers of all copies together."""

FEW = 8
"""Products that such a copy must serve: making it takes the time of three to five."""

SHAPES = 128
"""Kernels that oneDNN, and torch's layer above it, keep each for shapes that come again. They take .3 MB each, and lie
between tensors that are freed, whose memory is then not given back. A pass has some ten to fifty, which all of its
blocks share; with completions of other lengths hardly any returns in the next. By default both keep 1,024; 128 cost a
step 3 % of its time where a tiny model writes 16 tokens, and nothing with longer texts."""

CAPACITIES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Variables of the environment that the two read at their first product; those of a user stand."""

for _name in CAPACITIES:
    os.environ.setdefault(_name, str(SHAPES))


class Linear(nn.Linear):
    """The layer of torch, whose outputs and gradients oneDNN computes where that gains, which differ by rounding.

    256 inputs of width 256 with 32,013 outputs take 20 ms in place of 52, on one thread of an AMD EPYC with AVX-512:

        python -m timeit -s "import torch; from mmgrpo.runtime.products import Linear; torch.set_num_threads(1)" \
            -s "torch.set_grad_enabled(False); x = torch.randn(256, 256); layer = Linear(256, 32013, bias=False)" \
            "layer(x)"          # or "torch.nn.functional.linear(x, layer.weight)"

    The two products of the gradient gain too. On other devices and in other precisions it is torch's.
    """

    def forward(self, inputs: Float[Tensor, "*N width"]) -> Float[Tensor, "*N outputs"]:
        weight, bias = self.weight, self.bias
        if not _gains(inputs, weight) or not _is_available():
            return nn.functional.linear(inputs, weight, bias)
        if not torch.is_grad_enabled():
            return _linear(inputs, weight, bias)
        return _Product.apply(inputs, weight, bias)  # type: ignore[return-value]


def by_onednn(network: nn.Module) -> None:
    """Make each plain linear layer inside a ``Linear``, in place; parameters, names and hooks stay."""
    for layer in network.modules():  # those with adapters or quantized weights are of types of their own
        if type(layer) is nn.Linear and "forward" not in vars(layer):
            layer.__class__ = Linear


def _gains(inputs: Tensor, weight: Tensor) -> bool:
    """Whether these are enough plain numbers on a CPU, which nothing traces or counts."""
    rows = inputs.numel() // max(weight.shape[1], 1)
    return (
        rows >= ROWS
        and rows * weight.numel() >= WORK
        and inputs.device.type == weight.device.type == "cpu"
        and inputs.dtype == weight.dtype == torch.float32
        and type(inputs) in PLAIN
        and type(weight) in PLAIN
        and weight.is_contiguous()  # it takes seconds to read slices of columns
        and not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
    )


PLAIN = (Tensor, nn.Parameter)
"""Types of tensors whose numbers lie in one place: not those of a sharded weight."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inputs: Float[Tensor, "*N width"], weight: Float[Tensor, "outputs width"], bias: Tensor | None
    ) -> Float[Tensor, "*N outputs"]:
        of_inputs, of_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(inputs if of_weight else None, weight if of_inputs else None)
        return _linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (inputs, weight), (slopes,) = ctx.saved_tensors, upstream
        rows, of_weight = slopes.flatten(0, -2), None
        if inputs is not None:
            inputs = inputs.flatten(0, -2).contiguous().T
            of_weight = inputs.new_empty(rows.shape[1], len(inputs))
            for part, outputs in zip(of_weight.split(COPIED), rows.split(COPIED, 1), strict=True):
                part.copy_(_linear(outputs.T, inputs))
        return (
            None if weight is None else _linear(slopes, weight.T),
            of_weight,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )


@contextmanager
def packed_weights(network: nn.Module, products: int) -> Iterator[None]:
    """Within it, large linear layers multiply by copies of their weights in the order in which oneDNN reads them.

    It is for ``products`` with few inputs each and without gradients, as a token of each completion is: 16 inputs take
    8.7 ms in place of 20 with a weight of 11,008 x 2048, and 3.5 in place of 8.9 with one of 32,013 x 256. Weights must
    not change meanwhile. Outputs differ by rounding. The copies take as much memory as the weights, and at most 1 GiB;
    there are none on other devices or in other precisions.
    """
    layers = _layers_to_copy(network) if products >= FEW and _is_available() else []
    try:
        for layer in layers:
            weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), ROWS)  # type: ignore[operator]
            layer.forward = partial(_linear, weight=weight, bias=layer.bias)  # type: ignore[method-assign]
        yield
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _is_available() -> bool:
    """It can be used, and neither ``torch.backends.mkldnn.enabled = False`` nor another precision asks for torch's."""
    return _is_built() and torch.backends.mkldnn.enabled and not torch.is_autocast_enabled("cpu")


@cache
def _is_built() -> bool:
    """oneDNN is in this build of torch, with the operations that torch's compiler uses for frozen weights."""
    operations = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return torch.backends.mkldnn.is_available() and operations


def _layers_to_copy(network: nn.Module) -> list[nn.Linear]:
    """The layers that gain from a copy, in the order of the network, as long as there is room."""
    layers, room = [], MOST
    layer: Any
    for layer in network.modules():
        if type(layer) not in (nn.Linear, Linear) or "forward" in vars(layer) or type(layer.weight) not in PLAIN:
            continue
        size, kind = layer.weight.numel(), (layer.weight.device.type, layer.weight.dtype)
        if kind == ("cpu", torch.float32) and LARGE <= size <= room:
            layers.append(layer)
            room -= size
    return layers


def _linear(
    inputs: Float[Tensor, "*N width"], weight: Tensor, bias: Tensor | None = None
) -> Float[Tensor, "*N outputs"]:
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
