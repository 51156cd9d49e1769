"""Random LTX-2 checkpoints of a few hundred kilobytes, of the real classes; nothing is downloaded."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from tests.tiny.parts import gemma_tokenizer


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``LTX2Pipeline`` folder (by default a new temporary one) and return it.

    Two layers of width 16 for the frames and 8 for the sound; latents of 4 channels at an eighth of the resolution
    and half of the frames, and 25 latents of 2 x 2 a second of sound, which has two channels.
    """
    require("visual", "diffusers", "transformers")
    from diffusers import LTX2Pipeline

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-ltx2-"))
    kind: Any = LTX2Pipeline
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = kind(**parts())
    pipeline.save_pretrained(folder)
    return folder


def parts() -> dict[str, Any]:
    """Every part of a small pipeline by its name."""
    import diffusers
    from diffusers.pipelines.ltx2 import LTX2TextConnectors, LTX2Vocoder
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    classes: Any = diffusers  # whose annotations allow one value of every tuple only
    tokenizer = gemma_tokenizer()
    words = {
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
    }
    seen = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    connector = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 1, "num_learnable_registers": None}
    vae = classes.AutoencoderKLLTX2Video(
        latent_channels=4,
        block_out_channels=(8,),
        decoder_block_out_channels=(8,),
        layers_per_block=(1,),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        downsample_type=("spatial",),
        upsample_residual=(False,),
        upsample_factor=(1,),
        decoder_causal=False,
        patch_size=4,
    )
    audio_vae = classes.AutoencoderKLLTX2Audio(
        base_channels=4, ch_mult=(1,), num_res_blocks=1, resolution=32, latent_channels=2, mel_bins=8
    )
    with torch.no_grad():
        for one in (vae, audio_vae):
            one.latents_mean.normal_(std=0.1)
            one.latents_std.uniform_(0.5, 1.5)
    return {
        "scheduler": classes.FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            max_image_seq_len=4096,
            shift_terminal=0.1,
        ),
        "vae": vae,
        "audio_vae": audio_vae,
        "text_encoder": Gemma3ForConditionalGeneration(Gemma3Config(text_config=words, vision_config=seen)),
        "tokenizer": tokenizer,
        "connectors": LTX2TextConnectors(
            caption_channels=32,
            text_proj_in_factor=3,  # hidden states of two layers, and the embeddings
            **{
                f"{stream}_connector_{name}": value
                for stream in ("video", "audio")
                for name, value in connector.items()
            },
            connector_rope_base_seq_len=32,
            rope_double_precision=False,
            rope_type="split",
        ),
        "transformer": classes.LTX2VideoTransformer3DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=8,
            cross_attention_dim=16,
            audio_in_channels=4,
            audio_out_channels=4,
            audio_num_attention_heads=2,
            audio_attention_head_dim=4,
            audio_cross_attention_dim=8,
            num_layers=2,
            caption_channels=32,
            rope_double_precision=False,
            rope_type="split",
        ),
        "vocoder": LTX2Vocoder(
            in_channels=16,
            hidden_channels=32,
            upsample_kernel_sizes=[20, 32],
            upsample_factors=[10, 16],
            resnet_kernel_sizes=[3],
            resnet_dilations=[[1, 3, 5]],
            output_sampling_rate=16_000,
        ),
    }
