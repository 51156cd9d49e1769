"""The network of F5-TTS (arXiv:2410.06885): a diffusion transformer that infills a mel spectrogram.

Its input is, frame by frame, the noised spectrogram, the spectrogram of a reference voice (zero where there is none)
and the embedded characters, which are padded to the frames: no alignment is given. Names of modules are those of the
published checkpoints (``SWivid/F5-TTS``), so their tensors load by name.

    t = 0 noise, t = 1 data         the network's own time; it predicts data - noise
    characters -> ConvNeXt V2       text_embed
    [x; reference; text] -> width   input_embed, with a convolution for the position
    depth x (attention, feed-forward), modulated by t
    -> mean (and ln std) of the velocity

Rows of different lengths share a batch: what lies beyond a row's frames is zero before every convolution, is not
attended to and does not enter the norms over time, so a row's prediction is that of the row alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from mmgrpo.runtime.devices import put

KERNEL, GROUPS = 31, 16
"""Width and groups of the convolutions for the position."""

TIMES = 256
"""Width of the sinusoidal embedding of the time."""


@dataclass(frozen=True)
class F5Shape:
    """Sizes of a network; the defaults are those of F5TTS_v1_Base."""

    vocabulary: int = 2545
    mels: int = 100
    width: int = 1024
    depth: int = 22
    head: int = 64
    """Width of an attention head."""
    inner: int = 2048
    """Width of the feed-forward layers."""
    text_width: int = 512
    text_layers: int = 4
    text_inner: int = 1024
    rotates_all: bool = True
    """v1: rotary positions in all heads; F5TTS_Base: in the first only."""
    masks_text: bool = True
    """v1: the padding behind the characters is zero; F5TTS_Base: an embedded filler."""
    spread: bool = False
    """F5R-TTS (arXiv:2504.02407): a second head predicts ln std of the velocity."""


class F5Network(nn.Module):
    """Velocity (data - noise) of a spectrogram, and with ``spread`` its ln std."""

    peft_config: dict[str, Any]
    """The configuration of the adapters, where there are any."""

    def __init__(self, shape: F5Shape) -> None:
        super().__init__()
        self.shape = shape
        self.time_embed = TimeEmbedding(shape.width)
        self.text_embed = TextEmbedding(shape)
        self.input_embed = InputEmbedding(shape)
        self.rotary_embed = Rotary(shape.head)
        self.transformer_blocks = nn.ModuleList([Block(shape) for _ in range(shape.depth)])
        self.norm_out = Modulation(shape.width, 2)
        self.proj_out = nn.Linear(shape.width, shape.mels)
        if shape.spread:
            self.proj_out_ln_sig = nn.Linear(shape.width, shape.mels)
        self.recomputes = False

    def forward(
        self,
        x: Float[Tensor, "N frames mels"],
        reference: Float[Tensor, "N frames mels"],
        text: Int[Tensor, "N characters"],
        time: Float[Tensor, " N"],
        frames: Int[Tensor, " N"],
        wordless: bool = False,
    ) -> Float[Tensor, "N frames outputs"]:
        """The prediction at the network's time, zero beyond each row's ``frames``; the outputs are the mels of the
        velocity, and behind them those of ln std.

        ``text`` is padded by -1. ``wordless`` is the unconditional branch: neither text nor reference.
        """
        real = torch.arange(x.shape[1], device=x.device) < frames[:, None]
        state = self.time_embed(time)
        words = self.text_embed(text, real, wordless)
        x = self.input_embed(x, torch.zeros_like(reference) if wordless else reference, words, real)
        turns = self.rotary_embed(x.shape[1])
        for block in self.transformer_blocks:
            if self.recomputes and torch.is_grad_enabled():
                x = checkpoint(block, x, state, turns, real, use_reentrant=False)  # type: ignore[assignment]
            else:
                x = block(x, state, turns, real)
        scale, shift = self.norm_out(state)
        x = modulate(x, scale, shift)
        output = self.proj_out(x)
        if self.shape.spread:
            output = torch.cat([output, self.proj_out_ln_sig(x)], -1)
        return output * real[..., None]

    def enable_gradient_checkpointing(self) -> None:
        """Recompute the blocks' activations in the backward pass."""
        self.recomputes = True

    def add_adapter(self, config: Any, adapter_name: str) -> None:
        """Inject peft's adapters in place; everything else is frozen."""
        from peft import inject_adapter_in_model

        inject_adapter_in_model(config, self, adapter_name)
        self.peft_config = {adapter_name: config}

    def enable_adapters(self) -> None:
        self._set_adapters(True)

    def disable_adapters(self) -> None:
        self._set_adapters(False)

    def _set_adapters(self, enabled: bool) -> None:
        from peft.tuners.tuners_utils import BaseTunerLayer

        for module in self.modules():
            if isinstance(module, BaseTunerLayer):
                module.enable_adapters(enabled)


