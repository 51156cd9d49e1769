"""Weights of the places of an image, by what a judge says of its regions and of the whole: SRUM (arXiv:2510.12784).

A row of given answers (``data.offline``) has them in its ``meta``, of its worst image:

    "meta": {"layout": 0.2, "regions": [{"box": [0.0, 0.1, 0.5, 0.9], "score": 0.6}, ...]}

Scores and layout lie in [-1, 1]; a box is left, top, right and bottom in fractions of width and height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mmgrpo.types import Prompt

FINE = 8
"""Pixels of a map for each place of a latent, as an autoencoder has."""


@dataclass(frozen=True)
class Region:
    """A part of an image, and how good it is."""

    box: tuple[float, float, float, float]
    """Left, top, right, bottom in fractions of the image."""
    score: float
    """In [-1, 1]."""


def regions_of(prompt: Prompt) -> tuple[list[Region], float]:
    """The regions and the layout of a row's worst image; ValueError for a row without them, and for what is none."""
    where = f"prompt '{prompt.id}': meta"
    if "layout" not in prompt.meta or not isinstance(prompt.meta.get("regions"), list):
        raise ValueError(
            f"{where}: got {sorted(prompt.meta)}, expected 'layout' and a list 'regions' of its worst image"
        )
    layout = _number(prompt.meta["layout"], f"{where}.layout", -1.0)
    regions = []
    for number, region in enumerate(prompt.meta["regions"]):
        place = f"{where}.regions[{number}]"
        if not isinstance(region, Mapping) or not isinstance(region.get("box"), list) or len(region["box"]) != 4:
            raise ValueError(f"{place}: got {region!r:.80}, expected a 'box' of four fractions and a 'score'")
        left, top, right, bottom = (_number(side, f"{place}.box", 0.0) for side in region["box"])
        if left >= right or top >= bottom:
            raise ValueError(f"{place}.box: got {region['box']}, expected left < right and top < bottom")
        regions.append(Region((left, top, right, bottom), _number(region.get("score"), f"{place}.score", -1.0)))
    return regions, layout


def _number(value: Any, place: str, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1:
        raise ValueError(f"{place}: got {value!r}, expected a number in [{least:g}, 1]")
    return float(value)


def region_weights(regions: Sequence[Region], layout: float, height: int, width: int) -> Float[Tensor, "height width"]:
    """(layout + 1) / 2 times, at each place of a latent, 1/2 or the largest (score + 1) / 2 of the regions over it.

    A region worse than neutral thus counts as the background. Of layout .2: background .3, a region of .6 .48, one of
    -.8 .3. The map is drawn finer and interpolated (bilinear), as in the released code.
    """
    fine = torch.full((height * FINE, width * FINE), 0.5)
    for region in regions:
        left, top, right, bottom = region.box
        rows = slice(round(top * height * FINE), round(bottom * height * FINE))
        columns = slice(round(left * width * FINE), round(right * width * FINE))
        fine[rows, columns] = fine[rows, columns].clamp(min=(region.score + 1) / 2)
    coarse = nn.functional.interpolate(fine[None, None], (height, width), mode="bilinear", align_corners=False)
    return (layout + 1) / 2 * coarse[0, 0]
