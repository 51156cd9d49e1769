"""Key-value caches of transformers, repeated for the members of a group."""

from __future__ import annotations

import copy
from typing import Any, cast

from jaxtyping import Int
from torch import Tensor


def spread_cache(cache: Any, rows: Int[Tensor, "rows"]) -> Any:
    """A copy of the cache whose row i is row ``rows[i]`` of the original; gradients flow back to the original.

    Raises TypeError for a cache whose rows cannot be copied (layers other than plain keys and values).
    """
    from transformers.cache_utils import DynamicLayer

    result = copy.copy(cache)
    result.layers = []
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer):
            raise TypeError(
                f"got a cache layer of type {type(layer).__name__}, expected DynamicLayer; a group cannot share other "
                "caches than plain keys and values: choose a model without them"
            )
        repeated = copy.copy(layer)
        # index_select, unlike indexing, adds the rows' gradients up in a fixed order.
        keys, values = cast(tuple[Tensor, Tensor], (layer.keys, layer.values))
        repeated.keys, repeated.values = keys.index_select(0, rows), values.index_select(0, rows)
        result.layers.append(repeated)
    return result
