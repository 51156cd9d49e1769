"""Outputs as vectors, by a name below or a function of your own: ``embed="package.module:function(parameter=value)"``.

    def embed(outputs, *, device="cpu"):
        return ...                          # [B, D]; a row of NaN for an output that has no embedding

The default, ``layout``, needs no model: it tells colours and their places apart, and not what an image shows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mmgrpo.config import plugins
from mmgrpo.config.names import nearest
from mmgrpo.config.ranges import check_type
from mmgrpo.config.registry import parse
from mmgrpo.scoring import once
from mmgrpo.types import Image, Output, Video

LAYOUT = "reward_models.sets.embeddings:layout"

NAMED = {
    "bag_of_words": "reward_models.sets.diversity:bag_of_words",
    "bands": "reward_models.sets.audio:bands",
    "clap": "reward_models.vlm.clap:sounds",
    "clip": "reward_models.clip.embeddings:embed",
}
"""Embeddings by name."""

OF_TEXTS = {"clap": "reward_models.vlm.clap:texts"}
"""Embeddings of texts in the same space as the outputs', by the name of the outputs'."""

CELLS = 8
"""Rows and columns of cells of ``layout``."""


def layout(outputs: Sequence[Output]) -> Tensor:
    """The mean colour of each of 8 x 8 cells, minus grey, and a one: [B, 193]. Of a clip, the mean over its frames."""
    rows = []
    for output in outputs:
        if not isinstance(output, Image | Video):
            raise TypeError(
                f"embed: got an output of kind {type(output).__name__}, expected an Image or Video; name an embedding "
                'of yours: embed="package.module:function"'
            )
        pixels = output.pixels[None] if isinstance(output, Image) else output.frames
        cells = functional.adaptive_avg_pool2d(pixels.float(), CELLS).mean(0).flatten() - 0.5
        rows.append(torch.cat([cells, torch.ones(1)]))
    return torch.stack(rows) if rows else torch.zeros(0, 3 * CELLS**2 + 1)


def embeddings_of(outputs: Sequence[Output], embed: str, device: str, reward: str) -> Tensor:
    """Embeddings [B, D] of outputs in float64 on the CPU, computed once for all rewards that ask for the same ones;
    ValueError for what is no such tensor."""
    return once(("embed", embed, device), outputs, lambda: _rows(outputs, embed, NAMED, device, reward))


def embedded_texts(texts: Sequence[str], embed: str, device: str, reward: str) -> Tensor:
    """Embeddings [n, D] of texts in the space of ``embed``, which must have one."""
    name = parse(embed, "embed")[0]
    if name not in OF_TEXTS:
        raise ValueError(f"{reward}: embed: got {embed!r}, expected one that reads texts too: {', '.join(OF_TEXTS)}")
    return _rows(texts, embed, OF_TEXTS, device, reward)


def _rows(things: Sequence[Any], embed: str, names: Mapping[str, str], device: str, reward: str) -> Tensor:
    name, parameters = parse(embed, "embed")
    function = _load(names.get(name, name))
    if "device" in inspect.signature(function).parameters:
        parameters = {"device": device, **parameters}
    rows = function(things, **parameters)
    if not isinstance(rows, Tensor) or rows.ndim != 2 or len(rows) != len(things):
        got = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"{reward}: embed: {embed} returned {got}, expected a tensor of shape [{len(things)}, D]")
    return rows.detach().to("cpu", torch.float64)


def check_embed(embed: str = LAYOUT, **_: Any) -> None:
    """ValueError for a text that names no function, and for parameters that it has not."""
    name, parameters = parse(embed, "embed")
    function = _load(NAMED.get(name, name))
    accepted = inspect.signature(function).parameters
    for parameter, value in parameters.items():
        if parameter not in accepted:
            raise ValueError(f"embed: '{name}' has no parameter '{parameter}'.{nearest(parameter, accepted)}")
        check_type(function, parameter, value, f"embed: '{name}': {parameter}")


@functools.cache
def _load(target: str) -> Callable[..., Tensor]:
    if ":" not in target:
        raise ValueError(f"embed: got {target!r}, expected package.module:function, or one of {', '.join(NAMED)}")
    return plugins.load_object(target, "embed", own=not target.startswith("reward_models."))
