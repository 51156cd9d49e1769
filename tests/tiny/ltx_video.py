"""Random LTX-Video checkpoints of a few hundred kilobytes, of the real classes; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require, tiny_text


def tiny(folder: str | Path = "", seed: int = 0, version: str = "0.9.1", image_input: bool = False) -> Path:
    """Write a complete ``LTXPipeline`` folder (by default a new temporary one) and return it.

    With ``image_input`` it is one of ``LTXImageToVideoPipeline``. Two layers of width 32; latents of 8 channels at an
    eighth of the resolution, a quarter of the frames. The decoder of ``version`` 0.9.0 takes no time and injects no
    noise, that of 0.9.1 does both, that of 0.9.5 takes a time only, and its levels are not shifted.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import LTXImageToVideoPipeline, LTXPipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-ltx-video-"))
    kind: Any = LTXImageToVideoPipeline if image_input else LTXPipeline
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = kind(**parts(version))
    pipeline.save_pretrained(folder)
    return folder


def parts(version: str) -> dict[str, Any]:
    """Every part of a small pipeline by its name."""
    from diffusers import AutoencoderKLLTXVideo, FlowMatchEulerDiscreteScheduler, LTXVideoTransformer3DModel

    autoencoder: Any = AutoencoderKLLTXVideo  # diffusers' annotations allow one value of every tuple only
    widths, scaling, layers = (8, 8, 8, 8), (True, True, False, False), (1, 1, 1, 1, 1)
    vae = autoencoder(
        latent_channels=8,
        block_out_channels=widths,
        decoder_block_out_channels=widths,
        layers_per_block=layers,
        decoder_layers_per_block=layers,
        spatio_temporal_scaling=scaling,
        decoder_spatio_temporal_scaling=scaling,
        decoder_inject_noise=(version == "0.9.1",) * 5,
        timestep_conditioning=version != "0.9.0",
        patch_size=2,
    )
    with torch.no_grad():
        for name, parameter in vae.named_parameters():
            if "per_channel_scale" in name:  # of the injected noise; initially zero
                parameter.normal_(std=0.1)
        # A narrow posterior, as that of a trained autoencoder.
        vae.encoder.conv_out.conv.weight[-1] = 0.0
        vae.encoder.conv_out.conv.bias[-1] = -30.0
        vae.latents_mean.normal_(std=0.1)
        vae.latents_std.uniform_(0.5, 1.5)
    levels: Any = FlowMatchEulerDiscreteScheduler  # whose annotations do not allow for None
    return {
        "scheduler": levels(
            use_dynamic_shifting=version != "0.9.5",
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=None if version == "0.9.5" else 0.1,
        ),
        "vae": vae,
        "text_encoder": tiny_text.t5(),
        "tokenizer": tiny_text.t5_tokenizer(),
        "transformer": LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=16,
            cross_attention_dim=32,
            num_layers=2,
            caption_channels=32,
        ),
    }
