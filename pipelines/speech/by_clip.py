"""Attention of transcripts to the clip that they are of: its keys and values are there once, for all of them.

A group of transcripts has one clip, and 30 seconds of it are 1500 states: copied for every transcript they would be
most of the memory, and reading the copies most of the time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pipelines.kv import spread_cache

NAME = "by_clip"
"""What the attention is called in a config."""


@dataclass(frozen=True)
class Heard:
    """What a decoder keeps of its transcripts, and of which clip each of them is."""

    cache: Any
    """A cache of transformers: keys and values of the transcripts row by row, those of the clips clip by clip."""
    clip: Int[Tensor, "rows"]

    def spread(self, rows: Int[Tensor, "kept"]) -> Heard:
        """Row i of the new one goes on from ``rows[i]`` of this; the clips stay where they are."""
        made = copy.copy(self.cache)
        made.self_attention_cache = spread_cache(self.cache.self_attention_cache, rows)
        made.is_updated = dict(self.cache.is_updated)
        return Heard(made, self.clip[rows])


def attend(
    module: nn.Module,
    query: Float[Tensor, "rows heads T width"],
    key: Float[Tensor, "_ heads S width"],
    value: Float[Tensor, "_ heads S width"],
    attention_mask: Tensor | None,
    clip: Int[Tensor, "rows"] | None = None,
    **kwargs: Any,
) -> tuple[Float[Tensor, "rows T heads width"], None]:
    """The library's own attention; that to clips, where ``clip`` says of which one each row is, clip by clip."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if clip is None or module.is_causal:  # a transcript's attention to itself
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    places, parts = [], []
    for number in clip.unique().tolist():
        rows = (clip == number).nonzero()[:, 0]
        count, heads, length, width = len(rows), *query.shape[1:]
        asked = query[rows].transpose(0, 1).reshape(1, heads, count * length, width)
        one = slice(number, number + 1)
        found = nn.functional.scaled_dot_product_attention(asked, key[one], value[one], scale=kwargs["scaling"])
        parts.append(found.view(heads, count, length, width).permute(1, 2, 0, 3))
        places.append(rows)
    return torch.cat(parts)[torch.cat(places).argsort()], None


def attend_by_clip(network: Any) -> None:
    """Make a network of transformers that uses its scaled dot product attention use ``attend``."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    network.config._attn_implementation = NAME
