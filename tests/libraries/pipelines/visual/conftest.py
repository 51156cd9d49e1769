"""Tiny checkpoints of image generators."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")


from pipelines.visual import sd3
from pipelines.visual.library import load_pipeline
from tests.tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def folder() -> Path:
    """A whole Stable Diffusion 3 folder."""
    return tiny_checkpoint(sd3.tiny)


@pytest.fixture(scope="session")
def words_folder() -> Path:
    """A model without VAE."""
    return tiny_checkpoint(sd3.tiny_words)


@pytest.fixture(scope="session")
def pipe(folder):
    """diffusers' own pipeline of the same folder."""
    return load_pipeline("StableDiffusion3Pipeline", folder)
