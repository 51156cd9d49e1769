"""A random Stable Audio checkpoint of a few hundred kilobytes, of the real classes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from mmgrpo.files import write_text
from pipelines import require, tiny_text

RATE, FRAMES, CHANNELS = 8_000, 64, 4
"""Sampling rate in Hz; frames of 64 samples each, and channels of the latents."""


SCHEDULER = {
    "_class_name": "CosineDPMSolverMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "v_prediction",
    "sigma_data": 1.0,
    "sigma_max": 500,
    "sigma_min": 0.3,
    "sigma_schedule": "exponential",
    "solver_order": 2,
}
"""That of Stable Audio Open."""


def tiny(folder: str | Path = "", seed: int = 0) -> Path:
    """Write a complete ``StableAudioPipeline`` folder (by default a new temporary one) and return it: stereo recordings
    of up to 0.512 s, two blocks of width 32, the scheduler of Stable Audio Open."""
    require("visual", "diffusers", "transformers")
    from diffusers import AutoencoderOobleck, StableAudioDiTModel, StableAudioPipeline
    from diffusers.pipelines.stable_audio import StableAudioProjectionModel

    folder = Path(folder or tempfile.mkdtemp(prefix="tiny-stable-audio-"))
    whole: Any = StableAudioPipeline  # its annotations do not allow for None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        pipeline = whole(
            vae=AutoencoderOobleck(
                encoder_hidden_size=8,
                downsampling_ratios=[8, 8],
                channel_multiples=[1, 2],
                decoder_channels=8,
                decoder_input_channels=CHANNELS,
                audio_channels=2,
                sampling_rate=RATE,
            ),
            text_encoder=tiny_text.t5(),
            tokenizer=tokenizer(),
            projection_model=StableAudioProjectionModel(
                text_encoder_dim=32, conditioning_dim=16, min_value=0, max_value=1
            ),
            transformer=StableAudioDiTModel(
                sample_size=FRAMES,
                in_channels=CHANNELS,
                out_channels=CHANNELS,
                num_layers=2,
                attention_head_dim=8,
                num_attention_heads=4,
                num_key_value_attention_heads=2,
                cross_attention_dim=16,
                time_proj_dim=16,
                global_states_input_dim=32,
                cross_attention_input_dim=16,
            ),
            scheduler=None,  # its class needs torchsde
        )
    pipeline.save_pretrained(folder)
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    write_text(folder / "model_index.json", json.dumps({**index, "scheduler": ["diffusers", SCHEDULER["_class_name"]]}))
    write_text(folder / "scheduler" / "scheduler_config.json", json.dumps(SCHEDULER))
    return folder


def tokenizer() -> Any:
    """Characters, at most 128 of them, as many tokens as Stable Audio Open reads."""
    made = tiny_text.t5_tokenizer()
    made.model_max_length = 128
    return made
