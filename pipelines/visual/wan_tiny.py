"""Random Wan checkpoints of a few hundred kilobytes, of the real classes; nothing is downloaded."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pipelines import require, tiny_text
from pipelines.visual import tiny_parts
from pipelines.visual.sd3_tiny import WORDS
from pipelines.visual.wan_small import Clip
from pipelines.visual.words import WordEncoder

SHORT = Clip(frames=5, height=16, width=16, fps=8.0)
"""The clips of ``tiny_words``."""

CHANNELS = 4
"""Of latents."""


def tiny(folder: str | Path = "", seed: int = 0, version: str = "2.1", image_input: bool = False) -> Path:
    """Write a complete ``WanPipeline`` folder (by default a new temporary one) and return it.

    ``version`` is 2.1, 2.2-14B (two networks, the second below 0.875 of the noise, 0.9 with an image) or 2.2-5B (a
    time per token); ``image_input`` writes a ``WanImageToVideoPipeline``, whose clips begin with an image. A latent
    position is 8 x 8 pixels (5B: 16 x 16) of 1 frame at first and then of 4, and has 4 channels.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import UniPCMultistepScheduler, WanImageToVideoPipeline, WanPipeline

    if version not in ("2.1", "2.2-14B", "2.2-5B"):
        raise ValueError(f"version: got '{version}', expected 2.1, 2.2-14B or 2.2-5B")
    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-wan-"))
    options: dict[str, Any] = {}
    if image_input and version != "2.2-5B":
        options = {"in_channels": CHANNELS + 4 + CHANNELS}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        parts: dict[str, Any] = {"text_encoder": umt5(), "vae": vae(version == "2.2-5B")}
        if image_input and version == "2.1":
            options |= {"image_dim": 16, "added_kv_proj_dim": 32}
            parts |= {
                "image_encoder": tiny_parts.clip_vision(projection=True),
                "image_processor": tiny_parts.clip_processor(),
            }
        parts["transformer"] = transformer(**options)
        if version == "2.2-14B":
            parts |= {"transformer_2": transformer(**options), "boundary_ratio": 0.9 if image_input else 0.875}
    pipeline: Any = WanImageToVideoPipeline if image_input else WanPipeline
    pipeline(
        tokenizer=tiny_text.t5_tokenizer(),
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0 if version == "2.2-5B" else 3.0
        ),
        expand_timesteps=version == "2.2-5B",
        **parts,
    ).save_pretrained(folder)
    return folder


def tiny_words(folder: str | Path = "", vocabulary: Sequence[str] = WORDS, seed: int = 0, clip: Clip = SHORT) -> Path:
    """Write a small model (``pipelines.visual.wan_small``; by default in a new temporary folder) and return its folder.

    2 layers of width 32 and patches of 4 x 4 pixels of one frame; clips of up to 64 frames of 256 x 256 pixels.
    """
    require("visual", "diffusers")
    from diffusers import FlowMatchEulerDiscreteScheduler

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-wan-words-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = transformer(in_channels=3, out_channels=3, patch_size=(1, 4, 4))
        words = WordEncoder(vocabulary, length=8, width=32, pooled_width=32)
    network.save_pretrained(folder / "transformer")
    words.save(folder / "words")
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    clip.write(folder)
    return folder


def transformer(**options: Any) -> Any:
    """A transformer of 2 layers of width 32 for clips of up to 64 latent frames and 64 patches on each side."""
    from diffusers import WanTransformer3DModel

    wan: Any = WanTransformer3DModel
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "ffn_dim": 64, "num_layers": 2, "freq_dim": 32}
    channels = {"in_channels": CHANNELS, "out_channels": CHANNELS, "text_dim": 32}
    return wan(**{**sizes, **channels, "rope_max_seq_len": 64, **options})


def umt5() -> Any:
    """A UMT5 encoder of width 32."""
    from transformers import UMT5Config, UMT5EncoderModel

    return UMT5EncoderModel(UMT5Config(vocab_size=128, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4))


def vae(residual: bool) -> Any:
    """Wan's autoencoder: of 2.1 with 8 x 8 pixels a position, or the ``residual`` one of 2.2 5B with 16 x 16."""
    from diffusers import AutoencoderKLWan

    autoencoder: Any = AutoencoderKLWan
    patches = {"is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16}
    return autoencoder(
        base_dim=4,
        decoder_base_dim=4,
        z_dim=CHANNELS,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.5, 0.7, 1.0, 2.0],
        **(patches if residual else {}),
    )
