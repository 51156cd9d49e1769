"""Key-value caches of transformers: repeated for the members of a group, and with room for what is drawn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MASKED = ("sdpa", "eager", "by_clip")
"""Implementations of attention that can be given which tokens each token attends to."""


def maskable(config: Any) -> bool:
    """Whether all layers of a network can be given which tokens each token attends to: plain attention, without windows
    and states."""
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return (
        getattr(config, "_attn_implementation", "") in MASKED
        and kinds <= {"full_attention"}
        and (bool(kinds) or window is None)
    )


def attention_mask(config: Any, real: Bool[Tensor, "rows *length total"], dtype: torch.dtype) -> Tensor:
    """The mask in the form of transformers: the tokens that are there, or those that each token attends to."""
    if real.dim() == 2:
        return real.long()
    if config._attn_implementation != "eager":
        return real[:, None]
    return torch.zeros(real.shape, dtype=dtype, device=real.device).masked_fill(~real, torch.finfo(dtype).min)[:, None]


@dataclass
class Room:
    """Keys and values of rows that are being drawn, with room for a fixed number of tokens behind each prompt.

    Rows have slots. A slot is written in place, token by token; when its completion is finished, another one takes it
    over, or the last slot moves to its place.
    """

    cache: Any
    """A cache of transformers whose layers are ``RoomLayer``."""

    @staticmethod
    def of(cache: Any, rows: Int[Tensor, "rows"], room: int) -> Room:
        """Slots that continue the rows ``rows`` of a cache, with room for so many tokens each."""
        from transformers import Cache
        from transformers.cache_utils import CacheLayerMixin

        layers: list[Any] = [RoomLayer(*_plain(layer), rows, room) for layer in cache.layers]
        CacheLayerMixin.register(RoomLayer)  # as which a cache knows its layers, without the behaviour of its class
        return Room(Cache(layers))

    def write(self, own: Sequence[int], place: Int[Tensor, "slots"]) -> None:
        """The next token of slot i is its number ``own[i]``; ``place`` is the same on the device."""
        for layer in self.cache.layers:
            layer.write(own, place)

    def fill(self, slots: Int[Tensor, "n"], rows: Int[Tensor, "n"]) -> None:
        """Slots begin anew, behind rows of the prompts."""
        for layer in self.cache.layers:
            layer.fill(slots, rows)

    def keep(self, slots: Int[Tensor, "n"], moved: Int[Tensor, "m"], holes: Int[Tensor, "m"]) -> None:
        """Only n slots remain, the first ones, after those in ``moved`` have gone to ``holes``."""
        for layer in self.cache.layers:
            layer.keep(len(slots), moved, holes)


class RoomLayer:
    """Keys and values of one layer, as a cache of transformers calls it."""

    is_compileable = False
    is_sliding = False
    is_initialized = True

    def __init__(
        self,
        keys: Float[Tensor, "prompts heads length width"],
        values: Float[Tensor, "prompts heads length _"],
        rows: Int[Tensor, "rows"],
        room: int,
    ) -> None:
        self.prompts, self.length, self.count = (keys, values), keys.shape[2], len(rows)
        self.total = self.length
        self.tables = tuple(
            # Zeros, since what nobody attends to is multiplied all the same.
            torch.cat([one.index_select(0, rows), one.new_zeros(len(rows), one.shape[1], room, one.shape[3])], 2)
            for one in self.prompts
        )

    def write(self, own: Sequence[int], place: Int[Tensor, "slots"]) -> None:
        """As ``Room.write``."""
        same = len(set(own)) == 1
        self.at: int | Tensor = self.length + own[0] if same else self.length + place
        self.total = self.length + max(own) + 1

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write one token of each slot; keys and values of all tokens so far."""
        shown = []
        for table, new in zip(self.tables, (keys, values), strict=True):
            if isinstance(self.at, int):
                table[: self.count, :, self.at] = new[:, :, 0]
            else:
                table[torch.arange(self.count, device=table.device), :, self.at] = new[:, :, 0].to(table.dtype)
            shown.append(table[: self.count, :, : self.total])
        return shown[0], shown[1]

    def fill(self, slots: Int[Tensor, "n"], rows: Int[Tensor, "n"]) -> None:
        """As ``Room.fill``."""
        for table, prompts in zip(self.tables, self.prompts, strict=True):
            table[slots, :, : self.length] = prompts.index_select(0, rows)

    def keep(self, count: int, moved: Int[Tensor, "m"], holes: Int[Tensor, "m"]) -> None:
        """As ``Room.keep``."""
        self.count = count
        for table in self.tables:
            if len(moved):
                table[holes, :, : self.total] = table[moved, :, : self.total]

    def get_seq_length(self) -> int:
        """The number of tokens before the next one."""
        return self.total - 1

    def get_query_offset(self) -> int:
        """The same."""
        return self.total - 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of tokens that are attended to, from the first on."""
        return self.total, 0

    def get_max_length(self) -> int:
        """The number of tokens that there is room for."""
        return self.tables[0].shape[2]


def _plain(layer: Any) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer; TypeError for one that keeps something else."""
    from transformers.cache_utils import DynamicLayer

    if not isinstance(layer, DynamicLayer):
        raise TypeError(
            f"got a cache layer of type {type(layer).__name__}, expected DynamicLayer; a group cannot share other "
            "caches than plain keys and values: choose a model without them"
        )
    return cast(tuple[Tensor, Tensor], (layer.keys, layer.values))


def spread_cache(cache: Any, rows: Int[Tensor, "rows"]) -> Any:
    """A copy of the cache whose row i is row ``rows[i]`` of the original; gradients flow back to the original.

    Raises TypeError for a cache whose rows cannot be copied (layers other than plain keys and values).
    """
    result = copy.copy(cache)
    result.layers = []
    for layer in cache.layers:
        keys, values = _plain(layer)
        repeated = copy.copy(layer)
        # index_select, unlike indexing, adds the rows' gradients up in a fixed order.
        repeated.keys, repeated.values = keys.index_select(0, rows), values.index_select(0, rows)
        result.layers.append(repeated)
    return result