class TimeEmbedding(nn.Module):
    """Sines and cosines of 1000 t at geometric frequencies, and two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(TIMES, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Float[Tensor, " N"]) -> Float[Tensor, "N width"]:
        steps = torch.arange(TIMES // 2, device=time.device) * (-math.log(10_000) / (TIMES // 2 - 1))
        angle = 1000 * time.float()[:, None] * steps.exp()
        return self.time_mlp(torch.cat([angle.sin(), angle.cos()], -1))


class TextEmbedding(nn.Module):
    """Characters, one a frame from the first on, then the filler 0; positions; ConvNeXt V2 blocks."""

    def __init__(self, shape: F5Shape) -> None:
        super().__init__()
        self.masks = shape.masks_text
        self.text_embed = nn.Embedding(shape.vocabulary + 1, shape.text_width)
        self.text_blocks = nn.ModuleList(
            [TextBlock(shape.text_width, shape.text_inner) for _ in range(shape.text_layers)]
        )

    def forward(
        self, text: Int[Tensor, "N characters"], real: Bool[Tensor, "N frames"], wordless: bool
    ) -> Float[Tensor, "N frames width"]:
        length = real.shape[1]
        ids = functional.pad(text[:, :length] + 1, (0, max(0, length - text.shape[1]))) * real
        # The published model masks by the characters of the row in the unconditional branch too.
        kept = (ids > 0 if self.masks else real)[..., None]
        x = self.text_embed(torch.zeros_like(ids) if wordless else ids)
        if len(self.text_blocks):
            x = (x + put(positions(length, x.shape[-1]), x.device).to(x)) * kept
        for block in self.text_blocks:
            x = block(x, real) * kept
        return x * real[..., None]


class TextBlock(nn.Module):
    """ConvNeXt V2 (arXiv:2301.00808) over time."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, inner)
        self.grn = ResponseNorm(inner)
        self.pwconv2 = nn.Linear(inner, width)

    def forward(
        self, x: Float[Tensor, "N frames width"], real: Bool[Tensor, "N frames"]
    ) -> Float[Tensor, "N frames width"]:
        y = self.norm(self.dwconv(x.mT).mT)
        return x + self.pwconv2(self.grn(functional.gelu(self.pwconv1(y)), real))


