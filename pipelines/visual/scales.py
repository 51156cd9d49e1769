"""The two networks of next-scale models (VAR, arXiv:2404.02905): a transformer over the scales of an image, and the
tokenizer that makes images of their codes.

An image has S square maps of codes, the coarsest first, of sides s_1 < ... < s_S. With the codebook E and mixing
convolutions phi_k (none: the identity), its feature map is

    f = sum over k of phi_k(up_k),        up_k = bicubic(E[codes_k], s_S x s_S)

The transformer reads, in the places of scale k, the sum of the coarser ones at that size, area(f_{k-1}, s_k x s_k), in
those of the first the class, and predicts all codes of the scale at once. A place sees those of its own and of coarser
scales.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pipelines.visual.enlarger import Enlarger

functional = nn.functional

SHARPEST = 100.0
"""The most that the product of normalized queries and keys is multiplied by."""


@cache
def of_diffusers(network: type[nn.Module]) -> Any:
    """A network of this module as a class of diffusers, which saves, loads and adapts it."""
    from diffusers import ConfigMixin, ModelMixin
    from diffusers.configuration_utils import register_to_config
    from diffusers.loaders import PeftAdapterMixin

    initialize: Any = register_to_config(network.__init__)
    values = {"__init__": initialize, "__module__": network.__module__}
    bases: tuple[Any, ...] = (network, ModelMixin, ConfigMixin, PeftAdapterMixin)
    return type(network.__name__, bases, values)


class NextScaleAttention(nn.Module):
    """Attention of normalized queries and keys, whose product each head multiplies by a factor of its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (
            nn.Linear(width, width),
            nn.Linear(width, width, False),
            nn.Linear(width, width),
        )
        self.to_out = nn.Linear(width, width)
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), 4.0).log())

    def forward(
        self,
        hidden: Float[Tensor, "N L width"],
        sees: Bool[Tensor, "L total"] | None,
        known: tuple[Tensor, Tensor] | None,
    ) -> tuple[Float[Tensor, "N L width"], tuple[Tensor, Tensor]]:
        """The attended values, and the keys and values of all places so far; ``known`` are those of earlier ones."""
        query, key, value = (
            part(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.to_q, self.to_k, self.to_v)
        )
        sharpness = self.sharpness.float().exp().clamp(max=SHARPEST)
        query = (functional.normalize(query.float(), dim=-1) * sharpness).to(value.dtype)
        key = functional.normalize(key.float(), dim=-1).to(value.dtype)
        if known:
            key, value = torch.cat([known[0], key], 2), torch.cat([known[1], value], 2)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=sees, scale=1.0)
        return self.to_out(attended.transpose(1, 2).flatten(2)), (key, value)


