"""A package that is not installed is named with the extra that brings it, before anything else is tried."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
import torch

from mmgrpo.types import Audio
from pipelines import lora, require
from pipelines.speech import audio, renderers, whisper_weights

LOADS = {
    "speech.whisper": ("speech", ["transformers", "peft"]),
    "speech.qwen_audio": ("speech", ["transformers", "peft"]),
    "speech.audio_text": ("speech", ["transformers", "peft"]),
    "vlm.causal_lm": ("vlm", ["transformers", "peft"]),
    "vlm.qwen_vl": ("vlm", ["transformers", "peft"]),
    "vlm.smolvlm": ("vlm", ["transformers", "peft"]),
    "visual.sd3": ("visual", ["diffusers", "transformers"]),
    "visual.flux": ("visual", ["diffusers", "transformers"]),
    "visual.hunyuan_video": ("visual", ["diffusers", "transformers"]),
    "visual.skyreels_i2v": ("visual", ["diffusers", "transformers"]),
    "visual.ltx_video": ("visual", ["diffusers", "transformers"]),
    "visual.flux2_klein": ("visual", ["diffusers", "transformers"]),
    "visual.sana": ("visual", ["diffusers", "transformers"]),
    "visual.stable_diffusion": ("visual", ["diffusers", "transformers"]),
    "visual.sdxl": ("visual", ["diffusers", "transformers"]),
    "visual.ltx_i2v": ("visual", ["diffusers", "transformers"]),
}
CALLS = {
    "soxr": ("speech", lambda path: audio.resample(Audio(torch.ones(1, 80), 8_000), 16_000)),
    "soundfile": ("speech", lambda path: audio._decode(str(path), 9.0)),
    "av": ("voice", lambda path: renderers.stretch(np.ones(80, np.float32), 8_000, 1.5)),
    "hibari": ("voice", lambda path: renderers.hibari()),
    "peft": ("visual", lambda path: lora.add_lora(torch.nn.Linear(1, 1), 1, 1.0, ["x"], 0)),
    "tokenizers": ("speech", lambda path: whisper_weights.whisper_tiny_en(path / "model", wheel=path)),
    "rapidfuzz": ("speech", lambda path: whisper_weights.smoke_check(path, [])),
    "whisper_normalizer": ("speech", lambda path: whisper_weights.smoke_check(path, [])),
}


def refused(package: str, extra: str, monkeypatch, call) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=rf"'{package}' is not installed, .* 'mmgrpo\[{extra}\]'"):
        call()


@pytest.mark.parametrize(
    ("module", "package"), [(m, package) for m, (_, packages) in LOADS.items() for package in packages]
)
def test_a_model_names_the_package_that_it_lacks(module, package, tmp_path, monkeypatch):
    family = importlib.import_module(f"pipelines.{module}")
    refused(package, LOADS[module][0], monkeypatch, lambda: family.load(tmp_path))


@pytest.mark.parametrize("package", CALLS)
def test_a_part_names_the_package_that_it_lacks(package, tmp_path, monkeypatch):
    extra, call = CALLS[package]
    refused(package, extra, monkeypatch, lambda: call(tmp_path))


def test_what_is_installed_is_required_silently():
    assert require("speech", "json", "torch") is None