class ResponseNorm(nn.Module):
    """Global response normalization: each channel's norm over a row's frames, over the mean of all channels' norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, width))
        self.beta = nn.Parameter(torch.zeros(1, 1, width))

    def forward(
        self, x: Float[Tensor, "N frames width"], real: Bool[Tensor, "N frames"]
    ) -> Float[Tensor, "N frames width"]:
        norm = torch.linalg.vector_norm(x * real[..., None], dim=1, keepdim=True)
        return self.gamma * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + self.beta + x


class InputEmbedding(nn.Module):
    """The three inputs in one vector a frame, plus two convolutions of it that tell the position."""

    def __init__(self, shape: F5Shape) -> None:
        super().__init__()
        self.proj = nn.Linear(2 * shape.mels + shape.text_width, shape.width)
        self.conv_pos_embed = nn.ModuleDict({"conv1d": nn.Sequential()})
        for number in (0, 2):  # the activations between them have no weights, but numbers
            layer = nn.Conv1d(shape.width, shape.width, KERNEL, groups=GROUPS, padding=KERNEL // 2)
            self.conv_pos_embed["conv1d"].add_module(str(number), layer)

    def forward(
        self,
        x: Float[Tensor, "N frames mels"],
        reference: Float[Tensor, "N frames mels"],
        text: Float[Tensor, "N frames width"],
        real: Bool[Tensor, "N frames"],
    ) -> Float[Tensor, "N frames width"]:
        x = self.proj(torch.cat([x.to(text), reference.to(text), text], -1)) * real[..., None]
        y = x.mT
        for layer in self.conv_pos_embed["conv1d"].children():
            y = functional.mish(layer(y)) * real[:, None]
        return x + y.mT


class Block(nn.Module):
    """Attention and feed-forward, each shifted, scaled and gated by the time (arXiv:2212.09748)."""

    def __init__(self, shape: F5Shape) -> None:
        super().__init__()
        self.attn_norm = Modulation(shape.width, 6)
        self.attn = Attention(shape.width, shape.head, shape.rotates_all)
        self.ff = nn.ModuleDict({"ff": feed_forward(shape.width, shape.inner)})

    def forward(
        self,
        x: Float[Tensor, "N frames width"],
        time: Float[Tensor, "N width"],
        turns: Float[Tensor, "frames head"],
        real: Bool[Tensor, "N frames"],
    ) -> Float[Tensor, "N frames width"]:
        shift, scale, gate, shift_after, scale_after, gate_after = self.attn_norm(time)
        x = x + gate[:, None] * self.attn(modulate(x, scale, shift), turns, real)
        return x + gate_after[:, None] * self.ff["ff"](modulate(x, scale_after, shift_after))


class Modulation(nn.Module):
    """``parts`` vectors of the time's embedding."""

    def __init__(self, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(width, parts * width)

    def forward(self, time: Float[Tensor, "N width"]) -> tuple[Float[Tensor, "N width"], ...]:
        return self.linear(functional.silu(time)).chunk(self.parts, 1)


class Attention(nn.Module):
    """Attention among a row's frames with rotary positions."""

    def __init__(self, width: int, head: int, rotates_all: bool) -> None:
        super().__init__()
        self.head, self.rotates_all = head, rotates_all
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(
        self, x: Float[Tensor, "N frames width"], turns: Float[Tensor, "frames head"], real: Bool[Tensor, "N frames"]
    ) -> Float[Tensor, "N frames width"]:
        queries, keys, values = (
            layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.to_q, self.to_k, self.to_v)
        )
        if self.rotates_all:
            queries, keys = rotate(queries, turns), rotate(keys, turns)
        else:
            queries, keys = (torch.cat([rotate(states[:, :1], turns), states[:, 1:]], 1) for states in (queries, keys))
        mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=real[:, None, None])
        return self.to_out[0](mixed.transpose(1, 2).flatten(2)) * real[..., None]


class Rotary(nn.Module):
    """Angles of rotary positions (arXiv:2104.09864), each frequency twice in a row."""

    def __init__(self, head: int) -> None:
        super().__init__()
        self.inv_freq: Tensor
        self.register_buffer("inv_freq", 10_000 ** -(torch.arange(0, head, 2) / head))

    def forward(self, length: int) -> Float[Tensor, "length head"]:
        place = torch.arange(length, device=self.inv_freq.device)
        return (place[:, None] * self.inv_freq.float()).repeat_interleave(2, -1)


def rotate(x: Float[Tensor, "N heads frames head"], turns: Float[Tensor, "frames head"]) -> Tensor:
    """Neighbouring pairs (a, b) of a head turned by their angle: (a cos - b sin, b cos + a sin)."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    quarter = torch.stack([-second, first], -1).flatten(-2)
    return (x * turns.cos() + quarter * turns.sin()).to(x.dtype)


def modulate(
    x: Float[Tensor, "N frames width"], scale: Float[Tensor, "N width"], shift: Float[Tensor, "N width"]
) -> Float[Tensor, "N frames width"]:
    """Normalized without weights of its own, then scaled and shifted."""
    return functional.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale[:, None]) + shift[:, None]


def feed_forward(width: int, inner: int) -> nn.Sequential:
    """Two layers with GELU (tanh) between; the place of the dropout keeps its number."""
    first = nn.Sequential(nn.Linear(width, inner), nn.GELU(approximate="tanh"))
    return nn.Sequential(first, nn.Identity(), nn.Linear(inner, width))


def positions(length: int, width: int) -> Float[Tensor, "length width"]:
    """Cosines, then sines, of place / 10000^(2 i / width)."""
    angle = torch.outer(torch.arange(length).float(), 10_000 ** -(torch.arange(0, width, 2) / width))
    return torch.cat([angle.cos(), angle.sin()], -1)
