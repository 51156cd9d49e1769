"""A random Stable Audio 3 checkpoint of a few hundred kilobytes, of the real classes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from pipelines import require
from tests.tiny.parts import gemma_tokenizer

RATE, CHANNELS, WIDTH = 800, 4, 16
"""Sampling rate in Hz, channels of the latents, which are 4 samples each, and the width of words and durations."""


def tiny(folder: str | Path = "", seed: int = 0, distilled: bool = True) -> Path:
    """Write a complete ``StableAudio3Pipeline`` folder (by default a new temporary one) and return it: two blocks of
    width 32 with differential attention; the scheduler is that of the distilled model or of the base."""
    require("visual", "diffusers", "transformers")
    from diffusers import (
        AutoencoderSAME,
        FlowMatchEulerDiscreteScheduler,
        StableAudio3DiTModel,
        StableAudio3Pipeline,
    )
    from diffusers.pipelines.stable_audio_3 import StableAudio3DurationEmbedder

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-stable-audio-3-"))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformer: Any = StableAudio3DiTModel(
            io_channels=CHANNELS,
            embed_dim=32,
            depth=2,
            num_heads=2,
            cond_token_dim=WIDTH,
            global_cond_dim=WIDTH,
            local_add_cond_dim=CHANNELS + 1,
            timestep_features_dim=16,
            num_memory_tokens=2,
        )
        transformer.proj_out.weight.data.div_(4)  # random adapters then predict what has a size of about 1
        vae = AutoencoderSAME(
            patch_size=2,
            encoder_channels=8,
            encoder_c_mults=(2,),  # type: ignore[arg-type]  # as its own defaults are
            encoder_strides=(2,),  # type: ignore[arg-type]
            encoder_transformer_depths=(1,),  # type: ignore[arg-type]
            latent_dim=CHANNELS,
            dim_heads=4,
            sampling_rate=RATE,
        )
        # At zero, as they begin, the decoder would not see its latents, and what fills up a prompt would be nothing.
        for weight in (*transformer.parameters(), *vae.decoder.parameters()):
            if weight.abs().max() < 1e-3:
                torch.nn.init.normal_(weight, std=0.1)
        pipeline = StableAudio3Pipeline(
            vae=vae,
            text_encoder=t5gemma(),
            tokenizer=gemma_tokenizer(),
            duration_embedder=StableAudio3DurationEmbedder(output_dim=WIDTH, fourier_dim=16),
            transformer=transformer,
            scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, stochastic_sampling=distilled),
        )
    pipeline.save_pretrained(folder)
    return folder


def t5gemma() -> Any:
    """The encoder of a T5Gemma."""
    from transformers import T5GemmaConfig, T5GemmaEncoderModel
    from transformers.models.t5gemma.configuration_t5gemma import T5GemmaModuleConfig

    module = T5GemmaModuleConfig(
        vocab_size=len(gemma_tokenizer()),
        hidden_size=WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    ).to_dict()
    return T5GemmaEncoderModel(T5GemmaConfig(encoder=module, decoder=module, is_encoder_decoder=False))