class NextScaleBlock(nn.Module):
    """A layer whose attention and feed-forward network are scaled, shifted and gated by the class."""

    def __init__(self, width: int, heads: int, inner: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps, elementwise_affine=False)
        self.attention = NextScaleAttention(width, heads)
        self.rise, self.fall = nn.Linear(width, inner), nn.Linear(inner, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(
        self,
        hidden: Float[Tensor, "N L width"],
        condition: Float[Tensor, "N width"],
        sees: Bool[Tensor, "L total"] | None,
        known: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Float[Tensor, "N L width"], tuple[Tensor, Tensor]]:
        modulation = self.modulation(functional.silu(condition))[:, None].chunk(6, -1)
        gate, inner_gate, scale, inner_scale, shift, inner_shift = modulation
        attended, kept = self.attention(self.norm(hidden) * (scale + 1) + shift, sees, known)
        hidden = hidden + attended * gate
        inner = functional.gelu(self.rise(self.norm(hidden) * (inner_scale + 1) + inner_shift), approximate="tanh")
        return hidden + self.fall(inner) * inner_gate, kept


class NextScaleTransformer(nn.Module):
    """Logits of the codes of all scales; the defaults are those of the published model of depth 16."""

    _supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["NextScaleBlock"]

    def __init__(
        self,
        scales: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16),
        codes: int = 4096,
        channels: int = 32,
        classes: int = 1000,
        width: int = 1024,
        layers: int = 16,
        heads: int = 16,
        inner: int = 4096,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        places = [side * side for side in scales]
        self.enter = nn.Linear(channels, width)
        self.labels = nn.Embedding(classes + 1, width)  # the last is none
        self.start = nn.Parameter(torch.zeros(places[0], width))
        self.place = nn.Parameter(torch.zeros(sum(places), width))
        self.scale = nn.Embedding(len(scales), width)
        self.blocks = nn.ModuleList(NextScaleBlock(width, heads, inner, eps) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps, elementwise_affine=False)
        self.modulation = nn.Linear(width, 2 * width)
        self.head = nn.Linear(width, codes)
        self.gradient_checkpointing = False
        level = torch.arange(len(scales)).repeat_interleave(torch.tensor(places))
        self.register_buffer("level", level, persistent=False)
        self.level: Tensor
        for weight in (self.labels.weight, self.scale.weight, self.start, self.place):
            nn.init.normal_(weight, std=(1 / width / 3) ** 0.5)

    def forward(
        self,
        classes: Int[Tensor, "N"],
        inputs: Float[Tensor, "N inputs channels"],
        begin: int = 0,
        cache: dict[int, tuple[Tensor, Tensor]] | None = None,
    ) -> Float[Tensor, "N L codes"]:
        """Logits of the places from ``begin`` on: where that is 0, of those of the first scale, which has no inputs,
        and of the inputs. A ``cache`` has the keys and values of all earlier places by layer, and takes these."""
        condition = self.labels(classes)
        hidden = self.enter(inputs.to(self.enter.weight.dtype))
        if begin == 0:
            hidden = torch.cat([condition[:, None] + self.start, hidden], 1)
        end = begin + hidden.shape[1]
        level = self.level[begin:end]
        hidden = hidden + self.scale(level) + self.place[begin:end]
        sees = level[:, None] >= self.level[:end]
        for number, block in enumerate(self.blocks):
            if torch.is_grad_enabled() and self.gradient_checkpointing:
                hidden, _ = self._gradient_checkpointing_func(block, hidden, condition, sees)  # type: ignore[operator]
                continue
            hidden, kept = block(hidden, condition, sees, (cache or {}).get(number))
            if cache is not None:
                cache[number] = kept
        scale, shift = self.modulation(functional.silu(condition))[:, None].chunk(2, -1)
        return self.head(self.norm(hidden) * (scale + 1) + shift)


class ScaleTokenizer(nn.Module):
    """Images of the codes of all scales.

    ``widths`` are those of the convolutional decoder of the published model, from the finest resolution; without them a
    feature map holds patches of ``patch`` x ``patch`` pixels, 0 in the place of white, in its first 3 patch^2 channels,
    which an enlarger draws (``pipelines.visual.patches``).
    """

    def __init__(
        self,
        scales: Sequence[int] = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16),
        codes: int = 4096,
        channels: int = 32,
        mixing: int = 4,
        share: float = 0.5,
        widths: Sequence[int] = (160, 160, 320, 320, 640),
        patch: int = 0,
        enlarging: Sequence[int] = (2, 32),
    ) -> None:
        super().__init__()
        self.scales, self.share, self.patch = tuple(scales), share, patch
        self.factor = patch * enlarging[0] if patch else 2 ** (len(widths) - 1)
        self.codebook = nn.Embedding(codes, channels)
        self.mixers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(mixing))
        self.decoder: Any = self._decoder(channels, widths) if widths else Enlarger(*enlarging)

    @staticmethod
    def _decoder(channels: int, widths: Sequence[int]) -> nn.Module:
        from diffusers.models.autoencoders.vae import Decoder

        blocks = ("AttnUpDecoderBlock2D", *["UpDecoderBlock2D"] * (len(widths) - 1))
        groups = min(32, *widths)
        decoder: Any = Decoder
        inner = decoder(channels, 3, blocks, tuple(widths), layers_per_block=2, norm_num_groups=groups)
        return nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), inner)

    @property
    def size(self) -> int:
        """Width and height of an image in pixels."""
        return self.scales[-1] * self.factor

    def contribution(self, scale: int, codes: Int[Tensor, "N n"]) -> Float[Tensor, "N channels side side"]:
        """What the codes of a scale, counted from 0, add to the feature map."""
        side, whole = self.scales[scale], self.scales[-1]
        added = self.codebook(codes).transpose(1, 2).unflatten(2, (side, side))
        if side != whole:
            added = functional.interpolate(added, (whole, whole), mode="bicubic")
        if not len(self.mixers):
            return added
        return (1 - self.share) * added + self.share * self.mixers[self.mixer(scale)](added)

    def mixer(self, scale: int) -> int:
        """Which convolution a scale's codes pass: the nearest of numbers that are spread over [0, 1] to its share of
        the way.

        Of ten scales and four convolutions, the third and eighth scale are as far from two of them. The published
        model takes those that NumPy's rounding makes the nearer ones, and so is it here.
        """
        count = len(self.mixers)
        border = 1 / (3 if count == 4 else 2) / count
        spread = np.linspace(border, 1 - border, count)
        return int(np.abs(spread - scale / max(1, len(self.scales) - 1)).argmin())

    def inputs(self, features: Float[Tensor, "N channels side side"], scale: int) -> Float[Tensor, "N places channels"]:
        """What the transformer reads in the places of a scale: the features of all coarser ones."""
        side = self.scales[scale]
        return functional.interpolate(features, (side, side), mode="area").flatten(2).transpose(1, 2)

    def split(self, codes: Int[Tensor, "N T"]) -> tuple[Int[Tensor, "N n"], ...]:
        """The codes of each scale."""
        return codes.split([side * side for side in self.scales], 1)

    def all_inputs(self, codes: Int[Tensor, "N T"]) -> Float[Tensor, "N inputs channels"]:
        """What the transformer reads in the places of all scales but the first."""
        features, inputs = 0.0, [self.codebook.weight.new_zeros(len(codes), 0, self.codebook.weight.shape[1])]
        for scale, some in enumerate(self.split(codes)[:-1]):
            features = features + self.contribution(scale, some)
            inputs.append(self.inputs(features, scale + 1))
        return torch.cat(inputs, 1)

    def decode(self, codes: Int[Tensor, "N T"]) -> Float[Tensor, "N 3 size size"]:
        """Images in [-1, 1], which a decoder may leave by a little."""
        features: Any = sum(self.contribution(scale, some) for scale, some in enumerate(self.split(codes)))
        if not self.patch:
            return self.decoder(features)
        return self.decoder(functional.pixel_shuffle(features[:, : 3 * self.patch**2] + 1, self.patch))
