"""Random Wan checkpoints of a few hundred kilobytes, of the real classes; nothing is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from pipelines.visual.sd3_tiny import WORDS
from pipelines.visual.wan_small import Clip
from pipelines.visual.words import WordEncoder


def tiny_words(
    folder: str | Path = "",
    vocabulary: Sequence[str] = WORDS,
    seed: int = 0,
    clip: Clip = Clip(frames=5, height=16, width=16, fps=8.0),
) -> Path:
    """Write a small model (``pipelines.visual.wan_small``; by default in a new temporary folder) and return its folder.

    2 layers of width 32 and patches of 4 x 4 pixels of one frame; clips of up to 64 frames of 256 x 256 pixels.
    """
    require("visual", "diffusers")
    from diffusers import FlowMatchEulerDiscreteScheduler

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-wan-words-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = transformer(in_channels=3, patch_size=(1, 4, 4))
        words = WordEncoder(vocabulary, length=8, width=32, pooled_width=32)
    network.save_pretrained(folder / "transformer")
    words.save(folder / "words")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    clip.write(folder)
    return folder


def transformer(in_channels: int, patch_size: tuple[int, int, int] = (1, 2, 2), **options: Any) -> Any:
    """A transformer of 2 layers of width 32."""
    from diffusers import WanTransformer3DModel

    wan: Any = WanTransformer3DModel
    network = wan(
        patch_size=patch_size,
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=in_channels,
        out_channels=options.pop("out_channels", in_channels),
        text_dim=32,
        freq_dim=32,
        ffn_dim=64,
        num_layers=2,
        rope_max_seq_len=64,
        **options,
    )
    return network
