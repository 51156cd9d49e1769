"""Key-value caches of transformers: repeated for the members of a group, and with room for what is drawn.

While completions are drawn, the keys and values of a prompt are stored once for all of them. With a and b the log of
the sum of exponentials of a token's scores over the prompt and over its own completion, and A and B the attention to
each alone, the attention to both is

    w A + (1 - w) B        w = e^a / (e^a + e^b) = sigmoid(a - b)

so that the queries of a group read its prompt in one matrix product (Hydragen, arXiv:2402.05099, 3.1 and 3.2).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from mmgrpo.runtime.devices import put

BY_PROMPT = "by_prompt"
"""Name of the implementation of attention while completions are drawn behind shared prompts."""

BY_TOKENS = "by_tokens"
"""The same of a network whose tokens several processes divide (``pipelines.sequences``)."""

MASKED = ("sdpa", "eager", "by_clip", BY_TOKENS)
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


def attention_mask(
    config: Any,
    real: Bool[Tensor, "rows *length total"],
    dtype: torch.dtype,
    ids: Int[Tensor, "rows length"],
    *,
    cached: bool = True,
) -> Tensor | None:
    """The mask of ``ids`` in the form of transformers: the tokens that are there, or those that each token attends to.

    transformers reads from the device whether the tokens of prompts are all there, to leave the mask out or to make
    one. What it would do is done here where ``real`` lies on the host, the network is ``maskable``, and its pass is
    ``cached``: without mask and cache it looks for several sequences in a row.
    """
    if real.dim() == 2 and real.shape == ids.shape and real.device.type == "cpu" and cached and maskable(config):
        if bool(real.all()):
            return None
        square = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool)
        # Padding attends to itself: a token that attends to nothing has no state, not even one that nobody reads.
        real = put((real[:, None] & square.tril()) | square.diag().diag(), ids.device)
    if real.dim() == 2:
        return put(real, ids.device).long()
    if config._attn_implementation != "eager":
        return real[:, None]
    return torch.zeros(real.shape, dtype=dtype, device=real.device).masked_fill(~real, torch.finfo(dtype).min)[:, None]


def shareable(body: Any) -> bool:
    """Whether the attention of a network can be replaced by ``attend_by_prompt``."""
    plain = body.config._attn_implementation in ("sdpa", BY_TOKENS)
    return plain and bool(getattr(body, "_supports_attention_backend", False))


@dataclass(frozen=True)
class Owners:
    """Which slots continue which prompt."""

    members: Int[Tensor, "prompts most"]
    """The slots of each prompt, filled up with others."""
    place: Int[Tensor, "slots"]
    """Where each slot stands in the flat table of members."""
    prompt: Int[Tensor, "slots"]

    @staticmethod
    def of(rows: Sequence[int], prompts: int, device: torch.device) -> Owners:
        """From the prompt of each slot, below ``prompts``."""
        several: list[list[int]] = [[] for _ in range(prompts)]
        place = []
        for slot, row in enumerate(rows):
            place.append(len(several[row]))
            several[row].append(slot)
        most = max(map(len, several))
        members = torch.tensor([[*slots, *([0] * (most - len(slots)))] for slots in several])
        places = torch.tensor([row * most + slot for row, slot in zip(rows, place, strict=True)], dtype=torch.long)
        return Owners(put(members, device), put(places, device), put(torch.tensor(rows, dtype=torch.long), device))


@dataclass(frozen=True)
class Shared:
    """Keys or values of slots: those of their prompts and their own.

    ``attend_by_prompt`` reads them apart. To whatever else a network does with them they are the table with the prompt
    of each slot repeated.
    """

    prompts: Float[Tensor, "prompts heads length width"]
    own: Float[Tensor, "slots heads total width"]
    owners: Owners

    def whole(self) -> Float[Tensor, "slots heads _ width"]:
        """The table of all tokens of each slot."""
        return torch.cat([self.prompts.index_select(0, self.owners.prompt), self.own], 2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole(), name)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def plain(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [plain(part) for part in value]
            return value.whole() if isinstance(value, cls) else value

        return function(*map(plain, args), **{name: plain(value) for name, value in (kwargs or {}).items()})


def attend_by_prompt(
    module: nn.Module,
    query: Float[Tensor, "slots _ 1 width"],
    key: Shared | Tensor,
    value: Shared | Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "slots 1 _ _"], None]:
    """Scaled dot-product attention of one token of each slot to its prompt and its own completion, in fp32.

    ``attention_mask`` [slots, 1, 1, length + total] is True where it attends. Keys and values that are not shared are
    attended to as usual.
    """
    if not (isinstance(key, Shared) and isinstance(value, Shared)):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, cast(Tensor, key), cast(Tensor, value), attention_mask, scaling=scaling, **kwargs
        )
    slots, every, _, width = query.shape
    (prompts, heads, length, _), owners = key.prompts.shape, key.owners
    most, own_heads = owners.members.shape[1], every // heads  # heads of queries that share keys and values
    real = cast(Tensor, attention_mask)
    with torch.autocast(query.device.type, enabled=False):
        queries = (query.float() * (width**-0.5 if scaling is None else scaling)).view(slots, heads, own_heads, width)
        grouped = queries[owners.members].transpose(1, 2).reshape(prompts, heads, most * own_heads, width)
        there = real[owners.members[:, 0], :, :, :length]
        first, before = _attend(grouped, key.prompts, value.prompts, there)
        second, behind = _attend(queries, key.own, value.own, real[..., length:])

        def to_slots(table: Float[Tensor, "prompts heads rows _"]) -> Float[Tensor, "slots heads _ _"]:
            return table.view(prompts, heads, most, own_heads, -1).transpose(1, 2).flatten(0, 1)[owners.place]

        out = torch.lerp(second, to_slots(first), torch.sigmoid(to_slots(before) - behind))
    return out.to(value.own.dtype).view(slots, 1, every, -1), None


def _attend(
    queries: Float[Tensor, "rows heads tokens width"],
    keys: Float[Tensor, "rows heads total width"],
    values: Float[Tensor, "rows heads total _"],
    real: Bool[Tensor, "rows 1 1 total"],
) -> tuple[Float[Tensor, "rows heads tokens _"], Float[Tensor, "rows heads tokens 1"]]:
    """Attention, and the log of the sum of exponentials of its scores."""
    scores = (queries @ keys.float().transpose(2, 3)).masked_fill_(~real, -torch.inf)
    most = scores.amax(-1, keepdim=True)
    total = scores.sub_(most).exp_().sum(-1, keepdim=True)
    return (scores @ values.float()).div_(total), total.log_().add_(most)


@contextlib.contextmanager
def reading(config: Any, cache: Any) -> Iterator[Any]:
    """The cache as a network of ``config`` takes it, with the attention that it needs."""
    if not isinstance(cache, Room):
        yield cache
        return
    before = config._attn_implementation
    try:
        if cache.shared:
            config._attn_implementation = BY_PROMPT
        yield cache.cache
    finally:
        config._attn_implementation = before


@dataclass
class Room:
    """Keys and values of rows that are being drawn, with room for a fixed number of tokens behind each prompt.

    Rows have slots. A slot is written in place, token by token; when its completion is finished, another one takes it
    over, or the last slot moves to its place.
    """

    cache: Any
    """A cache of transformers whose layers are ``RoomLayer``."""
    rows: list[int]
    """The prompt of each slot."""
    shared: bool
    """The slots of a prompt read its keys and values; else each has a copy."""

    @staticmethod
    def of(cache: Any, rows: Sequence[int], room: int, *, shared: bool = False) -> Room:
        """Slots that continue the rows ``rows`` of a cache, with room for so many tokens each."""
        from transformers import AttentionInterface, Cache
        from transformers.cache_utils import CacheLayerMixin
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        AttentionInterface.register(BY_PROMPT, attend_by_prompt)
        AttentionMaskInterface.register(BY_PROMPT, sdpa_mask)
        CacheLayerMixin.register(RoomLayer)  # as which a cache knows its layers, without the behaviour of its class
        prompts = [_plain(layer) for layer in cache.layers]
        shared = shared and len(rows) > len(prompts[0][0])  # nothing is shared by one slot of each prompt
        device = prompts[0][0].device
        owners = Owners.of(rows, len(prompts[0][0]), device) if shared else None
        places = put(torch.tensor([*rows], dtype=torch.long), device)
        layers: list[Any] = [RoomLayer(keys, values, places, room, owners) for keys, values in prompts]
        return Room(Cache(layers), [*rows], shared)

    def write(self, numbers: Sequence[int], place: Int[Tensor, "slots"]) -> None:
        """The next token of slot i is its number ``numbers[i]``; ``place`` is the same on the device."""
        for layer in self.cache.layers:
            layer.write(numbers, place)

    def fill(self, slots: Sequence[int], rows: Sequence[int]) -> None:
        """Slots begin anew, behind rows of the prompts."""
        for slot, row in zip(slots, rows, strict=True):
            self.rows[slot] = row
        self._set_owners()
        if not self.shared:
            device = self.cache.layers[0].prompts[0].device
            ends = [put(torch.tensor([*numbers], dtype=torch.long), device) for numbers in (slots, rows)]
            for layer in self.cache.layers:
                layer.copy(*ends)

    def keep(self, slots: Sequence[int], moved: Int[Tensor, "m"], holes: Int[Tensor, "m"]) -> None:
        """Only these slots remain, as the first ones, after those in ``moved`` have gone to ``holes``."""
        self.rows = [self.rows[slot] for slot in slots]
        self._set_owners()
        for layer in self.cache.layers:
            layer.keep(len(slots), moved, holes)

    def _set_owners(self) -> None:
        """Let the layers know whose the slots are."""
        if self.shared:
            keys = self.cache.layers[0].prompts[0]
            owners = Owners.of(self.rows, len(keys), keys.device)
            for layer in self.cache.layers:
                layer.owners = owners


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
        owners: Owners | None,
    ) -> None:
        self.prompts, self.owners, self.length, self.count = (keys, values), owners, keys.shape[2], len(rows)
        self.begin = 0 if owners else self.length
        """Where tokens of completions begin in the tables."""
        self.total = 0
        # Zeros, since what nobody attends to is multiplied all the same.
        self.tables = tuple(
            prompt.new_zeros(len(rows), prompt.shape[1], self.begin + room, prompt.shape[3]) for prompt in self.prompts
        )
        if not owners:
            self.copy(torch.arange(len(rows), device=rows.device), rows)

    def copy(self, slots: Int[Tensor, "n"], rows: Int[Tensor, "n"]) -> None:
        """Copy rows of the prompts to slots."""
        for table, prompts in zip(self.tables, self.prompts, strict=True):
            table[slots, :, : self.length] = prompts.index_select(0, rows)

    def write(self, numbers: Sequence[int], place: Int[Tensor, "slots"]) -> None:
        """As ``Room.write``."""
        same = len(set(numbers)) == 1
        self.at: int | Tensor = self.begin + numbers[0] if same else self.begin + place
        self.total = max(numbers) + 1

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Shared | Tensor, Shared | Tensor]:
        """Write one token of each slot; keys and values of all tokens so far."""
        shown: list[Shared | Tensor] = []
        for prompts, table, new in zip(self.prompts, self.tables, (keys, values), strict=True):
            if isinstance(self.at, int):
                table[: self.count, :, self.at] = new[:, :, 0]
            else:
                table[torch.arange(self.count, device=table.device), :, self.at] = new[:, :, 0].to(table.dtype)
            filled = table[: self.count, :, : self.begin + self.total]
            shown.append(Shared(prompts, filled, self.owners) if self.owners else filled)
        return shown[0], shown[1]

    def keep(self, count: int, moved: Int[Tensor, "m"], holes: Int[Tensor, "m"]) -> None:
        """As ``Room.keep``."""
        self.count = count
        for table in self.tables:
            if len(moved):
                table[holes, :, : self.begin + self.total] = table[moved, :, : self.begin + self.total]

    def get_seq_length(self) -> int:
        """The number of tokens before the next one."""
        return self.length + self.total - 1

    def get_query_offset(self) -> int:
        """The same."""
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of tokens that are attended to, from the first on."""
        return self.length + self.total, 0

    def get_max_length(self) -> int:
        """The number of tokens that there is room for."""
        return self.length - self.begin + self.tables[0].shape[2]


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
    """A copy of the cache whose row i is row ``rows[i]`` of the original; gradients flow back to the original. ``rows``
    lie on the host or on the device.

    Raises TypeError for a cache whose rows cannot be copied (layers other than plain keys and values).
    """
    result, rows = copy.copy(cache), put(rows, _plain(cache.layers[0])[0].device)
    result.layers = []
    for layer in cache.layers:
        keys, values = _plain(layer)
        repeated = copy.copy(layer)
        # index_select, unlike indexing, adds the rows' gradients up in a fixed order.
        repeated.keys, repeated.values = keys.index_select(0, rows), values.index_select(0, rows)
        result.layers.append(repeated)
    return result
