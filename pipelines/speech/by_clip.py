"""Cross-attention of a group's transcripts to the keys and values of their clip, which are stored once per clip.

A group of transcripts shares one clip, and 30 seconds of it are 1500 encoder states. Copies for every transcript would
take most of the memory, and reading the copies most of the time.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mmgrpo.runtime.devices import put
from pipelines.kv import Room, spread_cache

NAME = "by_clip"
"""Name of the attention implementation in a config."""


@dataclass(frozen=True)
class Clips:
    """Which transcripts are of which clip: arranged on the host, once for all layers and tokens."""

    clip: Int[Tensor, "rows"]
    """Number of each transcript's clip, on the host."""
    rows: tuple[tuple[int, Int[Tensor, "_"]], ...]
    """The numbers of the clips, and the transcripts of each."""
    back: Int[Tensor, "rows"]
    """Where each transcript stands among those of all clips, one clip after the other."""

    @staticmethod
    def of(clip: Int[Tensor, "rows"], device: torch.device) -> Clips:
        """From the number of each transcript's clip, on the host."""
        numbers = clip.tolist()
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        back = sorted(range(len(order)), key=order.__getitem__)
        ordered, places = put(torch.tensor([order, back], dtype=torch.long).view(2, -1), device)
        distinct = sorted(set(numbers))
        parts = ordered.split([numbers.count(number) for number in distinct]) if distinct else ()
        return Clips(clip, tuple(zip(distinct, parts, strict=True)), places)


@dataclass(frozen=True)
class ClipCache:
    """The decoder's cache with one row of keys and values per clip, and the clip of each transcript."""

    cache: Any
    """A cache of transformers: self-attention has a row per transcript, cross-attention a row per clip."""
    clips: Clips

    def spread(self, rows: Int[Tensor, "continuations"]) -> ClipCache:
        """A cache whose transcript i continues transcript ``rows[i]`` of this one; the clips are shared."""
        cache = copy.copy(self.cache)
        cache.self_attention_cache = spread_cache(self.cache.self_attention_cache, rows)
        cache.is_updated = dict(self.cache.is_updated)
        return ClipCache(cache, Clips.of(self.clips.clip[rows.cpu()], self.clips.back.device))

    def reserve(self, rows: Sequence[int], room: int) -> ClipRoom:
        """The same with room for tokens behind each."""
        cache, attention = copy.copy(self.cache), Room.of(self.cache.self_attention_cache, rows, room)
        cache.self_attention_cache = attention.cache
        cache.is_updated = dict(self.cache.is_updated)
        return ClipRoom(cache, attention, self.clips.clip, Clips.of(self.clips.clip[[*rows]], self.clips.back.device))


@dataclass
class ClipRoom:
    """As ``pipelines.kv.Room``, with the clip of each slot."""

    cache: Any
    room: Room
    """The room of self-attention."""
    clip: Int[Tensor, "prompts"]
    """Number of each prompt's clip, on the host."""
    clips: Clips
    """Those of the slots."""

    def write(self, numbers: Sequence[int], place: Int[Tensor, "slots"]) -> None:
        """As ``Room.write``."""
        self.room.write(numbers, place)

    def fill(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """As ``Room.fill``."""
        self.room.fill(slots, rows)
        self.clips = Clips.of(self.clip[self.room.rows], self.clips.back.device)

    def keep(self, slots: Sequence[int], moved: Int[Tensor, "m"], holes: Int[Tensor, "m"]) -> None:
        """As ``Room.keep``."""
        self.room.keep(slots, moved, holes)
        self.clips = Clips.of(self.clip[self.room.rows], self.clips.back.device)


def attend(
    module: nn.Module,
    query: Float[Tensor, "rows heads T width"],
    key: Float[Tensor, "_ heads S width"],
    value: Float[Tensor, "_ heads S width"],
    attention_mask: Tensor | None,
    clip: Clips | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "rows T heads width"], None]:
    """Scaled dot-product attention; cross-attention of row i reads keys and values number ``clip.clip[i]``.

    The queries of all transcripts of a clip are concatenated along the time axis, so its keys and values are read
    once and never copied.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if clip is None or module.is_causal:  # a transcript's attention to itself
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    outputs = []
    for number, rows in clip.rows:
        count, heads, length, width = len(rows), *query.shape[1:]
        queries = query[rows].transpose(0, 1).reshape(1, heads, count * length, width)
        place = slice(number, number + 1)
        output = nn.functional.scaled_dot_product_attention(queries, key[place], value[place], scale=kwargs["scaling"])
        outputs.append(output.view(heads, count, length, width).permute(1, 2, 0, 3))
    return torch.cat(outputs)[clip.back], None


def attend_by_clip(network: Any) -> None:
    """Replace the scaled dot-product attention of a network of transformers by ``attend``."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    network.config._attn_implementation = NAME
