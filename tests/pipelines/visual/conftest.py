"""Tiny checkpoints of image generators."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("diffusers")
pytest.importorskip("peft")

from diffusers import StableDiffusion3Pipeline

from pipelines.visual import sd3


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """A whole Stable Diffusion 3 folder."""
    return sd3.tiny(tmp_path_factory.mktemp("sd3"))


@pytest.fixture(scope="session")
def words_folder(tmp_path_factory) -> Path:
    """A model without VAE."""
    return sd3.tiny_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def pipe(folder):
    """diffusers' own pipeline of the same folder."""
    pipe = StableDiffusion3Pipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe
