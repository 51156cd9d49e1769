"""Two parts of a batch, an easy one and a hard one, cut by the rewards (group-invariant learning, arXiv:2310.11971).

The paper trains a classifier p(g | x, y) of M = 2 parts that maximizes the variance between the parts' returns
(section 4.3), R_g = sum_i p(g | i) R_i / sum_i p(g | i). With parts weighted by their sizes that variance is convex in
the probabilities, so that its maximum is a hard assignment, and the best of those is a cut of the sorted returns. Here
the cut is taken itself, in every batch: the limit of a classifier that can tell all samples apart. A trained one sees
texts instead, smooths over batches, and generalizes to samples that it has not seen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mmgrpo.advantages import groups
from mmgrpo.advantages.groups import Key, Rows, Values


class Parts(NamedTuple):
    """The part of each row."""

    mean: Values
    """R_g of the row's part."""
    centre: Values
    """The mean of both R_g, [1]."""
    high: Rows
    """The part with the larger rewards."""


def parts(values: Values, key: Key, stat: Rows, of: str) -> Parts | None:
    """The cut with the largest variance between the parts, of prompts (by their mean rewards) or of rows.

    None where all are equal, which no cut divides. Equal ones are in one part.
    """
    own = groups.group_mean(values, key, stat) if of == "prompts" else values
    ordered = own[groups.group_first(key, stat) if of == "prompts" else stat].sort().values
    if ordered.numel() < 2 or ordered[0] == ordered[-1]:
        return None
    number = torch.arange(1, ordered.numel(), device=values.device)
    low, total = ordered.cumsum(0)[:-1], ordered.sum()
    below, above = low / number, (total - low) / (ordered.numel() - number)
    between = number * (ordered.numel() - number) * (above - below) ** 2
    cut = int(between.argmax())  # never between equal ones: the variance is convex in how many of them are below
    high = own > ordered[cut]
    return Parts(torch.where(high, above[cut], below[cut]), (below[cut] + above[cut])[None] / 2, high)
