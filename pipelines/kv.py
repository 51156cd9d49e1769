"""Key-value caches of transformers, shared by the members of a group."""

from __future__ import annotations

import copy
from typing import Any, cast

from jaxtyping import Int
from torch import Tensor


def spread_cache(cache: Any, rows: Int[Tensor, "rows"]) -> Any:
    """A cache whose row i is row ``rows[i]`` of the given one, which stays as it is; gradients flow back.

    Raises TypeError for a kind of cache whose rows cannot be copied (layers that are not plain keys and values).
    """
    from transformers.cache_utils import DynamicLayer

    made = copy.copy(cache)
    made.layers = []
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer):
            raise TypeError(f"a cache layer of type {type(layer).__name__} cannot be shared by a group")
        mine = copy.copy(layer)
        # index_select, unlike indexing, adds the rows' gradients up in a fixed order.
        keys, values = cast(tuple[Tensor, Tensor], (layer.keys, layer.values))
        mine.keys, mine.values = keys.index_select(0, rows), values.index_select(0, rows)
        made.layers.append(mine)
    return made
