"""The table of published checkpoints: what trains on which card."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs.site.markdown import grid
from mmgrpo.catalogue.checkpoints import Checkpoint, checkpoints
from mmgrpo.family import family

BYTES = {"4 bits": 0.54, "LoRA": 2.0, "all weights": 16.0}
"""Bytes for each parameter: the frozen base in NF4 (.52, and what is outside of its blocks in bf16), or in bf16;
weights, gradients and both moments of AdamW in fp32."""
CARDS = (24, 48, 80)
"""GB of usual cards."""
RESERVE = 4.0
"""GB left for the samples of a micro batch and for PyTorch."""


def table() -> str:
    """Every checkpoint with its size, and the most that trains on each card."""
    rows = [
        (
            f"`{name}`",
            f"`{checkpoint.family}`",
            f"{checkpoint.parameters / 1e9:.2f} B",
            *(f"{size:,.1f}" for size in gigabytes(checkpoint).values()),
            *(most(checkpoint, card) for card in CARDS),
        )
        for name, checkpoint in sorted(checkpoints().items(), key=order)
    ]
    return grid(("checkpoint", "family", "parameters", *BYTES, *(f"on {card} GB" for card in CARDS)), rows)


def order(item: tuple[str, Checkpoint]) -> tuple[str, str, int]:
    """By modality, family and size."""
    _, checkpoint = item
    return family(checkpoint.family).modality, checkpoint.family, checkpoint.parameters


def gigabytes(checkpoint: Checkpoint) -> dict[str, float]:
    """GB of weights, gradients and moments by the way of training."""
    return {way: size * checkpoint.parameters / 1e9 for way, size in BYTES.items()}


def most(checkpoint: Checkpoint, card: int) -> str:
    """The way of training with the most bits that a card holds."""
    fitting = [way for way, size in gigabytes(checkpoint).items() if size + RESERVE <= card]
    return fitting[-1] if fitting else "several cards"


TABLES: Mapping[str, Callable[[], str]] = {"checkpoints": table}
