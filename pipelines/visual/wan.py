"""Wan 2.1 and 2.2 (Wan team 2025, arXiv:2503.20314): clips from words, and small models of the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.pretrained import locate, read_network, read_part
from pipelines.training import PLAIN, Training, make_trainable
from pipelines.visual.flow import TRANSFORMER, FlowModel
from pipelines.visual.sizes import at_least_one, latent_frames, latent_size
from pipelines.visual.small import is_small, read_words
from pipelines.visual.wan_small import Clip, Small
from pipelines.visual.wan_tiny import tiny_words

__all__ = ["LORA_TARGETS", "load", "tiny_words"]

LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
"""Projections of self- and cross-attention."""


def load(
    path: str | Path,
    training: Training = PLAIN,
    *,
    height: int = 0,
    width: int = 0,
    frames: int = 0,
    fps: float = 0.0,
    guidance: float = 1.0,
    max_sequence_length: int = 256,
) -> FlowModel:
    """Load a Wan model for training.

    Raises FileNotFoundError for a folder that is no model, ValueError for unsupported sizes or settings.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import FlowMatchEulerDiscreteScheduler, WanTransformer3DModel

    at_least_one("guidance", guidance)
    source = locate(path, "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "model_index.json", "words")
    device = torch.device(training.device)
    network: Any = read_network(WanTransformer3DModel, source, training, TRANSFORMER)
    scheduler: Any = read_part(FlowMatchEulerDiscreteScheduler, source, subfolder="scheduler")
    clip = Clip.read(source)
    unit, most = network.config.patch_size[1], network.config.rope_max_seq_len
    size = latent_size(height, width, unit=unit, factor=1, default=(clip.height, clip.width), most=unit * most)
    shape = (network.config.in_channels, latent_frames(frames or clip.frames, 1, most), *size)
    assert is_small(source)
    return FlowModel(
        network,
        Small(read_words(source, device), scheduler, clip),
        shape,
        scheduler,
        training,
        make_trainable(network, training, LORA_TARGETS),
        guidance=float(guidance),
        fps=fps or clip.fps,
    )
