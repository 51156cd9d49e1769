"""A tiny model: a next-scale transformer and its tokenizer, with random weights; nothing is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines import require

NAMES = (
    "a red square",
    "blue",
    "a green circle left of a blue square .",
    "two blue circles",
    "great grey owl, Strix nebulosa",
    "crane",
    "crane",
)


def tiny(
    folder: str | Path = "",
    scales: Sequence[int] = (1, 2, 4),
    codes: int = 24,
    names: Sequence[str] = NAMES,
    seed: int = 0,
) -> Path:
    """Write a random checkpoint (by default into a new temporary folder) and return its folder: two layers of width 32,
    images of 16 x 16 pixels, and 4 mixing convolutions as the published tokenizer has."""
    require("visual", "diffusers")
    from pipelines.visual.scales import NextScaleTransformer, ScaleTokenizer, of_diffusers
    from pipelines.visual.var import write_names

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-var-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network: Any = of_diffusers(NextScaleTransformer)(
            scales, codes, 8, len(names), width=32, layers=2, heads=2, inner=48
        )
        with torch.no_grad():  # as drawn by the classes, logits hardly depend on the class and on other places
            for name, parameter in network.named_parameters():
                if parameter.ndim > 1 and ("labels" in name or "head" in name or "modulation" in name):
                    parameter.mul_(4)
        images: Any = of_diffusers(ScaleTokenizer)(scales, codes, 8, widths=(8, 8, 16))
    network.save_pretrained(folder / "transformer")
    images.save_pretrained(folder / "images")
    write_names(folder, names)
    return folder
