"""A tiny model: FLUX.1 Kontext, with random weights; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from pipelines.visual import flux


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``FluxKontextPipeline`` folder (by default a new temporary one) of ``flux.tiny``'s sizes."""
    return flux.tiny(folder, seed, pipeline="FluxKontextPipeline")
